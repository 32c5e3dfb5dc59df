"""Train the detector, segmentor or classifier of a config.

cpvt train mine/model.py
cpvt train mine/model.py --resume    # after a stop
torchrun --nproc-per-node 8 -m cpvt train CONFIG --launcher pytorch
"""

import argparse
import os
import re
import shlex
from collections.abc import Sequence

from cpvt import command_line as cli
from cpvt.command_line import plain

# First part of the options that neither a test nor a prediction reads. Hooks of the config's
# `custom_hooks` also run in a test, such as that of averaged weights.
OF_TRAINING = re.compile(
    r'(train_|val_|optim_wrapper|param_scheduler|default_hooks|auto_scale_lr|load_from|resume)'
)


def check(args: argparse.Namespace) -> None:
    """Refuse missing files."""
    cli.check_config(args.config)
    if args.resume not in (None, 'auto'):
        cli.check_checkpoint(args.resume, '--resume')


def next_commands(args: argparse.Namespace, work_dir: str) -> list[str]:
    """Return the commands that test a trained model and predict with it."""
    model = [os.fspath(args.config), os.path.normpath(work_dir)]
    given = (args.cfg_options or {}).items()
    options = [f'{key}={value}' for key, value in given if not OF_TRAINING.match(key)]
    options = ['--cfg-options', *options] if options else []
    out_dir = ['--out-dir', f'out/{os.path.basename(model[1])}']
    return [
        f'{cli.command("test")} {shlex.join([*model, *options])}',
        f'{cli.command("infer")} {shlex.join([*model, "PHOTOS", *out_dir, *options])}',
    ]


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    parser.add_argument('config', help='config file')
    resume = (
        'continue from a checkpoint; without a value from the newest in the work dir, or anew'
        ' if there is none'
    )
    parser.add_argument('--resume', nargs='?', const='auto', metavar='CHECKPOINT', help=resume)
    parser.add_argument(
        '--amp', action='store_true', help='mixed precision: float16 on a GPU, bfloat16 on a CPU'
    )
    parser.add_argument(
        '--amp-dtype', choices=plain.AMP_DTYPES, help='use mixed precision of this type'
    )
    parser.add_argument(
        '--auto-scale-lr', action='store_true', help='scale the learning rate with the batch size'
    )
    parser.add_argument(
        '--no-progress', action='store_true', help='show no progress bar below the log'
    )
    cli.add_run_arguments(parser)
    parser.checks.append(check)
    args = parser.parse_args(argv)
    from mmengine.dist import is_main_process

    from cpvt_backbones.engine.launch import train

    options = dict(amp=args.amp or args.amp_dtype is not None, amp_dtype=args.amp_dtype)
    options |= dict(auto_scale_lr=args.auto_scale_lr, progress=not args.no_progress)
    cfg = cli.config_from(args)
    work_dir = cfg.work_dir
    train(cfg, resume=args.resume, **options)
    if is_main_process():
        cli.print_next(*next_commands(args, work_dir))

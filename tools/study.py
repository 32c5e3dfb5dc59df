"""Compare position encodings: train each alike on small images, test at larger sizes, judge the paper's claims.

python tools/study.py positional-encoding --data data/imagenette --budget 600
python tools/study.py positional-encoding --report   # CSV, plots and Markdown again, from what is there
Interrupt it at any time; the same command goes on. Started twice, two processes share the work.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from _common import ROOT
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from cpvt_backbones.analysis.files import fill_marked
from cpvt_backbones.analysis.study import Plan, Run, Study, Wanted, seconds_per_iteration
from cpvt_backbones.analysis.study_report import draw_sizes, draw_variants, report
from cpvt_backbones.analysis.study_rows import write_rows, write_runs
from cpvt_backbones.engine.launch import AMP_DTYPES, read_config

MAIN = ('none', 'sincos', 'learned', 'peg-0', 'peg-0-5', 'peg-0-5-gap')
OTHERS = (
    'peg-0-frozen',
    'peg-before',
    'peg-before-k27',
    'conv1x1-x12',
    'peg-0-unpadded',
    'none-gap',
    'learned-gap',
    'peg-0-gap',
    'relative',
    'peg-3',
    'peg-0-x4',
    'learned-peg-0',
    'peg-0-qk',
    'peg-0-5-gap-distilled',
)
SIZES = (112, 128, 160, 192, 224)
IMAGES = ('.webp', '.jpg', '.jpeg', '.png')


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('study', choices=['positional-encoding'])
    parser.add_argument('--data', type=Path, default=Path('data/imagenette'), help='folder with train/ and val/')
    parser.add_argument(
        '--budget', type=float, metavar='MINUTES', help='as many epochs as fit, on this machine, one process'
    )
    parser.add_argument('--epochs', type=int, help='length of each training, instead of --budget')
    parser.add_argument(
        '--variants', nargs='+', choices=(*MAIN, *OTHERS), metavar='NAME', help=f'default: all: {[*MAIN, *OTHERS]}'
    )
    parser.add_argument('--seeds', type=int, default=3, help=f'of the main rows, {list(MAIN)}; default: %(default)s')
    parser.add_argument('--other-seeds', type=int, default=1, help='of the other rows; default: %(default)s')
    parser.add_argument('--batch-size', type=int, default=64, help='default: %(default)s')
    parser.add_argument('--amp-dtype', choices=AMP_DTYPES, help='mixed precision')
    parser.add_argument('--out', type=Path, default=Path('work_dirs/positional-encoding'), help='default: %(default)s')
    parser.add_argument('--report', action='store_true', help='train nothing, write the report of what is there')
    parser.add_argument('--docs', type=Path, metavar='PAGE.md', help='page whose marked part becomes the report')
    args = parser.parse_args(argv)
    if not (args.budget or args.epochs or args.report or (args.out / 'plan.json').exists()):
        parser.error(f'--budget or --epochs: no study was begun in {args.out} yet, one of them must say how long')
    if args.seeds < 1 or args.other_seeds < 1:
        parser.error('--seeds and --other-seeds must be at least 1')
    if args.budget and args.epochs:
        parser.error('--budget chooses the epochs: give one of --budget and --epochs')
    if args.report:
        return args
    for split in ('train', 'val'):
        if not count(args.data / split):
            parser.error(f'--data: there are no images in {args.data / split}/<class>')
    for name in args.variants or (*MAIN, *OTHERS):
        teacher = read_config(config_file(name)).model.get('teacher', {}).get('checkpoint_path')
        if teacher and not Path(teacher).is_file():
            parser.error(f'--variants: {name} needs {teacher}: run tools/make_teacher.py, or leave it out')
    return args


def config_file(variant: str) -> Path:
    """The config of a variant."""
    return ROOT / f'configs/positional_encoding/{variant}_imagenette.py'


def count(folder: Path) -> int:
    """Images in the class folders of a split."""
    return sum(file.suffix.lower() in IMAGES for file in folder.glob('*/*'))


def wanted_runs(args: argparse.Namespace) -> Wanted:
    """(variant, seeds), the main rows first."""
    chosen = args.variants or (*MAIN, *OTHERS)
    main = [(name, list(range(args.seeds))) for name in MAIN if name in chosen]
    return main + [(name, list(range(args.other_seeds))) for name in OTHERS if name in chosen]


def make_plan(args: argparse.Namespace, epochs: int) -> Plan:
    """The plan that the command line describes."""
    return Plan(
        epochs=epochs,
        batch_size=args.batch_size,
        train_size=SIZES[0],
        sizes=SIZES,
        rate_factors=(0.5, 1.0, 2.0),
        tuned=('learned',),
        data_root=str(args.data),
        amp_dtype=args.amp_dtype,
    )


def count_runs(plan: Plan, wanted: Wanted) -> int:
    """All trainings, those that choose a rate included."""
    return sum(len(seeds) + (name in plan.tuned) * (len(plan.rate_factors) - 1) for name, seeds in wanted)


def epochs_within(args: argparse.Namespace, config: Path, wanted: Wanted) -> int:
    """As many epochs as the budget allows, every run counted."""
    plan = make_plan(args, 1)
    seconds = seconds_per_iteration(config, plan, device='cuda' if torch.cuda.is_available() else 'cpu')
    runs = count_runs(plan, wanted)
    epoch, testing = plan.training_steps(count(args.data / 'train')), plan.test_steps(count(args.data / 'val'))
    epochs = int((args.budget * 60 / seconds / runs - testing) / epoch)
    if epochs < 1:
        needed = (testing + epoch) * runs * seconds / 60
        raise SystemExit(
            f'--budget: one epoch of {runs} runs takes about {needed:.0f} minutes here, got {args.budget:g}'
        )
    return epochs


def train(study: Study, wanted: Wanted, steps: float) -> None:
    """Do what is left of the study, with a bar, and a line whenever a run ends."""
    columns = [TextColumn('{task.description}'), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn()]
    left = study.left(wanted)
    with Progress(*columns) as bar:
        task = bar.add_task('study', total=left * steps)
        begun = time.monotonic()

        def progress(run: Run, amount: float) -> None:
            bar.update(task, advance=amount, description=run.name)

        def done(run: Run, record: dict[str, Any]) -> None:
            left = study.left(wanted)
            bar.update(task, total=bar.tasks[0].completed + left * steps)  # others may have done some
            pace = (time.monotonic() - begun) / bar.tasks[0].completed
            top1 = ', '.join(f'{row["top1"]:.1f} at {row["size"]}' for row in record['rows'])
            bar.console.print(
                f'{run.name}: {top1} px; {left} runs left, about {left * steps * pace / 3600:.1f} h of this process',
                soft_wrap=True,
            )

        study.work(wanted, progress=progress, done=done)


def write_report(study: Study, docs: Path | None) -> None:
    """The report in the study's folder, or the marked part of a page with what it shows in a folder beside it."""
    rows, size = study.rows(), study.plan.train_size
    if not rows:
        raise SystemExit(f'{study.folder}: no run is done yet')
    study.check_configs()
    study.add_shift_errors()
    rows = study.rows()
    folder = study.folder if docs is None else docs.with_suffix('')
    write_rows(rows, folder / 'positional_encoding.csv')
    write_runs(study.records(), folder / 'runs.csv')
    draw_sizes(rows, folder / 'sizes.png', size)
    draw_variants(rows, folder / 'variants.png', size)
    if docs is None:
        (folder / 'report.md').write_text(report(rows, size) + '\n', encoding='utf-8')
    else:
        fill_marked(docs, 'positional-encoding', report(rows, size, pictures=docs.stem))
    print(f'{folder}: report of {len(study.records())} runs')


def main(argv: Sequence[str] | None = None) -> None:
    """Train what is missing, then write the report."""
    args = parse_args(argv)
    wanted = wanted_runs(args)
    configs = {name: config_file(name) for name in (*MAIN, *OTHERS)}
    begun = (args.out / 'plan.json').exists()
    if begun or args.report:
        study = Study(folder=args.out, configs=configs, plan=make_plan(args, args.epochs) if args.epochs else None)
    else:
        epochs = args.epochs or epochs_within(args, configs[wanted[0][0]], wanted)
        study = Study(folder=args.out, configs=configs, plan=make_plan(args, epochs))
    if not args.report:
        plan = study.plan
        print(f'{args.out}: {count_runs(plan, wanted)} runs of {plan.epochs} epochs at {plan.train_size} px')
        images = {split: count(args.data / split) for split in ('train', 'val')}
        train(study, wanted, plan.training_steps(images['train']) + plan.test_steps(images['val']))
    write_report(study, args.docs)


if __name__ == '__main__':
    main()

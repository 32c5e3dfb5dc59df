"""Test the CPVT paper's claims about position encodings, in four stages.

    python projects/positional_encoding/run.py classify --data data/imagenette
    python projects/positional_encoding/run.py objects    # of Tiny ImageNet
    python projects/positional_encoding/run.py transfer
    python projects/positional_encoding/run.py report --docs docs/evidence

Interrupt a stage at any time and start it again to continue. Started several times, the processes
share the work.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchvision.datasets.folder import IMG_EXTENSIONS

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # for this project, where this file runs as a script
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for `benchmarks`

from cpvt.command_line import make_parser, positive, run
from cpvt_backbones.engine.launch import AMP_DTYPES
from cpvt_backbones.toolboxes import read_config
from positional_encoding.classify import Classification, epochs_within
from positional_encoding.objects import split_by_object
from positional_encoding.report import write_report
from positional_encoding.runs import Record, RunFolder
from positional_encoding.splits import write_splits
from positional_encoding.transfer import Transfer
from positional_encoding.variants import (
    DATA_SETS,
    ENCODINGS,
    TASKS,
    VARIANTS,
    classify_config,
    transfer_config,
)

TRANSFER_SIZES = [0.5, 1.0, 1.5, 2.0]


def main(argv: Sequence[str] | None = None) -> None:
    """Train what is missing, then write the report."""
    args = parse_args(argv)
    if args.stage == 'objects':
        split_by_object(args.work_dir / 'classify-tiny-imagenet')
    elif args.stage != 'report':
        train(classification(args) if args.stage == 'classify' else transfer(args))
    write_report(args.work_dir, args.docs)


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    common = argparse.ArgumentParser(add_help=False)
    work_dir = Path('work_dirs/positional_encoding')
    common.add_argument('--work-dir', type=Path, default=work_dir, help='default: %(default)s')
    common.add_argument(
        '--docs', type=Path, metavar='FOLDER', help='folder of the CSV files, plots and pages'
    )
    seeds = argparse.ArgumentParser(add_help=False)
    seeds.add_argument(
        '--seeds', type=positive, default=3, help='classify: of the main variants; default: 3'
    )
    parser = make_parser(__doc__)
    stages = parser.add_subparsers(
        dest='stage', required=True, metavar='classify | objects | transfer | report'
    )
    classify = stages.add_parser(
        'classify', parents=[common, seeds], help='train classifiers, test at larger sizes'
    )
    classify.add_argument(
        '--data', type=Path, default=Path('data/imagenette'), help='folder with train/ and val/'
    )
    about = 'tiny-imagenet: 50 classes of --data at 32 px; default: %(default)s'
    classify.add_argument('--data-set', choices=DATA_SETS, default='imagenette', help=about)
    length = classify.add_mutually_exclusive_group()
    length.add_argument('--epochs', type=positive, help='length of each training')
    length.add_argument(
        '--budget', type=float, metavar='MINUTES', help='as many epochs as fit here in one process'
    )
    about = f'default: all: {", ".join(VARIANTS)}'
    classify.add_argument(
        '--variants',
        nargs='+',
        choices=VARIANTS,
        default=list(VARIANTS),
        metavar='NAME',
        help=about,
    )
    classify.add_argument(
        '--other-seeds', type=positive, default=1, help='of the others; default: %(default)s'
    )
    classify.add_argument('--batch-size', type=positive, default=64, help='default: %(default)s')
    classify.add_argument('--amp-dtype', choices=AMP_DTYPES, help='mixed precision')
    about = 'split the accuracy of finished classifiers of Tiny ImageNet by the size of the object'
    stages.add_parser('objects', parents=[common], help=about)
    about = 'train segmentors and detectors, from scratch and from the classifiers'
    dense = stages.add_parser('transfer', parents=[common, seeds], help=about)
    dense.add_argument(
        '--tasks', nargs='+', choices=TASKS, default=list(TASKS), help='default: all'
    )
    dense.add_argument(
        '--images', type=positive, default=100, help='test images at most; default: %(default)s'
    )
    stages.add_parser(
        'report', parents=[common], help='write CSV files, tables, and plots from the finished runs'
    )
    return parser.parse_args(argv)


def classification(args: argparse.Namespace) -> Classification:
    """The stage of the classifiers.

    An error if images, a teacher, or the length of the trainings are missing.
    """
    tiny = args.data_set != 'imagenette'
    images = {split: count_images(args.data / split) for split in ('train', 'val')}
    if tiny:
        lists = write_splits(args.data)
        images = dict(train=lists['train'], val=lists['test'])
    chosen = sorted(args.variants, key=lambda name: VARIANTS[name].priority)
    configs = {name: classify_config(name) for name in chosen}
    for name, path in configs.items():
        teacher = read_config(path).model.get('teacher', {}).get('checkpoint_path')
        if teacher and not Path(teacher).is_file():
            raise FileNotFoundError(
                f'--variants: {name} needs {teacher}: run'
                ' projects/shipped_weights/make_teacher.py, or leave it out'
            )
    seeds = {
        name: range(args.seeds if VARIANTS[name].priority == 1 else args.other_seeds)
        for name in chosen
    }
    rates = {name: VARIANTS[name].rate_factors for name in chosen}
    folder, plan = args.work_dir / ('classify' + f'-{args.data_set}' * tiny), None
    if args.epochs or not (folder / 'plan.json').exists():
        settings = dict(
            batch_size=args.batch_size, data_root=str(args.data), amp_dtype=args.amp_dtype
        )
        plan = dict(epochs=args.epochs, sizes=DATA_SETS[args.data_set], **settings)
        if tiny:
            plan['data_set'] = args.data_set
        if args.budget:
            runs = sum(len(seeds[name]) + len(rates[name]) - 1 for name in chosen)
            plan['epochs'] = epochs_within(
                args.budget, configs[chosen[0]], plan, runs=runs, **images
            )
        elif not args.epochs:
            raise ValueError(
                f'--epochs or --budget: {folder} has no runs yet, so one of them is needed'
            )
    return Classification(folder, plan, configs, seeds, rates)


def count_images(folder: Path) -> int:
    """Images in the class folders of a split; ``ValueError`` if there are none."""
    count = sum(file.suffix.lower() in IMG_EXTENSIONS for file in folder.glob('*/*'))
    if not count:
        raise ValueError(f'--data: there are no images in {folder}/<class>')
    return count


def transfer(args: argparse.Namespace) -> Transfer:
    """The stage of the dense transfer; ``ValueError`` if a classifier has not been trained."""
    configs = {
        (task, encoding): transfer_config(task, encoding)
        for task in args.tasks
        for encoding in ENCODINGS
    }
    pretrained = {}
    for encoding, variant in ENCODINGS.items():
        for seed in range(args.seeds):
            classifier = args.work_dir / 'classify' / f'{variant}_seed-{seed}'
            if not (classifier / 'record.json').is_file():
                raise ValueError(
                    f'--work-dir: there is no finished run {classifier}; train it with `classify`'
                )
            pretrained[encoding, seed] = classifier / 'weights.pth'
    plan = dict(sizes=TRANSFER_SIZES, images=args.images)
    return Transfer(args.work_dir / 'transfer', plan, configs, pretrained, range(args.seeds))


def train(stage: RunFolder) -> None:
    """Finish all runs of a stage; print a line after each."""
    begun, before = time.monotonic(), stage.left()

    def done(run: Any, record: Record) -> None:
        left = stage.left()
        hours = (time.monotonic() - begun) / max(before - left, 1) * left / 3600
        shown = ', '.join(
            f'{row.get("top1", row.get("value")):.4g} at {row["size"]:g}' for row in record['rows']
        )
        print(f'{run.name}: {shown}; {left} runs left, about {hours:.1f} h', flush=True)

    print(f'{stage.folder}: {before} runs left; each writes console.log in its folder', flush=True)
    stage.work(done=done)


if __name__ == '__main__':
    run(main)

"""From classifiers to a segmentor and a detector: PEG beside a learned table, from scratch and pretrained, four sizes.

python tools/study.py positional-encoding ... --variants learned-gap peg-0-5-gap --other-seeds 3
python tools/dense_transfer.py --study work_dirs/positional-encoding --seeds 3
python tools/dense_transfer.py --report --docs docs/evidence.md
Interrupt it at any time; the same command goes on. Started twice, two processes share the work.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _common import ROOT

from cpvt_backbones.analysis.files import fill_marked
from cpvt_backbones.analysis.transfer import Transfer, draw_transfer, read_transfer, transfer_report, write_transfer

CONFIGS = {
    (task, encoding): ROOT / f'configs/dense_transfer/{task}_{encoding}_{data}.py'
    for task, data in (('semantic-fpn', 'camvid'), ('retinanet', 'bccd'))
    for encoding in ('peg', 'learned')
}
CLASSIFIERS = {'peg': 'peg-0-5-gap', 'learned': 'learned-gap'}


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        '--study',
        type=Path,
        default=Path('work_dirs/positional-encoding'),
        help=f'folder of the study whose runs {list(CLASSIFIERS.values())} are the classifiers; default: %(default)s',
    )
    parser.add_argument('--tasks', nargs='+', choices=sorted({task for task, _ in CONFIGS}), help='default: all')
    parser.add_argument('--seeds', type=int, default=3, help='default: %(default)s')
    parser.add_argument('--images', type=int, default=100, help='test images at most; default: %(default)s')
    parser.add_argument('--out', type=Path, default=Path('work_dirs/dense-transfer'), help='default: %(default)s')
    parser.add_argument('--report', action='store_true', help='train nothing, write the report of what is there')
    parser.add_argument('--docs', type=Path, metavar='PAGE.md', help='page whose marked part becomes the report')
    args = parser.parse_args(argv)
    for name in ('seeds', 'images'):
        if getattr(args, name) < 1:
            parser.error(f'--{name} must be at least 1, got {getattr(args, name)}')
    for weights in () if args.report else classifiers(args).values():
        run = weights.parent
        if not (run / 'record.json').is_file():
            parser.error(f'--study: {args.study} has no finished run {run.name}; train it with tools/study.py')
    return args


def classifiers(args: argparse.Namespace) -> dict[tuple[str, int], Path]:
    """The study's weights of each (encoding, seed)."""
    return {
        (encoding, seed): args.study / 'runs' / f'{variant}_seed-{seed}' / 'weights.pth'
        for encoding, variant in CLASSIFIERS.items()
        for seed in range(args.seeds)
    }


def train(transfer: Transfer, seeds: Sequence[int]) -> None:
    """Do what is left; a line whenever a run ends."""
    begun = time.monotonic()
    finished = 0

    def done(record: dict[str, Any]) -> None:
        nonlocal finished
        finished += 1
        left = len(transfer.left(seeds))
        hours = (time.monotonic() - begun) / finished * left / 3600
        shown = ', '.join(f'{row["value"]:.3g} at {row["size"]:g} x' for row in record['rows'])
        name = '_'.join(str(record[key]) for key in ('task', 'encoding', 'start', 'seed'))
        print(f'{name}: {record["rows"][0]["metric"]} {shown}; {left} runs left, about {hours:.1f} h of this process')

    left = len(transfer.left(seeds))
    print(f'{transfer.folder}: {left} of {len(transfer.runs(seeds))} runs to do; each writes console.log in its folder')
    transfer.work(seeds, done=done)


def write_report(transfer: Transfer, docs: Path | None) -> None:
    """The report in the folder, or the marked part of a page with what it shows in a folder beside it."""
    if not transfer.records():
        raise SystemExit(f'{transfer.folder}: no run is done yet')
    folder = transfer.folder if docs is None else docs.with_suffix('')
    table = folder / 'dense_transfer.csv'
    write_transfer(transfer.records(), table, folder / 'dense_transfer_runs.csv')
    rows = read_transfer(table)
    draw_transfer(rows, folder / 'dense_transfer.png')
    if docs is None:
        (folder / 'report.md').write_text(transfer_report(rows) + '\n', encoding='utf-8')
    else:
        fill_marked(docs, 'dense-transfer', transfer_report(rows, pictures=docs.stem))
    print(f'{folder}: report of {len(transfer.records())} runs')


def main(argv: Sequence[str] | None = None) -> None:
    """Train what is missing, then write the report."""
    args = parse_args(argv)
    configs = {key: path for key, path in CONFIGS.items() if not args.tasks or key[0] in args.tasks}
    weights = {} if args.report else classifiers(args)
    transfer = Transfer(folder=args.out, configs=configs, pretrained=weights, images=args.images)
    if not args.report:
        train(transfer, list(range(args.seeds)))
    write_report(transfer, args.docs)


if __name__ == '__main__':
    main()

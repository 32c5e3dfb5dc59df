"""Time backbones side by side, in turns, and write a CSV and a Markdown table.

python tools/benchmark.py --models cpvt_small timm_deit_small --sizes 224x224:8 800x1344:1 --out bench.csv
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.progress import Progress, TimeElapsedColumn, TimeRemainingColumn

from cpvt_backbones.analysis.benchmark import (
    DTYPES,
    MODES,
    Group,
    append_rows,
    describe_machine,
    markdown_table,
    measure_limits,
    read_rows,
    run_group,
)
from cpvt_backbones.analysis.contestants import CONTESTANTS


def parse_size(text: str) -> tuple[int, int, int]:
    """``HxW:batch`` to (H, W, batch)."""
    try:
        size, batch = text.split(':')
        height, width = size.split('x')
        return int(height), int(width), int(batch)
    except ValueError:
        raise argparse.ArgumentTypeError(f'--sizes takes HxW:batch, e.g. 800x1344:1, got {text!r}') from None


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        '--models',
        nargs='+',
        required=True,
        choices=sorted(CONTESTANTS),
        metavar='NAME',
        help=f'models of a group, the first is what the others are compared with: {list(CONTESTANTS)}',
    )
    parser.add_argument(
        '--sizes', nargs='+', type=parse_size, default=[(224, 224, 8), (800, 1344, 1)], metavar='HxW:BATCH'
    )
    parser.add_argument('--dtypes', nargs='+', choices=DTYPES, default=['fp32'])
    parser.add_argument('--modes', nargs='+', choices=MODES, default=['forward'])
    parser.add_argument('--compile', action='store_true', help='through torch.compile')
    parser.add_argument('--device', choices=('cpu', 'cuda'), default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument('--repeats', type=int, default=7, help='timed calls of each model')
    parser.add_argument(
        '--out',
        type=Path,
        default=Path('work_dirs/benchmark/benchmark.csv'),
        help='CSV; groups it already holds are not measured again',
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what is missing from the CSV, then print the table."""
    args = parse_args(argv)
    groups = [
        Group(height=h, width=w, batch=b, dtype=dtype, mode=mode, compiled=args.compile, device=args.device)
        for dtype in args.dtypes
        for mode in args.modes
        for h, w, b in args.sizes
    ]
    machine = ', '.join(f'{key} {value}' for key, value in describe_machine(args.device).items())
    calls = args.repeats + 1
    with Progress(*Progress.get_default_columns()[:3], TimeElapsedColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task('benchmark', total=len(groups) * len(args.models) * calls)
        for group in groups:
            done = {row.model for row in read_rows(args.out) if row.group == group}
            if done.issuperset(args.models):
                bar.advance(task, len(args.models) * calls)
                continue
            matmul_rate, bandwidth = measure_limits(args.device, group.dtype)
            bar.console.print(
                f'{group.height}x{group.width}:{group.batch} {group.dtype} {group.mode}: matmul '
                f'{matmul_rate / 1e9:.0f} GFLOP/s, copy {bandwidth / 1e9:.1f} GB/s'
            )
            append_rows(
                args.out,
                run_group(
                    args.models,
                    group,
                    repeats=args.repeats,
                    matmul_rate=matmul_rate,
                    progress=lambda: bar.advance(task),
                ),
            )
    rows = [row for row in read_rows(args.out) if row.model in args.models and row.group in groups]
    table = f'Measured on: {machine}\n\n{markdown_table(rows, reference=args.models[0])}'
    args.out.with_suffix('.md').write_text(table)
    print(table)
    print(f'written: {args.out} and {args.out.with_suffix(".md")}')


if __name__ == '__main__':
    main()

"""Time backbones side by side, in turns; write a CSV, Markdown tables and a plot.

python tools/benchmark.py --suite cpu --rounds 3 --out docs/benchmarks/cpu.csv --readme README.md
python tools/benchmark.py --suite gpu --rounds 3 --out docs/benchmarks/gpu.csv
python tools/benchmark.py --models timm_deit_small cpvt_small --sizes 224x224:8 800x1344:1 --out bench.csv
Every comparison of every round runs in a process of its own. What the CSV already holds is not measured again: an
interrupted run goes on where it was.
"""

import argparse
import re
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch
from rich.progress import Progress, TimeElapsedColumn, TimeRemainingColumn

from cpvt_backbones.analysis.benchmark import COMPILED
from cpvt_backbones.analysis.benchmark_plot import draw_speed
from cpvt_backbones.analysis.benchmark_rows import (
    DTYPES,
    MODES,
    Group,
    append_rows,
    markdown_table,
    peg_table,
    read_rows,
)
from cpvt_backbones.analysis.contestants import CONTESTANTS
from cpvt_backbones.analysis.files import fill_marked
from cpvt_backbones.analysis.suites import MEETINGS, RATIOS, Meeting, ratio_table, run_meeting

BEGIN, END = '<!-- benchmark: begin -->', '<!-- benchmark: end -->'


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
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument('--suite', choices=sorted(MEETINGS), help='a whole comparison, with the ratios read off it')
    what.add_argument(
        '--models',
        nargs='+',
        choices=[*sorted(CONTESTANTS), *(f'{name}{COMPILED}' for name in sorted(CONTESTANTS))],
        metavar='NAME',
        help='models of a group, the first is what the others are compared with, each by itself or, with '
        f'{COMPILED} behind its name, through torch.compile: {list(CONTESTANTS)}',
    )
    parser.add_argument(
        '--sizes', nargs='+', type=parse_size, default=[(224, 224, 8), (800, 1344, 1)], metavar='HxW:BATCH'
    )
    parser.add_argument('--dtypes', nargs='+', choices=DTYPES, default=['fp32'])
    parser.add_argument('--modes', nargs='+', choices=MODES, default=['forward'])
    parser.add_argument('--device', choices=('cpu', 'cuda'), default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument('--repeats', type=int, default=7, help='timed calls of each model (--models)')
    parser.add_argument('--rounds', type=int, default=1, help='times over; ratios are told as median, lowest, highest')
    parser.add_argument('--readme', type=Path, help=f'file whose part between {BEGIN} and {END} becomes the ratios')
    parser.add_argument(
        '--out', type=Path, default=Path('work_dirs/benchmark/benchmark.csv'), help='CSV; tables and plot go beside it'
    )
    args = parser.parse_args(argv)
    if args.rounds < 1:
        parser.error(f'--rounds must be at least 1, got {args.rounds}')
    if args.suite == 'gpu' and not torch.cuda.is_available():
        parser.error('--suite gpu needs a CUDA device, and torch finds none')
    if args.readme and not args.suite:
        parser.error('--readme needs --suite')
    if args.readme and not re.search(f'{BEGIN}.*{END}', args.readme.read_text(), re.DOTALL):
        parser.error(f'--readme: {args.readme} has no {BEGIN} ... {END}')
    return args


def meetings_of(args: argparse.Namespace) -> list[Meeting]:
    """What the command line asks for."""
    if args.suite:
        return list(MEETINGS[args.suite])
    return [
        Meeting(
            tuple(args.models),
            Group(
                height=h,
                width=w,
                batch=b,
                dtype=dtype,
                mode=mode,
                device=args.device,
                comparison=' / '.join(args.models),
            ),
            repeats=args.repeats,
        )
        for dtype in args.dtypes
        for mode in args.modes
        for h, w, b in args.sizes
    ]


def missing(meetings: Sequence[Meeting], out: Path, *, rounds: int) -> list[tuple[int, Meeting]]:
    """The rounds of meetings that the CSV lacks.

    Raises:
        ValueError: It holds others, or some models of a meeting but not all: those took no turns with the rest.
    """
    rows = read_rows(out)
    todo = []
    for number in range(1, rounds + 1):
        for meeting in meetings:
            done = {row.model for row in rows if (row.group, row.round) == (meeting.group, number)}
            if done not in (set(), set(meeting.models)):
                raise ValueError(
                    f'out: {out} holds {sorted(done)} in round {number} of "{meeting.group}", which took no turns with '
                    f'{sorted(set(meeting.models) ^ done)}; use another file'
                )
            if not done:
                todo.append((number, meeting))
    return todo


def measure(todo: Sequence[tuple[int, Meeting]], out: Path) -> None:
    """Measure rounds of meetings into the CSV."""
    columns = (*Progress.get_default_columns()[:3], TimeElapsedColumn(), TimeRemainingColumn())
    # A fresh process each: what a comparison finds in the heap and the page tables does not depend on the one before.
    pool = ProcessPoolExecutor(1, mp_context=get_context('spawn'), max_tasks_per_child=1)
    with Progress(*columns) as bar, pool:
        task = bar.add_task('benchmark', total=sum(len(m.models) * (m.repeats + 1) for _, m in todo))
        for number, meeting in todo:
            rows = pool.submit(run_meeting, meeting, number).result()
            append_rows(out, rows)
            bar.console.print(
                f'round {number}, {meeting.group}: '
                + ', '.join(f'{row.model} {row.seconds * 1e3:.0f} ms' for row in rows),
                soft_wrap=True,
            )
            bar.advance(task, len(meeting.models) * (meeting.repeats + 1))


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, then write the tables and the plot."""
    args = parse_args(argv)
    meetings = meetings_of(args)
    try:
        todo = missing(meetings, args.out, rounds=args.rounds)
    except ValueError as error:
        raise SystemExit(f'benchmark.py: {error}') from None
    measure(todo, args.out)
    groups = {meeting.group for meeting in meetings}
    rows = [row for row in read_rows(args.out) if row.group in groups and row.round <= args.rounds]
    machine = 'Measured on: ' + ' and '.join(sorted({row.machine for row in rows}))
    if args.rounds > 1:
        machine += f'; medians of {args.rounds} rounds (lowest-highest)'
    tables = markdown_table(rows)
    if args.suite:
        ratios = ratio_table(RATIOS[args.suite], rows)
        tables = f'{ratios}\n\n{peg_table(rows)}\n\n{tables}'
        if args.readme:
            fill_marked(args.readme, 'benchmark', f'{machine}.\n\n{ratios}')
    args.out.with_suffix('.md').write_text(f'{machine}.\n\n{tables}')
    draw_speed(rows, args.out.with_suffix('.png'))
    print(f'{machine}.\n\n{tables}')
    print(f'written: {args.out}, and beside it the tables (.md) and the plot (.png)')


if __name__ == '__main__':
    main()

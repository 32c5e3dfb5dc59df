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

from cpvt_backbones.analysis.benchmark import (
    COMPILED,
    DTYPES,
    MODES,
    Group,
    Row,
    append_rows,
    describe_machine,
    markdown_table,
    measure_limits,
    over_rounds,
    peg_share,
    read_rows,
)
from cpvt_backbones.analysis.contestants import CONTESTANTS
from cpvt_backbones.analysis.files import fill_marked
from cpvt_backbones.analysis.peg_speed import measure_peg, peg_speed_table
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
    parser.add_argument('--compile', action='store_true', help='all through torch.compile')
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
            Group(height=h, width=w, batch=b, dtype=dtype, mode=mode, compiled=args.compile, device=args.device),
            repeats=args.repeats,
        )
        for dtype in args.dtypes
        for mode in args.modes
        for h, w, b in args.sizes
    ]


def measure(meetings: Sequence[Meeting], out: Path, *, rounds: int) -> list[Row]:
    """Measure what is missing from the CSV; all rows of the meetings."""
    columns = (*Progress.get_default_columns()[:3], TimeElapsedColumn(), TimeRemainingColumn())
    # A fresh process each: what a comparison finds in the heap and the page tables does not depend on the one before.
    pool = ProcessPoolExecutor(1, mp_context=get_context('spawn'), max_tasks_per_child=1)
    with Progress(*columns) as bar, pool:
        task = bar.add_task('benchmark', total=rounds * sum(len(m.models) * (m.repeats + 1) for m in meetings))
        for number in range(1, rounds + 1):
            for meeting in meetings:
                group = meeting.group
                done = {row.model for row in read_rows(out) if row.group == group and row.round == number}
                if not done.issuperset(meeting.models):
                    rows = pool.submit(run_meeting, meeting, number).result()
                    append_rows(out, rows)
                    bar.console.print(
                        f'round {number}, {group}: '
                        + ', '.join(f'{row.model} {row.seconds * 1e3:.0f} ms' for row in rows),
                        soft_wrap=True,
                    )
                bar.advance(task, len(meeting.models) * (meeting.repeats + 1))
    wanted = {(model, meeting.group) for meeting in meetings for model in meeting.models}
    return [row for row in read_rows(out) if (row.model, row.group) in wanted and row.round <= rounds]


def peg_table(rows: Sequence[Row]) -> str:
    """The share of a forward call that the costliest PEG of each model takes, measured now."""
    lines = ['| one PEG, share of the forward call (at most 0.01) | | |', '| --- | --- | ---: |']
    told = set()
    for row in rows:
        group = row.group
        place = (row.model, group.height, group.width, group.batch)
        ours = row.model.startswith(('cpvt', 'pyramid_cpvt', 'multi_scale_cpvt'))
        eager = not group.compiled and not row.model.endswith(COMPILED)
        if ours and eager and group.mode == 'forward' and group.height < 2048 and place not in told:
            told.add(place)
            share = peg_share(row.model, group)
            lines.append(f'| {row.model} | {group.height} x {group.width}, batch {group.batch} | {share:.4f} |')
    return '\n'.join(lines)


def one_peg() -> str:
    """A PEG of CPVT-B on 200 MB of tokens, more than a GPU's cache: results and time of its implementations."""
    _, bandwidth = measure_limits('cuda', 'bf16')
    setting = dict(batch=8, grid=(128, 128), dim=768, dtype=torch.bfloat16, device='cuda')
    return peg_speed_table(list(measure_peg(**setting, bandwidth=bandwidth)))


def plot(rows: Sequence[Row], path: Path) -> None:
    """Bars of images a second, relative to the first model of each group."""
    from cpvt_backbones.analysis.benchmark_plot import draw_speed

    draw_speed(rows, path)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, then write the tables and the plot."""
    args = parse_args(argv)
    rows = measure(meetings_of(args), args.out, rounds=args.rounds)
    machine = 'Measured on: ' + ', '.join(f'{k} {v}' for k, v in describe_machine(rows[0].device).items())
    if args.rounds > 1:
        machine += f'; medians of {args.rounds} rounds (lowest-highest)'
    middle = over_rounds(rows)
    tables = markdown_table(middle)
    if args.suite:
        ratios = ratio_table(RATIOS[args.suite], rows)
        pegs = one_peg() if args.suite == 'gpu' else peg_table(middle)
        tables = f'{ratios}\n\n{pegs}\n\n{tables}'
        if args.readme:
            fill_marked(args.readme, 'benchmark', f'{machine}.\n\n{ratios}')
    args.out.with_suffix('.md').write_text(f'{machine}.\n\n{tables}')
    plot(middle, args.out.with_suffix('.png'))
    print(f'{machine}.\n\n{tables}')
    print(f'written: {args.out}, and beside it the tables (.md) and the plot (.png)')


if __name__ == '__main__':
    main()

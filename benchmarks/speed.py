"""Time backbones side by side, in turns; write a CSV and print tables.

    python benchmarks/speed.py --suite cpu --rounds 3 --out docs/benchmarks/cpu.csv \\
        --docs docs/speed.md --plot docs/benchmarks/cpu.png
    python benchmarks/speed.py --suite gpu --rounds 3 --out docs/benchmarks/gpu.csv
    python benchmarks/speed.py --models timm_deit_small cpvt_small \\
        --sizes 224x224:8 800x1344:1 --out bench.csv

Every case of every round runs in a process of its own. Rows that the CSV already holds are not
measured again, so an interrupted run continues where it stopped.
"""

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
import torch
from rich.console import Console
from rich.progress import track

# For `benchmarks`, where this file runs as a script.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import fill_marked, plots, report
from benchmarks.cases import DTYPES, MODES, SUITES, BenchmarkCase, Comparison, read_suite
from benchmarks.measure import measure_keeping_memory
from benchmarks.models import MODELS
from benchmarks.routes import ROUTES
from cpvt.command_line import make_parser, parse_counted_size, positive, run
from cpvt_backbones.errors import InputError


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    suites = sorted(path.stem for path in SUITES.glob('*.yaml'))
    what.add_argument('--suite', choices=suites, help='all cases of benchmarks/suites/NAME.yaml')
    names = [f'{name}{suffix}' for suffix in ('', *ROUTES) for name in sorted(MODELS)]
    about = (
        'models of one case, the first is the baseline; another runtime is a suffix,'
        f' {", ".join(ROUTES)}: '
    )
    what.add_argument(
        '--models', nargs='+', choices=names, metavar='NAME', help=about + ', '.join(MODELS)
    )
    form, sizes = 'HEIGHTxWIDTH:BATCH', [(224, 224, 8), (800, 1344, 1)]
    sized_batch = partial(parse_counted_size, form=form)
    parser.add_argument('--sizes', nargs='+', type=sized_batch, default=sizes, metavar=form)
    parser.add_argument('--dtypes', nargs='+', choices=DTYPES, default=['fp32'])
    parser.add_argument('--modes', nargs='+', choices=MODES, default=['forward'])
    parser.add_argument(
        '--device', choices=('cpu', 'cuda'), default='cuda' if torch.cuda.is_available() else 'cpu'
    )
    parser.add_argument(
        '--repeats', type=positive, default=7, help='timed calls of each model (--models)'
    )
    parser.add_argument(
        '--rounds', type=positive, default=1, help='repetitions; speeds as median, lowest, highest'
    )
    about = 'page whose part <!-- speed-SUITE: begin --> becomes the comparison with others'
    parser.add_argument('--docs', type=Path, metavar='FILE', help=about)
    parser.add_argument('--plot', type=Path, metavar='FILE', help='PNG of the times, with --suite')
    out = Path('work_dirs/benchmark/benchmark.csv')
    parser.add_argument('--out', type=Path, default=out, help='CSV')
    args = parser.parse_args(argv)
    if (args.docs or args.plot) and not args.suite:
        parser.error('--docs and --plot need --suite')
    mark = f'<!-- speed-{args.suite}: begin -->'
    if args.docs and mark not in args.docs.read_text(encoding='utf-8'):
        parser.error(f'--docs: {args.docs} must contain {mark}')
    return args


def cases_of(args: argparse.Namespace) -> tuple[list[BenchmarkCase], list[Comparison]]:
    """The cases of a command line, and what its suite compares."""
    if args.suite:
        return read_suite(args.suite)
    models, comparison = tuple(args.models), ' / '.join(args.models)
    return [
        BenchmarkCase(
            models, height, width, batch, comparison, dtype, mode, args.device, args.repeats
        )
        for dtype, mode, (height, width, batch) in product(args.dtypes, args.modes, args.sizes)
    ], []


def measure(todo: Sequence[tuple[int, BenchmarkCase]], out: Path) -> None:
    """Append rounds of cases to the CSV."""
    # A fresh process each, so that no case inherits the heap and the page tables of the one before.
    console = Console()
    with ProcessPoolExecutor(1, mp_context=get_context('spawn'), max_tasks_per_child=1) as pool:
        for number, case in track(todo, 'benchmark', console=console):
            rows = pool.submit(measure_keeping_memory, case, number).result()
            report.append_rows(out, pd.DataFrame(rows))
            times = ', '.join(f'{row["model"]} {row["seconds"] * 1e3:.0f} ms' for row in rows)
            console.print(f'round {number}, {case}: {times}', soft_wrap=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, then write the comparison and the plot, and print every case."""
    args = parse_args(argv)
    cases, compared = cases_of(args)
    todo = report.missing(cases, args.out, rounds=args.rounds)
    for number, case in todo:
        if case.device == 'cuda' and not torch.cuda.is_available():
            raise InputError(
                f'out: {args.out} lacks round {number} of "{case}", and torch finds no CUDA device'
                ' to measure it'
            )
    measure(todo, args.out)
    rows = report.read_rows(args.out)
    rows = pd.concat([case.select(rows[rows['round'] <= args.rounds]) for case in cases])
    machine = 'Measured on: ' + ' and '.join(sorted(rows['machine'].unique()))
    if args.rounds > 1:
        machine += f'. Medians of {args.rounds} rounds (lowest-highest)'
    if args.docs:
        table = report.comparison_table(compared, rows)
        linked = machine.replace('memory kept', '[memory kept](#freed-memory)')
        fill_marked(args.docs, f'speed-{args.suite}', f'{table}\n\n{linked}.')
    if args.plot:
        plots.save_figure(report.draw_bars(compared, rows), args.plot)
    text = report.case_tables(rows)
    if args.suite:
        text = f'{report.peg_table(rows)}\n\n{text}'
    print(f'{machine}.\n\n{text}\nwritten: {args.out}')


if __name__ == '__main__':
    run(main)

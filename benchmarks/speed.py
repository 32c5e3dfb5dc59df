"""Time backbones side by side, in turns; write a CSV and Markdown tables.

    python benchmarks/speed.py --suite cpu --rounds 3 --out docs/benchmarks/cpu.csv \\
        --docs docs/speed.md docs/benchmarks/details.md
    python benchmarks/speed.py --suite gpu --rounds 3 --out docs/benchmarks/gpu.csv
    python benchmarks/speed.py --models timm_deit_small cpvt_small \\
        --sizes 224x224:8 800x1344:1 --out bench.csv

Every case of every round runs in a process of its own. Rows that the CSV already holds are not
measured again, so an interrupted run continues where it stopped.
"""

import argparse
import os
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

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # for `benchmarks`, where this file runs as a script

from benchmarks import fill_marked, plots, report
from benchmarks.cases import DTYPES, MODES, SUITES, BenchmarkCase, Ratio, read_bars, read_suite
from benchmarks.measure import measure_keeping_memory
from benchmarks.models import MODELS
from benchmarks.routes import ROUTES
from cpvt.command_line import make_parser, parse_counted_size, positive, run
from cpvt_backbones.errors import InputError

PART, PLOTTED = 'benchmark', '-plot'
"""The marked part of a page that gets the ratios, and the end of the name of one that gets bars."""


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    suites = sorted(path.stem for path in SUITES.glob('*.yaml'))
    what.add_argument(
        '--suite', choices=suites, help='all cases of benchmarks/suites/NAME.yaml, and its ratios'
    )
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
        '--rounds', type=positive, default=1, help='repetitions; ratios as median, lowest, highest'
    )
    about = (
        f'pages whose part <!-- {PART}-SUITE: begin --> (or {PART}) becomes the ratios, and'
        f' {PART}-SUITE{PLOTTED} a plot'
    )
    parser.add_argument('--docs', type=Path, nargs='+', default=[], metavar='FILE', help=about)
    out = Path('work_dirs/benchmark/benchmark.csv')
    parser.add_argument(
        '--out', type=Path, default=out, help='CSV; tables (and a plot for pages) get the same name'
    )
    args = parser.parse_args(argv)
    if args.docs and not args.suite:
        parser.error('--docs needs --suite')
    for page in args.docs:
        if not marked_parts(page, args.suite):
            parser.error(f'--docs: {page} must contain <!-- {PART}: begin -->')
    return args


def marked_parts(page: Path, suite: str) -> list[str]:
    """The parts of a page that a suite writes: those of its name, or else that of any."""
    text = page.read_text(encoding='utf-8')
    own = f'{PART}-{suite}'
    found = [part for part in (own, own + PLOTTED, PART) if f'<!-- {part}: begin -->' in text]
    return found if found == [PART] else [part for part in found if part != PART]


def cases_of(args: argparse.Namespace) -> tuple[list[BenchmarkCase], list[Ratio]]:
    """The cases of a command line, and the ratios of its suite."""
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


def fill_page(
    page: Path, suite: str, machine: str, ratios: list[Ratio], rows: pd.DataFrame, out: Path
) -> None:
    """Write the ratios into the marked parts of a page; draw the plot that it shows."""
    for part in marked_parts(page, suite):
        text = f'{machine}.\n\n{report.ratio_table(ratios, rows)}'
        if part.endswith(PLOTTED):
            picture = out.with_suffix('.png')
            figure = report.draw_bars(read_bars(suite), rows)
            plots.save_figure(figure, picture)
            plots.save_narrow(figure, picture)
            link = Path(os.path.relpath(picture, page.parent)).as_posix()
            text = f'![Milliseconds a call of this package and of others]({link})'
        fill_marked(page, part, text)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, then write the tables and the plot."""
    args = parse_args(argv)
    cases, ratios = cases_of(args)
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
    for page in args.docs:
        fill_page(page, args.suite, machine, ratios, rows, args.out)
    text = report.case_tables(rows)
    if args.suite:
        text = f'{report.ratio_table(ratios, rows)}\n\n{report.peg_table(rows)}\n\n{text}'
    text = f'{machine}.\n\n{text}'
    args.out.with_suffix('.md').write_text(text)
    print(f'{text}\nwritten: {args.out} and the tables (.md)')


if __name__ == '__main__':
    run(main)

"""What the benchmarks of single layers share: the command line, and ways that take turns."""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path

import torch

from cpvt.command_line import keep_memory, make_parser, positive

from . import instructions, processor


def parse_args(
    about: str | None,
    argv: Sequence[str] | None,
    *,
    repeats: int,
    folders: Mapping[str, str] | None = None,
    choices: Mapping[str, Sequence[str]] | None = None,
    **flags: str,
) -> argparse.Namespace:
    """Read ``--out``, ``--repeats`` and ``--threads``; freed memory is kept from here on.

    folders: Help of each option that takes a folder, by its name; ``None`` without the option.
    choices: Values of each option that takes one of them, by its name; the first is the default.
    flags: Help of each further flag, by its name.
    """
    parser = make_parser(about)
    for name, text in (folders or {}).items():
        parser.add_argument(f'--{name}', type=Path, metavar='FOLDER', help=text)
    for name, values in (choices or {}).items():
        parser.add_argument(f'--{name}', choices=values, default=values[0])
    for name, text in flags.items():
        parser.add_argument(f'--{name}', action='store_true', help=text)
    parser.add_argument('--out', type=Path, required=True, metavar='FILE.csv')
    parser.add_argument('--repeats', type=positive, default=repeats, help='default: %(default)s')
    parser.add_argument(
        '--threads', type=positive, default=torch.get_num_threads(), help='default: %(default)s'
    )
    args = parser.parse_args(argv)
    if not args.out.parent.is_dir():
        raise NotADirectoryError(f'out: {str(args.out.parent)!r} is not a folder')
    for name in folders or {}:
        folder = getattr(args, name)
        if folder is not None and not folder.is_dir():
            raise NotADirectoryError(f'{name}: {str(folder)!r} is not a folder')
    keep_memory()
    torch.set_num_threads(args.threads)
    return args


def machine() -> str:
    """Processor, torch and date, for a row."""
    return f'{processor()}, {instructions()}, torch {torch.__version__}, {date.today()}'


def time_in_turns(ways: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each call of each way; a turn before the first warms up."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeats + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            if turn:
                times[name].append(time.perf_counter() - start)
    return times


def milliseconds(seconds: Sequence[float]) -> float:
    """Median."""
    return 1000 * statistics.median(seconds)

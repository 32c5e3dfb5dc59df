"""The tests of `make test` over versions of Python and torch, each in an environment of its own.

    python benchmarks/matrix.py [PYTHON:TORCH:TORCHVISION ...] [--folder FOLDER]

The table of docs/install.md is written anew; rows of pairs that were not run are kept. An
environment is removed when its tests have ended, so that there is one at a time (6 GB).
"""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from cpvt import command_line as cli
from cpvt_backbones.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / 'docs' / 'install.md'
DEFAULT = [f'{python}:2.11.0:0.26.0' for python in ('3.10', '3.11', '3.12', '3.13')]
DEFAULT += ['3.11:newest:newest', '3.13:newest:newest']
HEAD = ['| Python | torch | `make test` |', '| --- | --- | --- |']
TABLE = re.compile(r'(<!-- matrix: begin -->\n).*(<!-- matrix: end -->)', re.DOTALL)


def run_tests(interpreter: Path, log: Path) -> str:
    """pytest's last line, without its time; or how it ended."""
    # -W ignore: other packages warn of versions that they do not know yet.
    command = [str(interpreter), '-m', 'pytest', '-q', '-n', '2', '-W', 'ignore', '--tb', 'short']
    environment = {**os.environ, 'OMP_NUM_THREADS': '1'}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    log.write_text(done.stdout + done.stderr)
    counts = [line for line in done.stdout.splitlines() if re.search(r'\d+ (passed|failed)', line)]
    if not counts:
        return f'exit {done.returncode}'
    return re.sub(r',? \d+ warnings?|\s*in [\d.]+s.*|=', '', counts[-1]).strip()


def run(python: str, torch: str, vision: str, folder: Path) -> list[str]:
    """A row of the table."""
    pins = 'torch torchvision' if torch == 'newest' else f'torch=={torch} torchvision=={vision}'
    venv = folder / f'py{python}-torch{torch}'
    environment = {**os.environ, 'CPVT_VENV': str(venv), 'CPVT_TORCH': pins}
    interpreter = venv / 'bin' / 'python'
    try:
        made = subprocess.run(['tools/setup_env.sh', f'python{python}'], env=environment, cwd=ROOT)
        if made.returncode:
            return [python, torch, 'does not install']
        versions = 'import platform, torch; print(platform.python_version(), torch.__version__)'
        printed = subprocess.check_output([interpreter, '-c', versions], text=True)
        return [*printed.split(), run_tests(interpreter, folder / f'{venv.name}.log')]
    finally:
        shutil.rmtree(venv, ignore_errors=True)


def write(row: list[str]) -> None:
    """Add or replace a row of the page's table, in order of versions."""
    text = PAGE.read_text(encoding='utf-8')
    table = TABLE.search(text)
    assert table is not None, f'{PAGE} has no table to write'
    rows = {}
    for line in re.findall(r'^\| (\d\S* \| \S+ \| .*?) \|$', table[0], re.MULTILINE):
        cells = line.split(' | ')
        rows[tuple(cells[:2])] = cells
    rows[tuple(row[:2])] = row
    lines = [f'| {" | ".join(rows[key])} |' for key in sorted(rows, key=numbers_of)]
    machine = f'{platform.machine()} Linux, without compiled operators.'
    body = '\n'.join([machine, '', *HEAD, *lines, ''])
    PAGE.write_text(TABLE.sub(lambda found: found[1] + body + found[2], text), encoding='utf-8')


def numbers_of(versions: tuple[str, ...]) -> list[list[int]]:
    """Versions as numbers, so that 3.9 is before 3.10."""
    return [[int(number) for number in re.findall(r'\d+', version)] for version in versions]


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    parser.add_argument('versions', nargs='*', default=DEFAULT, metavar='PYTHON:TORCH:TORCHVISION')
    parser.add_argument(
        '--folder',
        type=Path,
        default=ROOT / 'work_dirs' / 'matrix',
        help='of environments and logs',
    )
    args = parser.parse_args(argv)
    for versions in args.versions:
        if versions.count(':') != 2:
            raise InputError(f'PYTHON:TORCH:TORCHVISION must be three versions, got {versions!r}')
    args.folder.mkdir(parents=True, exist_ok=True)
    for versions in args.versions:
        python, torch, vision = versions.split(':')
        row = run(python, torch, vision, args.folder.resolve())
        print(*row, sep=' | ', flush=True)
        write(row)


if __name__ == '__main__':
    cli.run(main)

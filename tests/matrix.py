"""The golden outputs and the quick tests over versions of Python and torch, each in an environment
of its own.

    python tests/matrix.py [PYTHON:TORCH:TORCHVISION ...] [--folder FOLDER]

The table of docs/install.md is written anew; rows of pairs that were not run are kept. An
environment is removed when its tests have ended, so that there is one at a time (6 GB).
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / 'docs' / 'install.md'
PAIRS = {'2.4.1': '0.19.1', '2.8.0': '0.23.0', '2.11.0': '0.26.0', 'newest': 'newest'}
DEFAULT = [f'{python}:2.11.0:0.26.0' for python in ('3.10', '3.11', '3.12', '3.13')]
DEFAULT += [f'3.11:{torch}:{vision}' for torch, vision in PAIRS.items() if torch != '2.11.0']
HEAD = ['| Python | torch | golden outputs | quick tests |', '| --- | --- | --- | --- |']


def outcome(command: list[str], environment: dict[str, str], log: Path) -> str:
    """pytest's last line, without its time; or the end of what it printed."""
    result = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    log.write_text(result.stdout + result.stderr)
    lines = [
        line for line in result.stdout.splitlines() if re.search(r'\d+ (passed|failed|error)', line)
    ]
    return (
        re.sub(r',? \d+ warnings?|\s*in [\d.]+s.*|=', '', lines[-1]).strip()
        if lines
        else f'exit {result.returncode}'
    )


def run(python: str, torch: str, vision: str, folder: Path) -> list[str]:
    """A row of the table."""
    pins = 'torch torchvision' if torch == 'newest' else f'torch=={torch} torchvision=={vision}'
    venv = folder / f'py{python}-torch{torch}'
    environment = {**os.environ, 'CPVT_VENV': str(venv), 'CPVT_TORCH': pins, 'OMP_NUM_THREADS': '1'}
    interpreter = venv / 'bin' / 'python'
    try:
        made = subprocess.run(['tools/setup_env.sh', f'python{python}'], env=environment, cwd=ROOT)
        if made.returncode:
            return [python, torch, 'does not install', '']
        versions = 'import platform, torch; print(platform.python_version(), torch.__version__)'
        found = subprocess.run(
            [interpreter, '-c', versions], capture_output=True, text=True, check=True
        ).stdout.split()
        quick = subprocess.run(
            ['make', '-s', 'quick'], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.split()
        pytest = [
            str(interpreter),
            '-m',
            'pytest',
            '-q',
            '-n',
            '0',
            '-W',
            'ignore',
            '--tb',
            'short',
        ]
        golden = outcome([*pytest, 'tests/golden'], environment, folder / f'{venv.name}-golden.log')
        tests = [name for name in quick if 'golden' not in name]
        return [
            *found,
            golden,
            outcome([*pytest, *tests], environment, folder / f'{venv.name}-quick.log'),
        ]
    finally:
        shutil.rmtree(venv, ignore_errors=True)


def write(row: list[str]) -> None:
    """Add or replace a row of the page's table, in order of versions."""
    text, table = (
        PAGE.read_text(encoding='utf-8'),
        re.compile(r'(<!-- matrix: begin -->\n).*(<!-- matrix: end -->)', re.S),
    )
    rows = {
        tuple(cells[:2]): cells
        for cells in re.findall(r'^\| (\d\S*) \| (\S+) \| (.*?) \| (.*?) \|$', text, re.M)
    }
    rows[tuple(row[:2])] = row
    numbers = sorted(
        rows, key=lambda key: [[int(n) for n in re.findall(r'\d+', version)] for version in key]
    )
    machine = f'{platform.machine()} Linux, without compiled operators.'
    lines = ['| ' + ' | '.join(rows[key]) + ' |' for key in numbers]
    body = '\n'.join([machine, '', *HEAD, *lines, ''])
    PAGE.write_text(table.sub(lambda found: found[1] + body + found[2], text), encoding='utf-8')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('versions', nargs='*', default=DEFAULT, metavar='PYTHON:TORCH:TORCHVISION')
    parser.add_argument(
        '--folder',
        type=Path,
        default=ROOT / 'work_dirs' / 'matrix',
        help='of environments and logs',
    )
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for versions in args.versions:
        row = run(*versions.split(':'), args.folder.resolve())
        print(*row, sep=' | ', flush=True)
        write(row)


if __name__ == '__main__':
    main()

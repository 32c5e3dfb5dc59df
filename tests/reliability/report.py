"""Run the tests behind every promise of docs/reliability.md and write the table there.

python tests/reliability/report.py --docs docs/reliability.md      # a quarter of an hour
python tests/reliability/report.py --docs docs/reliability.md --recorded   # from the CSV alone

The CSV beside the page, of its name, is the record.
"""

import argparse
import platform
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pandas as pd
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for `benchmarks`

from benchmarks import fill_marked, processor

ROOT = Path(__file__).resolve().parents[2]
# Promise and the tests that check it, as arguments of pytest.
PROMISES: dict[str, str] = {
    'No checkpoint runs code, through any tool or loader': (
        'tests/checkpoints/test_hostile.py tests/tools/test_damaged_checkpoints.py'
    ),
    'A checkpoint is read completely or refused by name': (
        'tests/checkpoints/test_reading.py tests/tools/test_damaged_checkpoints.py'
    ),
    'A resume refuses edited states, and follows a new batch size and schedule': (
        'tests/engine/test_resume_safety.py tests/engine/test_resuming.py'
    ),
    'A training killed at any moment resumes and ends with the same weights': (
        'tests/reliability/test_interrupted_training.py -k killed'
    ),
    'Signals, full disks, damaged checkpoints and moved folders lose no training': (
        'tests/reliability/test_interrupted_training.py -k "not killed"'
    ),
    'A prediction killed at any moment resumes byte-equal': (
        'tests/reliability/test_prediction.py -k killed'
    ),
    'Runs of one folder exclude each other; no file of the user is deleted': (
        'tests/inference/test_folders.py tests/inference/test_shards.py'
    ),
    'Memory stays flat over images of many sizes': 'tests/reliability/test_prediction.py -k memory',
    'No image file stops a folder, and each failure has a reason': (
        'tests/inference/test_images.py tests/inference/test_folder_damage.py'
    ),
    'A prediction does not depend on the other images of its batch': (
        'tests/backbones/test_valid_sizes.py tests/engine/test_predict_by_size.py'
    ),
    'Constructor arguments and image sizes: clear refusals, finite outputs': (
        'tests/reliability/test_fuzz.py'
    ),
    'An exported file computes what the model computes, at 36 sizes': (
        'tests/reliability/test_prediction.py -k exported'
    ),
    'A damaged exported file is refused by name': 'tests/export/test_exported.py -k damaged',
    'Every parameter is trained': 'tests/backbones/test_training.py -k unused',
}


def run(selection: str) -> tuple[int, int]:
    """Checks tried and held; a test counts once, or as often as its property ``tried`` says."""
    with tempfile.NamedTemporaryFile(suffix='.xml') as file:
        command = f'{sys.executable} -m pytest -q -p no:cacheprovider -m "slow or not slow"'
        command += f' --timeout 3600 --junitxml {file.name} {selection}'
        subprocess.run(command, shell=True, cwd=ROOT, check=False)
        cases = list(ET.parse(file.name).iter('testcase'))
    tried = held = 0
    for case in cases:
        if case.find('skipped') is not None:
            continue
        values = [one.get('value') for one in case.iter('property') if one.get('name') == 'tried']
        count = sum(map(int, values)) or 1
        tried += count
        held += 0 if case.find('failure') is not None or case.find('error') is not None else count
    if not tried:
        raise ValueError(f'no test matches {selection!r}')
    return tried, held


def run_all() -> pd.DataFrame:
    """A row for each promise: its tests, cases tried and held, and the machine."""
    rows = []
    for number, (promise, selection) in enumerate(PROMISES.items(), 1):
        print(f'[{number}/{len(PROMISES)}] {promise}', flush=True)
        tried, held = run(selection)
        rows.append(dict(promise=promise, tests=selection, tried=tried, held=held))
    versions = f'python {platform.python_version()}, torch {torch.__version__}'
    return pd.DataFrame(rows).assign(machine=f'Processor {processor()}, {versions}.')


def table(rows: pd.DataFrame) -> str:
    """The promises as Markdown, a line each: how many cases held, and the tests."""
    (machine,) = rows['machine'].unique()
    lines = ['| promise | cases that held | tests |', '| --- | ---: | --- |']
    lines += [promise_line(row) for row in rows.itertuples()]
    return f'{machine}\n\n' + '\n'.join(lines)


def promise_line(row: Any) -> str:
    """A promise; the number of cases tried stands beside that of those that held if it differs."""
    files = re.findall(r'\S+\.py', row.tests)
    links = ', '.join(f'[{Path(file).stem.removeprefix("test_")}](../{file})' for file in files)
    held = f'{row.held}' if row.held == row.tried else f'{row.held} of {row.tried}'
    return f'| {row.promise} | {held} | {links} |'


def main() -> None:
    """Run everything, or read the record, and write the table into the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        '--docs',
        type=Path,
        metavar='PAGE.md',
        required=True,
        help='page whose part "promises" becomes the table, with the CSV beside it',
    )
    parser.add_argument('--recorded', action='store_true', help='read the CSV, run nothing')
    args = parser.parse_args()
    record = args.docs.with_suffix('.csv')
    if not args.recorded:
        run_all().to_csv(record, index=False)
    text = table(pd.read_csv(record))
    print(text)
    fill_marked(args.docs, 'promises', text)


if __name__ == '__main__':
    main()

"""The command line of the benchmark, and the pages that it writes."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from benchmarks import speed

ROOT = Path(__file__).resolve().parents[2]


def test_models_of_the_command_line_are_a_comparison_of_their_own():
    comparisons = []
    for peer in ('timm_deit_tiny', 'cpvt_tiny_compiled'):
        (case,), ratios = speed.cases_of(
            speed.parse_args(['--models', 'cpvt_tiny', peer, '--sizes', '64x32:3'])
        )
        assert (case.height, case.width, case.batch, ratios) == (64, 32, 3, [])
        comparisons.append(case.comparison)
    assert comparisons == ['cpvt_tiny / timm_deit_tiny', 'cpvt_tiny / cpvt_tiny_compiled']


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (
            ['--models', 'cpvt_tiny', '--sizes', '64x64'],
            r"HEIGHTxWIDTH:BATCH is expected.*got '64x64'",
        ),
        (['--models', 'nobody'], 'invalid choice'),
        (['--models', 'cpvt_tiny', '--docs', 'README.md'], '--docs needs --suite'),
        (
            ['--suite', 'cpu', '--docs', str(ROOT / 'LICENSE')],
            'LICENSE must contain <!-- benchmark: begin --> or <!-- speed: begin -->',
        ),
        (['--suite', 'cpu', '--rounds', '0'], 'at least 1'),
    ],
)
def test_errors_of_the_command_line(words, message, capsys):
    with pytest.raises(SystemExit):
        speed.parse_args(words)
    assert re.search(message, capsys.readouterr().err)


class InThisProcess:
    """Executor that starts no process."""

    def __init__(self, *args, **kwargs):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *args):
        pass

    def submit(self, function, *args):
        return SimpleNamespace(result=lambda: function(*args))


WORDS = ['--models', 'cpvt_tiny', 'cpvt_tiny_gap', '--sizes', '32:1', '--repeats', '2', '--out']


def test_rows_are_measured_and_reported_once(tmp_path, monkeypatch):
    monkeypatch.setattr(speed, 'ProcessPoolExecutor', InThisProcess)
    monkeypatch.setattr('benchmarks.measure.measure_limits', lambda case: (1e9, 1e9))
    out = tmp_path / 'bench.csv'
    for _ in range(2):
        speed.main([*WORDS, str(out)])
        assert list(pd.read_csv(out)['model']) == ['cpvt_tiny', 'cpvt_tiny_gap']
    assert '| cpvt_tiny_gap |' in (tmp_path / 'bench.md').read_text()
    assert (tmp_path / 'bench.png').exists()


def script(*words, folder):
    command = [sys.executable, ROOT / 'benchmarks/speed.py', *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_runs_as_a_script_from_any_folder(tmp_path):
    done = script('--help', folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert 'usage: speed.py' in done.stdout


@pytest.mark.slow
def test_script_measures_in_a_process_of_its_own(tmp_path):
    done = script(*WORDS, 'bench.csv', folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(pd.read_csv(tmp_path / 'bench.csv')) == 2


def test_the_pages_show_the_committed_measurements(tmp_path, monkeypatch):
    monkeypatch.setattr(
        speed, 'measure', lambda todo, out: todo and pytest.fail(f'{out} lacks {todo}')
    )
    pages = [ROOT / name for name in ('README.md', 'docs/speed.md')]
    for page in (*pages, ROOT / 'docs/benchmarks/cpu.csv'):
        shutil.copy(page, tmp_path)
    copies = [tmp_path / page.name for page in pages]
    for copy in copies:
        copy.write_text(copy.read_text().replace('Measured on', 'To be measured on'))
    words = [
        '--suite',
        'cpu',
        '--rounds',
        '3',
        '--out',
        f'{tmp_path}/cpu.csv',
        '--docs',
        *map(str, copies),
    ]
    speed.main(words)
    assert [copy.read_text() for copy in copies] == [page.read_text() for page in pages]
    assert (tmp_path / 'cpu.md').read_text() == (ROOT / 'docs/benchmarks/cpu.md').read_text()

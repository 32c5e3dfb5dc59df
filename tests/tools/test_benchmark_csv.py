"""What the benchmark finds in its CSV is not measured again, and rows that took no turns never share a group."""

import importlib
import shutil
from pathlib import Path

import pytest

from cpvt_backbones.analysis.benchmark_rows import Group, Row, append_rows
from cpvt_backbones.analysis.suites import Meeting

FIRST = Meeting(('a', 'b'), Group(height=32, width=48, batch=2))
SECOND = Meeting(('a', 'b'), Group(height=64, width=48, batch=2))
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / 'tools'))
    return importlib.import_module('benchmark')


def rows(models, meeting, number):
    """Rows as a round of a meeting leaves them."""
    figures = [name for name, kind in Row.__annotations__.items() if kind is float]
    setting = {name: getattr(meeting.group, name) for name in Group.__dataclass_fields__}
    return [Row(model=model, **setting, round=number, **dict.fromkeys(figures, 1.0), machine='one') for model in models]


def test_only_what_is_missing_is_measured(tool, tmp_path):
    out = tmp_path / 'rows.csv'
    assert tool.missing([FIRST, SECOND], out, rounds=2) == [(1, FIRST), (1, SECOND), (2, FIRST), (2, SECOND)]
    append_rows(out, rows('ab', FIRST, 1))
    append_rows(out, rows('ba', SECOND, 2))
    assert tool.missing([FIRST, SECOND], out, rounds=2) == [(1, SECOND), (2, FIRST)]
    assert tool.missing([FIRST], out, rounds=1) == []


@pytest.mark.parametrize('models', ['a', 'abc'])
def test_other_models_of_the_same_group_are_refused(tool, tmp_path, models):
    out = tmp_path / 'rows.csv'
    append_rows(out, rows(models, FIRST, 1))
    with pytest.raises(ValueError, match=r'rows.csv holds .* in round 1 of "models, 32 x 48.*use another file'):
        tool.missing([FIRST], out, rounds=1)


def test_models_of_the_command_line_are_a_comparison_of_their_own(tool):
    groups = [
        tool.meetings_of(tool.parse_args(['--models', 'cpvt_tiny', peer, '--sizes', '64x64:1']))[0].group
        for peer in ('timm_deit_tiny', 'cpvt_tiny_compiled')
    ]
    assert [group.comparison for group in groups] == ['cpvt_tiny / timm_deit_tiny', 'cpvt_tiny / cpvt_tiny_compiled']


def test_the_pages_show_what_the_csv_says(tool, tmp_path, monkeypatch):
    monkeypatch.setattr(tool, 'measure', lambda todo, out: todo and pytest.fail(f'{out} lacks {todo}'))
    for name in ('README.md', 'docs/benchmarks/cpu.csv'):
        shutil.copy(ROOT / name, tmp_path)
    readme = (tmp_path / 'README.md').read_text()
    (tmp_path / 'README.md').write_text(readme.replace('reached', 'unknown'))
    tool.main(['--suite', 'cpu', '--rounds', '3', '--out', f'{tmp_path}/cpu.csv', '--readme', f'{tmp_path}/README.md'])
    assert (tmp_path / 'README.md').read_text() == readme
    assert (tmp_path / 'cpu.md').read_text() == (ROOT / 'docs/benchmarks/cpu.md').read_text()

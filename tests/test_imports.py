"""Imports between the package's folders, and between the package and the rest of the repository."""

from pathlib import Path

import pytest

cli = pytest.importorskip('importlinter.cli')
ROOT = Path(__file__).resolve().parents[1]


def test_imports_point_down_only(capsys):
    code = cli.lint_imports(config_filename=str(ROOT / 'pyproject.toml'), no_cache=True)
    assert code == 0, capsys.readouterr().out

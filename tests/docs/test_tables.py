"""The tables of measurements in docs are those of their CSV files."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]


def test_make_tables_changes_nothing(tmp_path):
    docs = shutil.copytree(ROOT / 'docs', tmp_path / 'docs')
    recipes = shutil.copy(ROOT / 'configs/README.md', tmp_path)
    pages = [*docs.rglob('*.md'), recipes]
    before = {page: page.read_text(encoding='utf-8') for page in map(Path, pages)}
    command = ['make', 'tables', f'DOCS={docs}', f'RECIPES={recipes}']
    command += [f'BIN={Path(sys.executable).parent}']
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    changed = [page for page, text in before.items() if page.read_text(encoding='utf-8') != text]
    assert changed == []

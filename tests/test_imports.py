"""Imports between the package's folders, and between the package and the rest of the repository."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_imports_point_down_only():
    pytest.importorskip('importlinter')
    # Not in this process: it configures logging, which closes the log files of others.
    command = [
        Path(sys.executable).with_name('lint-imports'),
        '--config',
        'pyproject.toml',
        '--no-cache',
    ]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr

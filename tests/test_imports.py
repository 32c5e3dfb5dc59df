"""Imports between the package's folders, and between the package and the rest of the repository."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_imports_point_down_only():
    pytest.importorskip('importlinter')
    # Not in this process: it configures logging, which closes the log files of others.
    lint = Path(sys.executable).with_name('lint-imports')
    command = [lint, '--config', 'pyproject.toml', '--no-cache']
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr


BELOW = dict(
    layers=('torch', 'cpvt_backbones.checks', 'cpvt_backbones.errors'),
    weights=('cpvt_backbones.errors', 'cpvt_backbones.plain'),
)


@pytest.mark.parametrize('folder', BELOW)
def test_layers_need_torch_alone_and_weights_nothing(folder):
    for path in sorted((ROOT / 'cpvt_backbones' / folder).rglob('*.py')):
        for node in ast.walk(ast.parse(path.read_text('utf-8'))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            for name in names:
                if name.partition('.')[0] in sys.stdlib_module_names:
                    continue
                accepted = (f'cpvt_backbones.{folder}', *BELOW[folder])
                assert any(f'{name}.'.startswith(f'{one}.') for one in accepted), (
                    f'{path.name}: {name}'
                )


def test_nothing_of_the_package_is_imported_by_a_string():
    """The contracts see ``import`` alone."""
    call = re.compile(r'(?:import_module|__import__|spec_from_file_location)\(([^)]*)')
    for path in sorted((ROOT / 'cpvt_backbones').rglob('*.py')):
        for arguments in call.findall(path.read_text('utf-8')):
            for name in ('cpvt_backbones', '__name__', '__package__'):
                assert name not in arguments, f'{path.name}: imports {arguments}'

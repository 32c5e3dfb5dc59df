"""Seeds, hypothesis settings and command lines of all tests, and how examples run."""

import gc
import os
import random
import runpy
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from mmengine.logging import MMLogger
from mmengine.visualization import Visualizer

from cpvt_backbones.layers import position

ROOT = Path(__file__).resolve().parent

settings.register_profile(
    'project',
    deadline=None,
    derandomize=True,
    max_examples=20,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile('project')

# Autograd starts its threads once, one for each device. Fake tensors add a device that is not
# there, and a process with such a thread cannot fork one that trains: before them, there is none to
# start.
torch.ones((), requires_grad=True).backward()

_modules = 0


def freeze_modules():
    """Keep garbage collections from passing over all modules, which takes a quarter of a second.

    mmengine's data sets collect, too.
    """
    global _modules
    if len(sys.modules) > _modules + 100:
        gc.collect()
        gc.freeze()
        _modules = len(sys.modules)


def pytest_collection_finish():
    freeze_modules()


@pytest.fixture(autouse=True)
def _seed():
    """Pipelines of the toolboxes draw from NumPy and `random`."""
    freeze_modules()
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path):
    """Import no module to look for examples where there is none."""
    found = yield
    examples = ROOT / 'cpvt_backbones' in file_path.parents
    if examples and found and '>>> ' in file_path.read_text(encoding='utf-8'):
        return found
    return [collector for collector in found if type(collector) is pytest.Module]


# Examples that build and compare graphs, for seconds.
LONG = ('export.exported.ExportedModel', 'export.formats.export', 'export.verification.verify')


def pytest_itemcollected(item):
    if isinstance(item, pytest.DoctestItem) and item.name.endswith(LONG):
        item.add_marker(pytest.mark.full)


@pytest.fixture(autouse=True)
def _example(request):
    """An example has what it imports, and a folder of its own."""
    if not isinstance(request.node, pytest.DoctestItem):
        return
    example = request.node.dtest
    example.globs = dict(__name__='__main__')
    if 'find_shipped' in example.docstring:
        pytest.importorskip('mmpretrain.datasets')  # prints when it is imported
    patch = request.getfixturevalue('monkeypatch')
    patch.chdir(request.getfixturevalue('tmp_path'))
    # It prints what is loaded.
    patch.setattr(MMLogger.get_current_instance(), 'disabled', True)
    # Encodings that an example registers are forgotten.
    patch.setattr(position, 'POSITIONS', dict(position.POSITIONS))


def forget(manager):
    manager._instance_dict.clear()
    for subclass in manager.__subclasses__():
        forget(subclass)


@pytest.fixture
def call(monkeypatch):
    """Run a tool as from the command line: ``call('train', 'config.py', '--amp')``.

    make_config.py times steps with ``estimate=True`` only, because they take seconds.
    """

    def call(tool, *arguments, estimate=False):
        if tool == 'make_config' and not estimate:
            arguments = ('--no-estimate', *arguments)
        path = ROOT / 'tools' / f'{tool}.py'
        # As in a process of its own: mmengine keeps visualizers and loggers by name. A run's logger
        # is named by the second of its start: the next run within that second would write to the
        # log of the one before.
        forget(Visualizer)
        forget(MMLogger)
        monkeypatch.setattr(sys, 'argv', [str(path), *map(str, arguments)])
        monkeypatch.syspath_prepend(str(path.parent))
        runpy.run_path(str(path), run_name='__main__')

    return call


@pytest.fixture
def refused(call, capsys):
    """Run a tool that must end with exit code 2; returns the line of its error.

    Of make_config.py, the rows of the table that say why stand before it.
    """

    def refused(tool, *arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            call(tool, *arguments)
        assert stop.value.code == 2
        printed = capsys.readouterr()
        (line,) = (line for line in printed.err.splitlines() if line.startswith('error: '))
        outcomes = ('skipped', 'altered', 'refused')
        rows = [row for row in printed.out.splitlines() if row.startswith(outcomes)]
        return '\n'.join([*rows, line])

    return refused


@pytest.fixture(scope='session')
def browser():
    """The Chromium of the system, or the one that the environment variable names."""
    sync_api = pytest.importorskip('playwright.sync_api')
    names = ('chromium', 'google-chrome')
    path = os.environ.get('CHROMIUM') or next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip('no Chromium: install it, or name it in the environment variable CHROMIUM')
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=['--no-sandbox'])
        yield browser
        browser.close()

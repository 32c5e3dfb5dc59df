"""Tiny data and tiny models, so that every command line can really run."""

import importlib
import sys
from pathlib import Path

import pytest
from digit_scenes import write_scenes
from mmengine.visualization import Visualizer

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope='session', autouse=True)
def _tools_are_importable():
    sys.path.insert(0, str(ROOT / 'tools'))
    yield
    sys.path.remove(str(ROOT / 'tools'))


@pytest.fixture(scope='session')
def scenes(tmp_path_factory):
    """Folder with a training set of 8 scenes and a held-out set of 2, of another size."""
    root = tmp_path_factory.mktemp('scenes')
    write_scenes(root=root, split='train', height=48, width=64, count=8)
    write_scenes(root=root, split='heldout', height=37, width=61, count=2)
    return root


def forget(manager):
    manager._instance_dict.clear()
    for subclass in manager.__subclasses__():
        forget(subclass)


@pytest.fixture
def call(monkeypatch):
    """Run a tool as from the command line: ``call('train', 'config.py', '--amp')``."""

    def run(tool, *arguments):
        # As in a process of its own: mmengine keeps visualizers by name, and hands the last one to whoever asks.
        forget(Visualizer)
        monkeypatch.setattr(sys, 'argv', [f'{tool}.py', *map(str, arguments)])
        importlib.import_module(tool).main()

    return run

"""Tiny data and tiny models, so that every command line can really run."""

import sys
from pathlib import Path

import pytest
from digit_scenes import write_scenes
from own_data_sets import CocoSet, MaskSet, YoloSet, class_folders, voc_pair

from cpvt_backbones.toolboxes import read_config

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope='session', autouse=True)
def _tools_are_importable():  # as when Python runs one of them
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


@pytest.fixture(autouse=True)
def _unformatted(monkeypatch):
    """Write configs without formatting, which takes longer than running a tiny model."""
    monkeypatch.setattr('yapf.yapflib.yapf_api.FormatCode', lambda text, **_: (text, True))


# -- a user's own data
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def table(capsys, call, tmp_path):
    """Run make_config.py, which writes ``mine.py``, and return the lines that it prints."""

    def table(*arguments):
        capsys.readouterr()
        call('make_config', *arguments, '--out', tmp_path / 'mine.py', '--overwrite')
        return capsys.readouterr().out

    return table


@pytest.fixture
def refuse(refused, tmp_path):
    """Run make_config.py, which must end with an error; returns its line."""
    out = ['--out', tmp_path / 'mine.py', '--overwrite']
    return lambda *arguments: refused('make_config', *arguments, *out)


@pytest.fixture
def config(tmp_path):
    """The config that :func:`table` has written."""
    return lambda: read_config(tmp_path / 'mine.py')


@pytest.fixture
def coco(tmp_path):
    pytest.importorskip('mmdet')
    return CocoSet(tmp_path)


@pytest.fixture
def voc(tmp_path):
    """A folder of ten images, in whose Annotations each has a box."""
    pytest.importorskip('mmdet')
    for i in range(10):
        voc_pair(tmp_path / 'voc', i)
    return tmp_path / 'voc'


@pytest.fixture
def yolo(tmp_path):
    pytest.importorskip('mmdet')
    return YoloSet(tmp_path)


@pytest.fixture
def masks(tmp_path):
    pytest.importorskip('mmseg')
    return MaskSet(tmp_path)


@pytest.fixture
def photos(tmp_path):
    """Two class folders of five images."""
    pytest.importorskip('mmpretrain')
    return class_folders(tmp_path / 'photos')

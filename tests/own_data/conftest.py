"""Tiny data sets of each form, and the command that makes configs of them."""

import pytest
from own_data_sets import CocoSet, MaskSet, YoloSet, class_folders, voc_pair

from cpvt_backbones.toolboxes import read_config


@pytest.fixture(autouse=True)
def _unformatted(monkeypatch):
    """Write configs without formatting, which takes longer than running a tiny model."""
    monkeypatch.setattr('yapf.yapflib.yapf_api.FormatCode', lambda text, **_: (text, True))


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

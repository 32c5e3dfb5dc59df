"""Tiny data and tiny models, so that every command line can really run."""

import pytest
from digit_scenes import write_scenes
from own_data_sets import class_folders


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


@pytest.fixture
def photos(tmp_path):
    """Two class folders of five images."""
    pytest.importorskip('mmpretrain')
    return class_folders(tmp_path / 'photos')

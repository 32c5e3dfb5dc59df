"""Tiny data and tiny models, so that every command line can really run."""

import pytest
import shape_data
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


@pytest.fixture
def own_data(tmp_path, monkeypatch):
    """Function that writes a small data set of a form; returns the arguments of make_config.py."""
    monkeypatch.chdir(tmp_path)
    scenes = shape_data.make_split(0, 'train', 6, objects=2)

    def own_data(form):
        pytest.importorskip(dict(folders='mmpretrain', coco='mmdet', masks='mmseg')[form])
        if form == 'folders':
            return ['folders', class_folders(tmp_path / 'photos')]
        shape_data.write_images(tmp_path / 'images', scenes)
        if form == 'masks':
            shape_data.class_maps(tmp_path / 'masks', scenes)
            return ['masks', 'images', 'masks']
        shape_data.coco_json(tmp_path / 'all.json', scenes, masks=True)
        return ['coco', 'all.json', 'images']

    return own_data

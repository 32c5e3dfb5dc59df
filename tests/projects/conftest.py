"""Small data and configs for the projects."""

import functools

import cv2
import numpy as np
import pytest
import torch
from any_size_vit.student import TABLE, Source
from mmengine.config import Config
from PIL import Image
from positional_encoding import runs
from tiny import COLUMN

from cpvt_backbones import CPVT

TINY = dict(arch=COLUMN, img_size=32, patch_size=8, pre_norm=True, activation='quick_gelu')


commit, environment = functools.cache(runs.current_commit), functools.cache(runs.environment)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Ask git and the compilers once, and skip yapf, which takes longer than a tiny training."""
    monkeypatch.setattr(runs, 'current_commit', commit)
    monkeypatch.setattr(runs, 'environment', environment)
    monkeypatch.setattr(Config, 'pretty_text', property(lambda self: str(self._cfg_dict.to_dict())))


@pytest.fixture
def image_folders(tmp_path):
    """``data/{train,val}/{0,1}/*.png``: noise, the second class brighter."""
    rng = np.random.default_rng(0)
    for split, count, side in (('train', 8, 36), ('val', 5, 48)):
        for label in range(2):
            folder = tmp_path / 'data' / split / str(label)
            folder.mkdir(parents=True)
            for index in range(count):
                image = rng.integers(0, 128, (side, side, 3), dtype=np.uint8) + np.uint8(60 * label)
                cv2.imwrite(str(folder / f'{index}.png'), image)
    return tmp_path / 'data'


@pytest.fixture
def write_config(tmp_path):
    """Write a dictionary as a config file."""

    def write(name, content):
        path = tmp_path / f'{name}.py'
        path.write_text('\n'.join(f'{key} = {value!r}' for key, value in content.items()))
        return path

    return write


@pytest.fixture
def source():
    torch.manual_seed(0)
    model = CPVT(**TINY, position=TABLE, out_type='raw')
    weights = {
        name.replace('pos_embed.0', 'pos_embed'): value
        for name, value in model.state_dict().items()
    }
    weights['pos_embed'] = torch.randn_like(weights['pos_embed'])
    return Source(TINY, weights, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


@pytest.fixture
def scenes(tmp_path):
    """Images (60, 80) with a bright part of class 3 on a dark one of class 1, and a column
    of void.
    """
    rng = np.random.default_rng(0)
    for part in ('train', 'test'):
        for index in range(12):
            border = 16 + 4 * index
            labels = np.where(np.arange(80) < border, 1, 3) * np.ones((60, 1), int)
            labels[:, -3:] = 11
            image = np.where(labels[..., None] == 1, 40, 200) + rng.integers(-20, 20, (60, 80, 3))
            for kind, content, suffix in (('images', image, 'jpg'), ('labels', labels, 'png')):
                file = tmp_path / 'scenes' / kind / part / f'{index:02}.{suffix}'
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(content.astype(np.uint8)).save(file)
    return tmp_path / 'scenes'

"""Small data and configs for the projects."""

import cv2
import numpy as np
import pytest
from mmengine.config import Config


@pytest.fixture(autouse=True)
def unformatted_configs(monkeypatch):
    """Skip yapf: to format a config takes longer than to train a tiny model."""
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

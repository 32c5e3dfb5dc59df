"""Small data for the projects."""

import itertools

import numpy as np
import pytest
from project_images import write_image


@pytest.fixture
def image_folders(tmp_path):
    """``data/{train,val}/{0,1}/*.png``: noise, the second class brighter."""
    rng = np.random.default_rng(0)
    for split, count, side in (('train', 8, 36), ('val', 5, 48)):
        for label, index in itertools.product(range(2), range(count)):
            noise = rng.integers(0, 128, (side, side, 3)) + 60 * label
            write_image(tmp_path / f'data/{split}/{label}/{index}.png', noise)
    return tmp_path / 'data'

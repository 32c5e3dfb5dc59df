"""Small data, and an interruption, for the projects."""

import functools
import itertools
from contextlib import contextmanager

import numpy as np
import pytest
from mmengine.config import Config
from positional_encoding import runs
from project_images import write_image

commit, environment = functools.cache(runs.current_commit), functools.cache(runs.environment)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Ask git and the compilers once; skip yapf and the garbage of each data set.

    Each takes longer than a tiny training.
    """
    monkeypatch.setattr(runs, 'current_commit', commit)
    monkeypatch.setattr(runs, 'environment', environment)
    monkeypatch.setattr(Config, 'pretty_text', property(lambda self: str(self._cfg_dict.to_dict())))
    monkeypatch.setattr('gc.collect', lambda *args: 0)


@pytest.fixture
def interrupted(monkeypatch):
    """Context that a ``KeyboardInterrupt`` ends at the ``number``-th call of a function."""

    @contextmanager
    def interrupted(owner, name, number):
        function, calls = getattr(owner, name), itertools.count(1)

        def counted(*arguments, **options):
            if next(calls) == number:
                raise KeyboardInterrupt
            return function(*arguments, **options)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(owner, name, counted)
            yield

    return interrupted


@pytest.fixture
def image_folders(tmp_path):
    """``data/{train,val}/{0,1}/*.png``: noise, the second class brighter."""
    rng = np.random.default_rng(0)
    for split, count, side in (('train', 8, 36), ('val', 5, 48)):
        for label, index in itertools.product(range(2), range(count)):
            noise = rng.integers(0, 128, (side, side, 3)) + 60 * label
            write_image(tmp_path / f'data/{split}/{label}/{index}.png', noise)
    return tmp_path / 'data'


@pytest.fixture
def scenes(tmp_path):
    """Images (60, 80) with a bright part of class 3 on a dark one of class 1, and a column
    of void.
    """
    rng = np.random.default_rng(0)
    for part, index in itertools.product(('train', 'test'), range(6)):
        labels = np.where(np.arange(80) < 16 + 8 * index, 1, 3) * np.ones((60, 1), int)
        labels[:, -3:] = 11
        image = np.where(labels[..., None] == 1, 40, 200) + rng.integers(-20, 20, (60, 80, 3))
        for kind, pixels, suffix in (('images', image, 'jpg'), ('labels', labels, 'png')):
            write_image(tmp_path / f'scenes/{kind}/{part}/{index:02}.{suffix}', pixels)
    return tmp_path / 'scenes'

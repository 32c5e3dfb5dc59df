"""What EpochSeedHook promises, it either keeps (tests/analysis/test_study.py resumes a run) or refuses to."""

import random
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.dataset import worker_init_fn
from mmengine.hooks import CheckpointHook
from mmengine.runner import EpochBasedTrainLoop
from torch.utils.data import DataLoader, Dataset

from cpvt_backbones.engine import EpochSeedHook


class Noise(Dataset):
    """As an augmentation draws."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return [random.random(), np.random.rand(), torch.rand(()).item()]


def runner(*, persistent=False, loop=EpochBasedTrainLoop, seed=3, epoch=2, hooks=(), loader=None):
    return SimpleNamespace(
        train_loop=object.__new__(loop),
        train_dataloader=loader or SimpleNamespace(persistent_workers=persistent, num_workers=0, worker_init_fn=None),
        hooks=hooks,
        seed=seed,
        epoch=epoch,
        rank=0,
    )


def drawn(hook, **options):
    hook.before_train_epoch(runner(**options))
    return torch.rand(3).tolist()


def test_an_epoch_draws_the_same_whatever_was_drawn_before():
    hook = EpochSeedHook()
    first = drawn(hook)
    torch.rand(100)
    assert drawn(hook) == first
    assert drawn(hook, epoch=3) != first
    assert drawn(hook, seed=4) != first


def test_what_would_break_the_promise_is_refused():
    hook = EpochSeedHook()
    hook.before_train(runner())
    with pytest.raises(ValueError, match='persistent_workers'):
        hook.before_train(runner(persistent=True))
    with pytest.raises(ValueError, match='by_epoch'):
        hook.before_train(runner(loop=type('Other', (), {})))
    with pytest.raises(ValueError, match='checkpoint.by_epoch must be True'):
        hook.before_train(runner(hooks=[CheckpointHook(by_epoch=False)]))
    hook.before_train(runner(hooks=[CheckpointHook(by_epoch=True)]))
    loader = DataLoader(Noise(), num_workers=1, worker_init_fn=print)
    with pytest.raises(ValueError, match="worker_init_fn must be mmengine's"):
        hook.before_train(runner(loader=loader))


def test_workers_draw_anew_each_epoch():
    def epochs(numbers):
        init = partial(worker_init_fn, num_workers=2, rank=0, seed=3)
        loader = DataLoader(Noise(), num_workers=2, worker_init_fn=init, collate_fn=list)
        hook = EpochSeedHook()
        hook.before_train(runner(loader=loader))
        drawn = []
        for epoch in numbers:
            hook.before_train_epoch(runner(loader=loader, epoch=epoch))
            drawn.append([number for batch in loader for one in batch for number in one])
        return drawn

    first, second, third = epochs((0, 1, 2))
    assert len({*first, *second, *third}) == len(first) * 3
    assert epochs((2,)) == [third]

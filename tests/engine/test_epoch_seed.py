"""What EpochSeedHook promises, it either keeps (tests/analysis/test_study.py resumes a run) or refuses to."""

from types import SimpleNamespace

import pytest
import torch
from mmengine.runner import EpochBasedTrainLoop

from cpvt_backbones.engine import EpochSeedHook


def runner(*, persistent=False, loop=EpochBasedTrainLoop, seed=3, epoch=2):
    return SimpleNamespace(
        train_loop=object.__new__(loop),
        train_dataloader=SimpleNamespace(persistent_workers=persistent),
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

"""Random numbers that a resumed training repeats."""

import random

import numpy as np
import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import EpochBasedTrainLoop, Runner


@HOOKS.register_module()
class EpochSeedHook(Hook):
    """Seeds every random generator at the start of each epoch with the run's seed and the epoch.

    mmengine restores weights, optimizer and schedule, but not the state of the generators. With this hook a training
    that was interrupted between two epochs, or within one, ends with the weights of an uninterrupted one.
    """

    priority = 'VERY_HIGH'

    def before_train(self, runner: Runner) -> None:
        """Refuse what would break the promise.

        Raises:
            ValueError: A loop by iterations; workers that outlive an epoch, whose generators are out of reach.
        """
        if not isinstance(runner.train_loop, EpochBasedTrainLoop):
            raise ValueError(f'train_cfg must be by_epoch with EpochSeedHook, got {type(runner.train_loop).__name__}')
        if runner.train_dataloader.persistent_workers:
            raise ValueError('train_dataloader.persistent_workers must be False with EpochSeedHook, got True')

    def before_train_epoch(self, runner: Runner) -> None:
        """Seed Python's, NumPy's and torch's generators."""
        seed = (runner.seed * 1_000_003 + runner.epoch * 1_009 + runner.rank) % 2**32
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)

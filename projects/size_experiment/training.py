"""Sampler and progress line of the experiment's trainings; list this module in
``custom_imports``.
"""

import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.registry import DATA_SAMPLERS, HOOKS
from torch.utils.data import Sampler

_MANY = 1_000_003


@DATA_SAMPLERS.register_module()
class PartSampler(Sampler):
    """``length`` samples an epoch, out of random orders of all samples, one after the other.

    Short epochs make frequent checkpoints. The order depends on the seed and the epoch alone.

    Args:
        dataset: Is sampled.
        length: Number of samples of an epoch.
        seed: Of the orders.
    """

    def __init__(self, dataset: Any, length: int, seed: int = 0) -> None:
        self.dataset, self.length, self.seed = dataset, length, seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the part; mmengine's loop calls this."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        total = len(self.dataset)
        begun = -1
        for position in range(self.epoch * self.length, (self.epoch + 1) * self.length):
            number, place = divmod(position, total)
            if number != begun:
                generator = torch.Generator().manual_seed(self.seed * _MANY + number)
                shuffled, begun = torch.randperm(total, generator=generator).tolist(), number
            yield shuffled[place]


@HOOKS.register_module()
class ProgressLine(Hook):
    """Print after each epoch when the run ends, and how long the runs after it take.

    To the standard error: the standard output of a run is its log.

    Args:
        name: Of the run.
        epochs_after: Number of epochs of all runs that follow.
    """

    def __init__(self, name: str, epochs_after: int) -> None:
        self.name, self.epochs_after = name, epochs_after

    def before_train_epoch(self, runner: Any) -> None:
        """Start the clock."""
        self.begun = time.monotonic()

    def after_train_epoch(self, runner: Any) -> None:
        """Print the line."""
        seconds = time.monotonic() - self.begun
        finished = runner.epoch + 1
        minutes = (runner.max_epochs - finished) * seconds / 60
        hours = self.epochs_after * seconds / 3600
        print(
            f'{self.name}: epoch {finished} of {runner.max_epochs}, {seconds:.0f} s;'
            f' trained in {minutes:.0f} min; the runs after it take {hours:.1f} h of one core',
            file=sys.stderr,
            flush=True,
        )

"""Estimates the time of a training on this machine from a few steps."""

import io
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.logging import MMLogger
from mmengine.model import BaseModel
from mmengine.optim import build_optim_wrapper
from mmengine.runner import Runner
from torch import nn

from cpvt_backbones.engine.workers import fit_to_workers

from .complexity import build_model
from .memory import synchronize

STEPS = 3
LIMIT = 20.0  # s
SMALL = 2  # small steps; the first also prepares buffers
FIRST = 2  # images of a small step; a norm of a map of one pixel fails on a single image


@dataclass(frozen=True)
class TrainingTime:
    """Time of a training.

    Attributes:
        seconds: Time of all iterations, without validation, checkpoints and start-up.
        iterations: Number of iterations.
        steps: Number of timed steps.
        images: Number of images in each timed step.
        device: Type of the device, such as ``'cpu'`` or ``'cuda'``.
        is_bound: True if a step was cut off: the training takes longer than ``seconds``.
    """

    seconds: float
    iterations: int
    steps: int
    images: int
    device: str
    is_bound: bool = False

    @property
    def about(self) -> str:
        """Describe the time, how it was measured and what it leaves out."""
        machine = torch.cuda.get_device_name() if self.device == 'cuda' else self.device.upper()
        if self.device == 'cpu':
            threads = torch.get_num_threads()
            machine = f'{threads} CPU {"thread" if threads == 1 else "threads"}'
        if self.is_bound:
            start, measured = 'more than', 'a step that was cut off'
        else:
            start = 'about'
            measured = '1 step' if self.steps == 1 else f'{self.steps} steps'
        images = '1 image' if self.images == 1 else f'{self.images} images'
        return (
            f'{start} {_rounded(self.seconds)} on this machine ({machine}), by {measured} of'
            f' {images}; validation and start-up are not included'
        )


def _rounded(seconds: float) -> str:
    """Format a time in the largest unit with a value of at least 1.5; two digits below 10."""
    units = dict(days=86400, h=3600, min=60, s=1)
    unit = next((name for name in units if seconds >= 1.5 * units[name]), 's')
    number = max(1.0, seconds / units[unit])
    return f'{number:.1f} {unit}' if number < 9.95 else f'{number:.0f} {unit}'


class _OverLimit(Exception):
    """Raised to stop a forward pass that takes too long."""


def estimate_training(
    cfg: Config, *, limit: float = LIMIT, clock: Callable[[], float] = time.perf_counter
) -> TrainingTime:
    """Estimate the time of a training from real steps: images, forward, backward, optimizer.

    The weights are random, so nothing is downloaded. Two small steps of two images come first. If
    whole batches would exceed the limit, the time of the second is scaled with the batch size. A
    forward pass is cut off at the limit.

    Args:
        cfg: Config of a training, from :func:`read_config`.
        limit: Limit in s; a step that would exceed it is not started.
        clock: Function that returns the time in s.

    Raises:
        Exception: Any error of a training, in data, model or memory.

    Examples:
        >>> from cpvt_backbones.analysis.training_time import (
        ...     estimate_training,
        ... )
        >>> from cpvt_backbones.toolboxes import read_config
        >>> cfg = read_config('mine/model.py')  # doctest: +SKIP
        >>> estimate_training(cfg).seconds  # doctest: +SKIP
        2460.5
    """
    with _silence():
        training = _Training(cfg, clock)
        batch = cfg.train_dataloader.batch_size
        iterations = _iterations(cfg, len(training.loader))
        until = clock() + limit
        times, is_bound = training.time_steps(training.small_loader, SMALL, until)
        images, times = min(FIRST, batch), times[-1:]
        if not is_bound:
            expected = sum(times[0]) * batch / images
            count = min(STEPS, iterations)
            whole, is_cut = training.time_steps(training.loader, count, until, expected)
            if whole and not is_cut:
                images, times = batch, whole
    load, step = (sum(part) / len(times) * batch / images for part in zip(*times, strict=True))
    workers = cfg.train_dataloader.get('num_workers', 0)
    seconds = iterations * _iteration(load, step, workers, training.device)
    return TrainingTime(seconds, iterations, len(times), images, training.device, is_bound=is_bound)


class _Training:
    """Data, model and optimizer of a config."""

    def __init__(self, cfg: Config, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.device = get_device()
        self.model: BaseModel = build_model(cfg).to(self.device).train()
        self.optimizer = build_optim_wrapper(self.model, cfg.optim_wrapper)
        options = fit_to_workers({**cfg.train_dataloader, 'num_workers': 0})
        self.loader = Runner.build_dataloader(options, seed=0)
        small = dict(dataset=self.loader.dataset, batch_size=min(FIRST, options['batch_size']))
        self.small_loader = Runner.build_dataloader({**options, **small}, seed=0)

    def time_steps(
        self, loader: Any, count: int, until: float, expected: float = 0
    ) -> tuple[list[tuple[float, float]], bool]:
        """Measure the seconds for loading each batch and for the step on it.

        A step starts only if ``expected`` seconds, or the time of the last step, are left. If the
        first step is cut off, its time so far is returned with ``True``.
        """
        times: list[tuple[float, float]] = []
        batches = _cycle(loader)
        while len(times) < count and self.clock() + expected <= until:
            begin = self.clock()
            batch = next(batches)
            loaded = self.clock()
            try:
                with self._cut_off(until):
                    self.model.train_step(batch, optim_wrapper=self.optimizer)
            except _OverLimit:
                cut_off = (loaded - begin, self.clock() - loaded)
                return times or [cut_off], not times
            synchronize(self.device)
            times.append((loaded - begin, self.clock() - loaded))
            expected = sum(times[-1])
        return times, False

    @contextmanager
    def _cut_off(self, until: float) -> Iterator[None]:
        def check(module: nn.Module, inputs: Any) -> None:
            if self.clock() > until:
                raise _OverLimit

        hooks = [module.register_forward_pre_hook(check) for module in self.model.modules()]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


@contextmanager
def _silence() -> Iterator[None]:
    """Hide what data sets print, optimizers log and losses warn of: the training shows it."""
    logger = MMLogger.get_current_instance()
    level = logger.level
    logger.setLevel('ERROR')
    try:
        with redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter('ignore')
            yield
    finally:
        logger.setLevel(level)


def _cycle(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def _iterations(cfg: Config, batches: int) -> int:
    """Return the iterations of a training with ``batches`` per pass over the data."""
    length: Mapping[str, Any] = cfg.train_cfg
    return int(length['max_iters'] if 'max_iters' in length else length['max_epochs'] * batches)


def _iteration(load: float, step: float, workers: int, device: str) -> float:
    """Return the seconds per iteration; on a CPU, workers share the cores with the step."""
    if not workers:
        return load + step
    if device == 'cpu':
        return load / torch.get_num_threads() + step
    return max(load / workers, step)

"""Estimates the time of a training on this machine from a few of its steps."""

import io
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from itertools import islice, pairwise
from statistics import mean
from typing import Any

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.logging import MMLogger
from mmengine.model import BaseModel
from mmengine.optim import build_optim_wrapper
from mmengine.runner import Runner
from mmengine.utils.dl_utils import set_multi_processing

from cpvt_backbones.engine.time_left import (
    LIMIT,
    MOST,
    count_validations,
    format_range,
    time_range,
)
from cpvt_backbones.engine.workers import fit_to_workers, share_batches

from .complexity import build_model
from .memory import synchronize


@dataclass(frozen=True)
class TrainingTime:
    """Time of a training with its validation, without start-up and checkpoints.

    Attributes:
        low: Lower end of the range in s.
        high: Upper end of the range in s.
        steps: Number of timed training steps.
        machine: Device, such as ``'2 CPU threads'``.
    """

    low: float
    high: float
    steps: int
    machine: str

    @property
    def about(self) -> str:
        """Describe the time and how it was measured."""
        span = format_range(self.low, self.high)
        steps = '1 step' if self.steps == 1 else f'{self.steps} steps'
        return f'about {span} with validation on this machine ({self.machine}), by {steps}'


def estimate_training(
    cfg: Config, *, limit: float = LIMIT, clock: Callable[[], float] = time.perf_counter
) -> TrainingTime:
    """Estimate the time of a training from real steps, with its data loaders and batches.

    The weights are random, so nothing is downloaded. The range is that of :func:`time_range`.

    Args:
        cfg: Config of a training, from :func:`read_config`.
        limit: Seconds after which no further training step starts; at least two do. If the ends of
            the range differ by more than a factor of 2, three times as long. A third is for
            validation.
        clock: Function that returns the time in s.

    Raises:
        Exception: Any error of a training, in data, model or memory.

    Examples:
        >>> from cpvt_backbones.analysis.training_time import (
        ...     estimate_training,
        ... )
        >>> from cpvt_backbones.toolboxes import read_config
        >>> cfg = read_config('mine/model.py')  # doctest: +SKIP
        >>> estimate_training(cfg).about  # doctest: +SKIP
        'about 36 to 44 min with validation on this machine (2 CPU threads), by 4 steps'
    """
    set_multi_processing()  # as a runner does; workers would hang in OpenCV's threads
    device = get_device()
    with _silence():
        model: BaseModel = build_model(cfg).to(device)
        optimizer = build_optim_wrapper(model, cfg.optim_wrapper)

        def times_of(
            loader: Any, step: Callable[[Any], Any], limit: float, longest: float
        ) -> list[float]:
            """Return the seconds of each step, with the loading of its batch, after the first.

            After ``limit`` s, only further steps of a wide range are timed, up to ``longest`` s.
            """
            times: list[float] = []
            marks: list[float] = []
            for batch in islice(_endless(loader), 1 + MOST):
                step(batch)
                synchronize(device)
                marks.append(clock())  # the first step also starts workers and prepares buffers
                times = [end - begin for begin, end in pairwise(marks)]
                if times and sum(times) >= (longest if _is_wide(times) else limit):
                    break
            return times

        model.train()
        loader = _build_loader(cfg.train_dataloader)
        times = times_of(loader, lambda batch: model.train_step(batch, optimizer), limit, 3 * limit)
        by_epoch = 'max_epochs' in cfg.train_cfg
        length = cfg.train_cfg['max_epochs' if by_epoch else 'max_iters']
        seconds = mean(times) * length * (len(loader) if by_epoch else 1)
        passes = count_validations(
            0,
            length,
            interval=cfg.train_cfg.get('val_interval', 1 if by_epoch else 1000),
            begin=cfg.train_cfg.get('val_begin', 1),
        )
        if passes and cfg.get('val_dataloader'):
            model.eval()
            loader = _build_loader(cfg.val_dataloader)
            with torch.no_grad():
                times_of_validation = times_of(loader, model.val_step, limit / 3, limit / 3)
            seconds += passes * len(loader) * mean(times_of_validation)
    low, high = time_range(times, seconds)
    threads = torch.get_num_threads()
    machine = f'{threads} CPU {"thread" if threads == 1 else "threads"}'
    if device == 'cuda':
        machine = torch.cuda.get_device_name()
    return TrainingTime(low, high, len(times), machine)


def _is_wide(times: list[float]) -> bool:
    """``True`` if the ends of the range differ by more than a factor of 2."""
    low, high = time_range(times, 1.0)
    return high > 2 * low


def _build_loader(options: Any) -> Any:
    loader = Runner.build_dataloader(fit_to_workers(options), seed=0)
    share_batches(loader)  # a worker without shared memory ends the estimate
    return loader


def _endless(loader: Any) -> Iterator[Any]:
    while len(loader):
        yield from loader


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

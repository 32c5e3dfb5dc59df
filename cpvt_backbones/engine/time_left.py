"""Time that a training takes, from its first iterations."""

import time
from collections.abc import Callable, Sequence
from statistics import mean, stdev
from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import EpochBasedTrainLoop

LIMIT = 12.0  # s after which enough iterations were timed
MOST = 50  # timed iterations
LEAST_SPREAD = 0.1  # share of the time by which the load of a machine changes it


def time_range(times: Sequence[float], seconds: float) -> tuple[float, float]:
    """Return the range of a time that was computed from the mean of timed iterations.

    It is two standard errors of the mean, and at least 10 %, to either side.

    Args:
        times: Seconds of each iteration.
        seconds: The computed time in s.
    """
    error = stdev(times) / len(times) ** 0.5 if len(times) > 1 else mean(times) / 4
    spread = max(LEAST_SPREAD, 2 * error / mean(times)) * seconds
    return max(0.0, seconds - spread), seconds + spread


def format_range(low: float, high: float) -> str:
    """Format a range in s, such as ``'9.8 to 12 min'``."""
    units = dict(days=86400, h=3600, min=60, s=1)
    unit = next((name for name in units if high >= 1.5 * units[name]), 's')
    ends = (low / units[unit], high / units[unit])
    first, last = (f'{end:.1f}' if end < 9.95 else f'{end:.0f}' for end in ends)
    return f'{last} {unit}' if first == last else f'{first} to {last} {unit}'


def count_validations(done: int, end: int, *, interval: int, begin: int = 1) -> int:
    """Count the validations of a training, as mmengine's loops make them.

    Args:
        done: Epochs or iterations that are over, with their validation.
        end: Epochs or iterations of the whole training; the last one is always validated.
        interval: Epochs or iterations from one validation to the next.
        begin: First epoch or iteration that may be validated.
    """
    done = max(done, begin - 1)
    return 0 if done >= end else (end - 1) // interval - done // interval + 1


class TimeLeftHook(Hook):
    """Logs after the first iterations how long the training will take.

    The first iteration is not counted, because it also starts workers and prepares buffers. The
    time of a validation is not known until one was made; then the line comes again.

    Args:
        clock: Function that returns the time in s.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._times: list[float] = []
        self._begin: float | None = None  # of the training, in s
        self._last: float | None = None  # end of the last iteration, in s
        self._validation: float | None = None  # s
        self._told = self._is_complete = False

    def before_train_epoch(self, runner: Any) -> None:
        """Note the start of the training."""
        if self._begin is None:
            self._begin = self._clock()

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """Time the iteration with the loading of its batch; log the line when enough are timed."""
        if self._is_complete:
            return
        now = self._clock()
        if self._last is not None:
            self._times.append(now - self._last)
        self._last = now
        assert self._begin is not None
        is_enough = now - self._begin >= LIMIT or len(self._times) >= MOST
        if self._times and is_enough and not self._told:
            self._tell(runner, runner.iter + 1)

    def before_val(self, runner: Any) -> None:
        """Note the start of a validation."""
        self._val_begin = self._clock()

    def after_val(self, runner: Any) -> None:
        """Do not count the validation as part of an iteration; log the line if it is the first."""
        self._validation = self._clock() - self._val_begin
        if self._last is not None:
            self._last += self._validation
        if self._times and not self._is_complete and _validations_left(runner):
            self._tell(runner, runner.iter)

    def _tell(self, runner: Any, done: int) -> None:
        each, count = mean(self._times), _validations_left(runner)
        seconds = each * (runner.max_iters - done) + (self._validation or 0) * count
        if seconds or count:
            runner.logger.info(
                f'iteration {done:,} of {runner.max_iters:,}: {each:.3g} s per iteration;'
                f' {self._describe(seconds, count)}'
            )
        self._told = True
        self._is_complete = not count or self._validation is not None

    def _describe(self, seconds: float, count: int) -> str:
        """Describe a time left, in s, and the number of validations that are left."""
        validations = '1 validation' if count == 1 else f'{count:,} validations'
        if not seconds:
            return f'{validations} left'
        left = f'about {format_range(*time_range(self._times, seconds))} left'
        if not count:
            return left
        if self._validation is None:
            return f'{left}, plus {validations}'
        return f'{left}, with {validations} of {format_range(self._validation, self._validation)}'


def _validations_left(runner: Any) -> int:
    if runner.val_loop is None:
        return 0
    loop = runner.train_loop
    by_epoch = isinstance(loop, EpochBasedTrainLoop)
    done, end = (loop.epoch, loop.max_epochs) if by_epoch else (loop.iter, loop.max_iters)
    return count_validations(done, end, interval=loop.val_interval, begin=loop.val_begin)

"""Finds the best checkpoint of a work directory, which may hold files of several trainings."""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mmengine.logging import print_log

from cpvt_backbones.text import printable

from ..report import shorten
from .opening import saved_state

_BEST = re.compile(r'best_(?P<metric>.+)_(?:epoch|iter)_(?P<step>\d+)')


@dataclass(frozen=True)
class _Saved:
    """A checkpoint of a training, with what it stores about itself.

    Args:
        file: Path of the checkpoint.
        experiment: Name of the training run; ``''`` if not stored.
        time: Stored text of the time of writing, and modification time of the file.
        iteration: Iteration; -1 if not stored.
        state: Best checkpoints and scores so far, by mmengine's keys.
    """

    file: Path
    experiment: str
    time: tuple[str, int]
    iteration: int
    state: Mapping[str, Any]

    @classmethod
    def of(cls, file: Path) -> '_Saved':
        meta, state = saved_state(file)
        iteration = meta.get('iter')
        return cls(
            file,
            str(meta.get('experiment_name') or ''),
            (str(meta.get('time') or ''), file.stat().st_mtime_ns),
            iteration if isinstance(iteration, int) else -1,
            state,
        )

    @property
    def metric(self) -> str:
        """Metric of a best checkpoint."""
        match = _BEST.fullmatch(self.file.stem)
        return match['metric'] if match else self.file.stem

    @property
    def score(self) -> float | None:
        """Best score of the metric so far."""
        return self.score_of(self.metric)

    def score_of(self, metric: str) -> float | None:
        """Return the best score of a metric so far; mmengine has other keys for several metrics."""
        keys = ('best_score', f'best_score_{metric}')
        found = [value for key, value in self.state.items() if key.replace('/', '_') in keys]
        return found[0] if found else None

    @property
    def step(self) -> int:
        """Epoch or iteration in the name of a best checkpoint."""
        match = _BEST.fullmatch(self.file.stem)
        return int(match['step']) if match else -1

    def is_not_before(self, other: '_Saved') -> bool:
        """``True`` if this file was written after another one of the same run, or with it."""
        is_later = self.time[1] >= other.time[1]
        if self.time[0] and other.time[0]:
            is_later = self.time[0] >= other.time[0]
        return is_later and self.iteration >= other.iteration


def best_checkpoint(folder: Path, newest: Path | None) -> Path | None:
    """Find the best checkpoint of the newest training in a folder.

    A resumed training counts as one training. The log names leftover best checkpoints: those of
    earlier trainings, and those that a killed training had replaced but not yet deleted.

    Args:
        folder: The work directory.
        newest: Its newest checkpoint; see :func:`newest_checkpoint`.

    Returns:
        The file; ``None`` if the training has no best checkpoint, or several for several metrics.
    """
    found = [_Saved.of(file) for file in sorted(folder.glob('best_*.pth'))]
    if not found:
        return None
    last = max(found, key=lambda one: one.time)
    if newest is not None and newest.is_file():
        last = _Saved.of(newest)
    own = [one for one in found if _is_of(one, last)]
    by_metric = {one.metric: one for one in sorted(own, key=lambda one: (one.iteration, one.step))}
    chosen = next(iter(by_metric.values())).file if len(by_metric) == 1 else None
    left = [one.file.name for one in found if one not in by_metric.values()]
    _report(folder, chosen or newest, left, [*by_metric])
    return chosen


def _is_of(best: _Saved, last: _Saved) -> bool:
    """``True`` if a best checkpoint belongs to the training of the last checkpoint."""
    if best.file == last.file or best.file.name in last.state.values():
        return True
    if best.experiment and best.experiment == last.experiment:
        return True
    # A resumed training has a new name, and stores the best score but not the file.
    if best.score is not None and best.score == last.score_of(best.metric):
        return True
    # Nothing is known about files without a run's name, such as converted ones.
    return not (best.experiment and last.experiment) or best.is_not_before(last)


def _report(folder: Path, taken: Path | None, left: Sequence[str], metrics: Sequence[str]) -> None:
    name = taken.name if taken else 'none'
    if left:
        _warn(
            f'{str(folder)!r} has {shorten([*left])} of an earlier or interrupted training;'
            f' {name} is taken'
        )
    if len(metrics) > 1:
        _warn(
            f'{str(folder)!r} has a best checkpoint for each of {shorten([*metrics])}; {name} is'
            ' taken: name a file to take another'
        )


@cache
def _warn(text: str) -> None:
    """Log a line once, because a command looks for its checkpoint several times."""
    print_log(printable(text), 'current', logging.WARNING)

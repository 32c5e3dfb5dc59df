"""Finds the file of a checkpoint by a name, an address or a folder.

A work directory may hold files of several trainings, and of trainings that were killed.
"""

import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from cpvt_backbones.checks import check_path
from cpvt_backbones.text import printable
from cpvt_backbones.weights import (
    ShippedWeights,
    named_models,
    shipped_weights,
    similar_names,
)

from ..report import CheckpointError, FetchError, shorten
from .opening import open_checkpoint, saved_state
from .sources import ACCEPTED, WEIGHTS, fetch, published_of, warn_once

POINTER = 'last_checkpoint'
INTERRUPTED = 'interrupted.pth'  # for preempted trainings; the next regular checkpoint replaces it
_BEST = re.compile(r'best_(?P<metric>.+)_(?:epoch|iter)_(?P<step>\d+)')
_STEP = re.compile(r'(epoch|iter)_(\d+)(?:\.pth)?')
_SUFFIXES = ('.safetensors', '.bin', '.pth', '.pt', '.ckpt')


def locate_checkpoint(checkpoint: str | PathLike[str], *, argument: str = 'checkpoint') -> Path:
    """Return the local file of a checkpoint; download it if needed.

    A checkpoint is one of:

    - a file, or the name of shipped weights;
    - the name of a published model of :func:`published_weights`, from torch's cache or the network;
    - ``timm://NAME``, a name of timm with or without its tag, from huggingface_hub's cache or the
      hub;
    - ``hf://USER/REPOSITORY`` or a file in it, from the same cache or the hub;
    - ``mmpretrain://NAME``, a name of its model zoo;
    - an ``https://`` address, from torch's cache or the network, with ``#sha256=<64 digits>`` to
      check it;
    - a folder or repository with a file of weights (``model.safetensors``, ``pytorch_model.bin``
      and others);
    - a work directory, for the best checkpoint of its newest training, or else its
      :func:`newest_checkpoint`. The log names best checkpoints of earlier trainings.

    Args:
        checkpoint: One of the above.
        argument: Name of the argument in error messages.

    Raises:
        FileNotFoundError: There is no such file or folder, or no checkpoint in the folder.
        CheckpointError: The scheme or the name is unknown, or a package is not installed.
        FetchError: The weights cannot be fetched; the message says where to put the file.

    Examples:
        >>> from cpvt_backbones.checkpoints import locate_checkpoint
        >>> locate_checkpoint('cpvt_tiny_gap-imagenette').name
        'cpvt_tiny_gap-imagenette.safetensors'
    """
    check_path(**{argument: checkpoint})
    if not str(checkpoint):
        raise CheckpointError(f"{argument} must be {ACCEPTED}, got ''")
    if '://' in str(checkpoint):
        # An address is in the message, without its query.
        is_address = str(checkpoint).startswith(('https:', 'http:'))
        with _naming(argument, '' if is_address else repr(checkpoint)):
            return fetch(str(checkpoint))
    named = named_models().get(str(checkpoint))
    if isinstance(named, ShippedWeights):
        return named.file
    path = Path(checkpoint).expanduser()
    if named is not None and not path.exists():
        size = f'{named.parameters * 4 / 1e6:,.0f} MB'
        with _naming(argument, f'{named.name!r} (about {size})'):
            return fetch(named.address)
    if path.is_dir():
        return _file_in(path, argument)
    if not path.is_file():
        fault = f'{argument}: there is no file or folder {str(checkpoint)!r}'
        raise FileNotFoundError(f'{fault}{_advice_on(path)}')
    return path


def _advice_on(missing: Path) -> str:
    """Return the most similar name, or from where a relative path starts, or the names."""
    if similar := similar_names(str(missing)):
        return similar
    if missing.is_absolute():
        return ''
    if missing.suffix in _SUFFIXES or len(missing.parts) > 1:
        return f' (the path starts from {os.getcwd()})'
    return (
        f', and no weights of that name come with the package (those are {list(shipped_weights())})'
    )


@contextmanager
def _naming(argument: str, value: str) -> Iterator[None]:
    """Context in which errors name the argument, and those of a download also its value."""
    try:
        yield
    except CheckpointError as error:
        problem = str(error).removeprefix('checkpoint')
        if value and isinstance(error, FetchError):
            problem = f': {value}{problem}'
        raise type(error)(f'{argument}{problem}') from error


def read_checkpoint(path: str | PathLike[str]) -> dict[str, Any]:
    """Read a checkpoint, weights only: nothing in the file is imported or run.

    Checksums in a ``.pth`` file are verified, and so is a SHA-256 in the name,
    ``name-<8 or 64 hex digits>.pth``.

    Args:
        path: ``.safetensors`` file, file of ``torch.save`` (``.pth``, ``.pt``, ``.bin``, ...),
            ``.index.json`` of several such files beside it, or anything else that
            :func:`locate_checkpoint` takes.

    Returns:
        Content of the file on the CPU: tensors, plain data, NumPy numbers and arrays, mmengine's
        log buffers. Paths become text, and parsed command lines ``None``. Stored configs are left
        out, because mmengine would run them.

    Raises:
        FileNotFoundError: There is no such file or folder, or no checkpoint in the folder.
        CheckpointError: The file is empty, damaged, no checkpoint, or would import something.

    Examples:
        >>> import torch
        >>> from cpvt_backbones.checkpoints import read_checkpoint
        >>> torch.save(dict(state_dict=dict(w=torch.zeros(3))), 'run.pth')
        >>> read_checkpoint('run.pth')['state_dict']['w']
        tensor([0., 0., 0.])
    """
    file = locate_checkpoint(path)
    try:
        return open_checkpoint(file)
    except CheckpointError as error:
        if '://' not in str(path) and published_of(str(path)) is None:
            raise
        advice = f'it is in a cache: delete {str(file.resolve())!r} to fetch it again'
        raise CheckpointError(f'{error}; {advice}') from error


def _file_in(folder: Path, argument: str) -> Path:
    """Return the first of ``WEIGHTS`` in a folder, or the checkpoint of a work directory.

    The latter is the best checkpoint of the newest training. Without a best one, or with several
    metrics, it is the newest checkpoint.
    """
    for name in WEIGHTS:
        if (folder / name).is_file():
            return folder / name
    fault: CheckpointError | None = None
    newest: Path | None = None
    skipped: list[str] = []
    try:
        newest = newest_checkpoint(folder, warn=skipped.append)
    except CheckpointError as error:  # the best checkpoint may be intact
        fault = error
    if best := best_checkpoint(folder, newest):
        return best
    for line in skipped:
        warnings.warn(line, stacklevel=2)
    if fault:
        raise fault
    if newest is not None and newest.is_file():
        return newest
    text = f'the folder {str(folder)!r} has no {POINTER!r}'
    if named := _pointer(folder):
        text = f'{str(folder / POINTER)!r} names {named!r}, which is not there'
    others = f'none of {", ".join(WEIGHTS)} and no file epoch_*.pth or iter_*.pth'
    names = [path.name for path in sorted(folder.iterdir()) if path.suffix in _SUFFIXES]
    advice = f'; pass one of its files: {shorten(names)}' if names else ''
    raise FileNotFoundError(f'{argument}: {text}, {others}{advice}')


def newest_checkpoint(
    work_dir: str | PathLike[str], *, warn: Callable[[str], object] = warnings.warn
) -> Path | None:
    """Find the newest readable checkpoint of a work directory, which may have been moved.

    It is the file named in ``last_checkpoint``, unless a later file has a higher iteration. A
    training that was killed between writing a checkpoint and writing the pointer leaves such a
    file. A file is later by its time, by a higher number in its name (clocks may be set back), or
    as that of a preempted training. The number does not count if another run wrote the file
    earlier, because a training may start anew in a folder with longer ones. Without a readable
    pointer, the readable checkpoint of the highest iteration is taken.

    Args:
        work_dir: The folder.
        warn: Called with one line for each checkpoint that cannot be read.

    Returns:
        The file, or the folder of a checkpoint of DeepSpeed; ``None`` without checkpoints.

    Raises:
        CheckpointError: There are checkpoints, but none can be read.

    Examples:
        >>> import torch
        >>> from cpvt_backbones.checkpoints import newest_checkpoint
        >>> for step in (9, 10):  # as a training writes them
        ...     content = dict(state_dict={}, meta=dict(iter=step))
        ...     torch.save(content, f'iter_{step}.pth')
        >>> newest_checkpoint('.').name
        'iter_10.pth'
    """
    folder = Path(work_dir)
    target = _pointed_at(folder)
    others = [
        path
        for pattern in ('epoch_*', 'iter_*', INTERRUPTED)
        for path in folder.glob(pattern)
        if path != target and (path.suffix == '.pth' or path.is_dir())
    ]
    if target is None and not others:
        return None
    newest: Path | None = None
    reached = -1
    if target is not None and (reached := _iteration(target, warn)) >= 0:
        newest, since = target, _changed(folder / POINTER)
        others = [path for path in others if _changed(path) > since or _follows(path, target)]
    for path in sorted(others, key=_changed, reverse=True):
        iteration = _iteration(path, warn)
        if iteration > reached:
            newest, reached = path, iteration
    if newest is None:
        advice = 'name another one, or move them away to train from the start'
        raise CheckpointError(
            f'work_dir: none of the checkpoints in {str(folder)!r} can be read; {advice}'
        )
    return newest


def _pointer(folder: Path) -> str:
    """Return the content of ``last_checkpoint`` in a folder; ``''`` without that file."""
    pointer = folder / POINTER
    return pointer.read_text('utf-8', 'replace').strip() if pointer.is_file() else ''


def _pointed_at(folder: Path) -> Path | None:
    """Return the checkpoint named in ``last_checkpoint``: in this folder, or at its old path."""
    named = Path(_pointer(folder))
    if named.name in ('', '..'):
        return None
    for path in (folder / named.name, named):
        if os.path.isfile(path):
            return path
        # A folder with the name of a checkpoint is one of DeepSpeed.
        is_step = os.path.isdir(path) and _STEP.fullmatch(path.name)
        if is_step and not os.path.samefile(path, folder):
            return path
    return None


def _changed(path: Path) -> int:
    return path.stat().st_mtime_ns


def _follows(path: Path, other: Path) -> bool:
    """``True`` for ``epoch_4.pth`` and ``epoch_3.pth``, and for files of preempted trainings.

    It is ``False`` if another run wrote the file earlier.
    """
    step, before = _STEP.fullmatch(path.name), _STEP.fullmatch(other.name)
    if not step or not before:
        return path.name == INTERRUPTED
    if step[1] != before[1] or int(step[2]) <= int(before[2]):
        return False
    if path.is_dir() or other.is_dir():  # of DeepSpeed
        return True
    ours, theirs = (saved_state(one)[0] for one in (path, other))
    is_same_run = ours.get('experiment_name') == theirs.get('experiment_name')
    return is_same_run or str(ours.get('time', '')) >= str(theirs.get('time', ''))


def _iteration(path: Path, warn: Callable[[str], object]) -> int:
    """Return the iteration of a checkpoint; warn and return -1 if it cannot be read."""
    if path.is_dir():  # DeepSpeed checks its files
        return int(''.join(filter(str.isdigit, path.stem)) or 0)
    try:
        meta = open_checkpoint(path).get('meta')
    except (CheckpointError, OSError) as error:
        warn(printable(f'{path} is skipped: {error}'))
        return -1
    if isinstance(meta, dict) and isinstance(meta.get('iter'), int):
        return meta['iter']
    why = 'it has no meta.iter, as the checkpoint of a training has'
    warn(printable(f'{path} is skipped: {why}'))
    return -1


# -- the best checkpoint of a work directory


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
        warn_once(
            f'{str(folder)!r} has {shorten([*left])} of an earlier or interrupted training;'
            f' {name} is taken'
        )
    if len(metrics) > 1:
        warn_once(
            f'{str(folder)!r} has a best checkpoint for each of {shorten([*metrics])}; {name} is'
            ' taken: name a file to take another'
        )

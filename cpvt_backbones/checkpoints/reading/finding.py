"""Finds the file of a checkpoint by a name, an address or a folder."""

import os
import re
import warnings
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

from cpvt_backbones.checks import check_path
from cpvt_backbones.text import printable
from cpvt_backbones.weights import (
    published_weights,
    shipped_file,
    shipped_weights,
    similar_names,
)

from ..report import CheckpointError, shorten
from .best import best_checkpoint
from .opening import open_checkpoint, saved_state
from .sources import ACCEPTED, WEIGHTS, fetch, fetch_published

POINTER = 'last_checkpoint'
INTERRUPTED = 'interrupted.pth'  # for preempted trainings; the next regular checkpoint replaces it
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
        CheckpointError: The scheme or the name is unknown, a package is not installed, or the
            weights cannot be fetched. In the last case the message says where to put the file.

    Examples:
        >>> from cpvt_backbones.checkpoints import locate_checkpoint
        >>> locate_checkpoint('cpvt_tiny_gap-imagenette').name
        'cpvt_tiny_gap-imagenette.safetensors'
    """
    check_path(**{argument: checkpoint})
    if not str(checkpoint):
        raise CheckpointError(f"checkpoint must be {ACCEPTED}, got ''")
    if '://' in str(checkpoint):
        return fetch(str(checkpoint))
    path = shipped_file(checkpoint).expanduser()
    if not path.exists() and (published := published_weights().get(str(checkpoint))):
        return fetch_published(published)
    if path.is_dir():
        return _file_in(path, argument)
    if not path.is_file():
        advice = similar_names(str(checkpoint)) or (
            f', and no weights of that name come with the package (those are'
            f' {list(shipped_weights())})'
        )
        fault = f'{argument}: there is no file or folder {str(checkpoint)!r}'
        raise FileNotFoundError(f'{fault}{advice}')
    return path


def read_checkpoint(path: str | PathLike[str]) -> dict[str, Any]:
    """Read a checkpoint, weights only: nothing in the file is imported or run.

    Checksums in a ``.pth`` file are verified, and so is a SHA-256 in the name,
    ``name-<8 or 64 hex digits>.pth``, or in ``name.pth.sha256``.

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
        if '://' not in str(path):
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

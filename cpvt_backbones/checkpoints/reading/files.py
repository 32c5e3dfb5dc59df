"""Checkpoint files are located, and read without running their content."""

import os
import re
import warnings
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from cpvt_backbones.checks import check_path
from cpvt_backbones.weights import (
    hash_in_name,
    published_weights,
    sha256_of,
    shipped_file,
    shipped_weights,
    similar_names,
)

from ..report import CheckpointError, shorten
from .sources import ACCEPTED, INDEX, WEIGHTS, fetch, fetch_published, shards_of
from .unpickle import read_pickled

POINTER = 'last_checkpoint'
INTERRUPTED = 'interrupted.pth'  # of a preempted training; the next regular checkpoint replaces it
_SHA256 = re.compile(r'[0-9a-f]{64}')
_SHARD = re.compile(r'-\d{5}-of-(\d{5})\.(?:safetensors|bin)$')  # as huggingface_hub names them
_STEP = re.compile(r'(epoch|iter)_(\d+)(?:\.pth)?')
_SUFFIXES = ('.safetensors', '.bin', '.pth', '.pt', '.ckpt')


def locate_checkpoint(checkpoint: str | PathLike[str], *, argument: str = 'checkpoint') -> Path:
    """Return the file of a checkpoint on this machine; fetch it if need be.

    A checkpoint is one of these:

    - a file, or the name of shipped weights;
    - the name of a published model of :func:`published_weights`, from torch's cache or the network;
    - ``timm://NAME``, a name of timm with or without its tag, from huggingface_hub's cache or the
      hub;
    - ``hf://USER/REPOSITORY`` or a file in it, from the same places;
    - ``mmpretrain://NAME``, a name of its model zoo;
    - an ``https://`` address, from torch's cache or the network, with ``#sha256=<64 digits>`` to
      check it;
    - a folder or repository with a file of weights (``model.safetensors``, ``pytorch_model.bin``
      and others);
    - the work directory of a training, for its only ``best_*.pth``, otherwise its
      :func:`newest_checkpoint`.

    Args:
        checkpoint: One of these.
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
    published = published_weights().get(str(checkpoint))
    if published is not None and not path.exists():
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

    Checksums in a ``.pth`` file are verified. So is a SHA-256 that stands in the name,
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
    if (shard := _SHARD.search(file.name)) and int(shard[1]) > 1:
        raise CheckpointError(
            f'checkpoint: {str(path)!r} is one of {int(shard[1])} files of a model: pass their'
            f' folder, or its file *{INDEX}'
        )
    try:
        content = _read(file)
    except CheckpointError as error:
        if '://' not in str(path):
            raise
        advice = f'it is in a cache: delete {str(file.resolve())!r} to fetch it again'
        raise CheckpointError(f'{error}; {advice}') from error
    _remove_instructions(content)
    return content


def stored_source(path: str | PathLike[str]) -> str:
    """The config that mmengine stored in a checkpoint, as text; ``''`` without one.

    It is to be parsed as data, and never run: the file may be of someone else.
    """
    content = _read(locate_checkpoint(path))
    meta = content.get('meta')
    source = meta.get('cfg') if isinstance(meta, dict) else None
    return source if isinstance(source, str) else ''


# -- files


def _read(file: Path) -> dict[str, Any]:
    if file.stat().st_size == 0:
        raise CheckpointError(f'checkpoint: the file {str(file)!r} is empty')
    if file.name.endswith(INDEX):
        return _read_shards(file)
    _check_hash(file)
    _check_format(file)
    content = _read_safetensors(file) if file.suffix == '.safetensors' else read_pickled(file)
    weights = content.get('state_dict', content) if isinstance(content, dict) else content
    if not isinstance(weights, dict) or not all(isinstance(key, str) for key in weights):
        found = f'a {type(weights).__name__}, not a dict of weights by name'
        raise CheckpointError(f'checkpoint: {str(file)!r} holds {found}')
    return content


def _check_format(file: Path) -> None:
    """Refuse files of other formats by their first bytes, with what to do instead."""
    with file.open('rb') as stream:
        head = stream.read(64)
    safetensors = head[8:9] == b'{' and int.from_bytes(head[:8], 'little') < file.stat().st_size
    found = next((advice for start, advice in _OTHER_FORMATS if head.startswith(start)), None)
    if head.lstrip()[:9].lower().startswith((b'<!doctype', b'<html')):
        found = 'a web page: the download failed, or needs a login'
    elif safetensors:
        if file.suffix != '.safetensors':
            found = 'a file of safetensors: rename it to *.safetensors'
    elif file.suffix == '.safetensors' and head.startswith((b'PK\x03\x04', b'\x80\x02')):
        found = 'a file of torch.save: rename it to *.pth'
    if found:
        raise CheckpointError(f'checkpoint: {str(file)!r} is {found}')


_OTHER_FORMATS = [
    (b'version https://git-lfs', 'a pointer of Git LFS: run git lfs pull in its clone'),
    (b'\x1f\x8b', 'compressed by gzip: unpack it'),
    (b'\x89HDF', 'HDF5, as Keras writes it: load it there, and save its weights by torch.save'),
    (b'BZh', 'compressed by bzip2: unpack it'),
    (b'\xfd7zXZ', 'compressed by xz: unpack it'),
    (b'Rar!', 'a RAR archive: unpack it'),
    (b'7z\xbc\xaf', 'a 7z archive: unpack it'),
]


def _read_shards(index: Path) -> dict[str, Any]:
    """The tensors of all files that an index lists."""
    weights: dict[str, Any] = {}
    for name, keys in shards_of(index).items():
        shard = index.with_name(name)
        if not shard.is_file():
            fault = f'{str(index)!r} names {name!r}, which is not beside it'
            raise FileNotFoundError(f'checkpoint: {fault}')
        content = _read(shard)
        found = set(content)
        for fault, others in (('lacks', keys - found), ('has other keys,', found - keys)):
            if others:
                raise CheckpointError(
                    f'checkpoint: {str(shard)!r} is not the file of {index.name!r}: it {fault}'
                    f' {shorten(sorted(others))}'
                )
        weights |= content
    return weights


def _check_hash(file: Path) -> None:
    """Compare the file with the SHA-256 beside it or in its name."""
    sidecar = Path(f'{file}.sha256')
    advice = 'fetch it again'
    if sidecar.is_file():
        source, wanted = repr(str(sidecar)), sidecar.read_text('utf-8', 'replace').lower()[:64]
        if not _SHA256.fullmatch(wanted):
            fault = f'{source} must begin with a SHA-256 of 64 hexadecimal digits'
            raise CheckpointError(f'checkpoint: {fault}, got {wanted!a}')
    elif _SHA256.fullmatch(file.resolve().name):  # as huggingface_hub's cache names its files
        source, wanted = 'its name', file.resolve().name
    else:
        source, wanted = 'its name', hash_in_name(file.stem)
        if len(wanted) == 8:
            advice += (
                ', or, if the name has another meaning, such as a commit, rename it or write its'
                f' SHA-256 to {str(sidecar)!r}'
            )
    if wanted and not (found := sha256_of(file)).startswith(wanted):
        fault = f'its SHA-256 is {found}, not {wanted} as in {source}; {advice}'
        raise CheckpointError(f'checkpoint: {str(file)!r} is damaged: {fault}')


def _read_safetensors(file: Path) -> dict[str, Any]:
    try:
        return dict(load_file(file))
    except (SafetensorError, OSError, KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).split('\n')[0][:300]
        fault = f'is truncated or no safetensors file ({reason})'
        raise CheckpointError(f'checkpoint: {str(file)!r} {fault}') from error


class _RuntimeInfo(dict[str, Any]):
    """``message_hub.runtime_info`` of a checkpoint, without its config.

    mmengine's inferencers run the stored config as Python when they get no other.
    """

    def __missing__(self, key: str) -> Any:
        if key == 'cfg':
            advice = 'name the config, such as model="CONFIG.py" of an inferencer'
            raise CheckpointError(
                f'checkpoint: a config stored in a checkpoint is never run; {advice}'
            )
        raise KeyError(key)


def _remove_instructions(content: dict[str, Any]) -> None:
    """Remove what mmengine would run or delete because the checkpoint names it, in place.

    ``meta.config`` is run by mmengine's ``Runner.resume`` and ``FlexibleRunner.resume``,
    ``meta.cfg`` and ``message_hub.runtime_info.cfg`` by its inferencers. Its ``CheckpointHook``
    deletes the path in ``runtime_info.best_ckpt`` (with several metrics ``best_ckpt_<metric>``) at
    the next better score.
    """
    meta = content.get('meta')
    if isinstance(meta, dict):
        meta.pop('cfg', None)
        meta.pop('config', None)
    hub = content.get('message_hub')
    info = hub.get('runtime_info') if isinstance(hub, dict) else None
    if isinstance(hub, dict) and isinstance(info, dict):
        hub['runtime_info'] = _RuntimeInfo(
            (key, value)
            for key, value in info.items()
            if key != 'cfg' and not (isinstance(key, str) and key.startswith('best_ckpt'))
        )


# -- folders


def _file_in(folder: Path, argument: str) -> Path:
    """The first of ``WEIGHTS`` in a folder. Of a work directory, the only ``best_*.pth``, or the
    newest checkpoint if there is none or several.
    """
    for name in WEIGHTS:
        if (folder / name).is_file():
            return folder / name
    best = [*folder.glob('best_*.pth')]
    if len(best) == 1:
        return best[0]
    newest = newest_checkpoint(folder)
    if newest is not None and newest.is_file():
        return newest
    fault = f'the folder {str(folder)!r} has no {POINTER!r}'
    if named := _pointer(folder):
        fault = f'{str(folder / POINTER)!r} names {named!r}, which is not there'
    others = f'none of {", ".join(WEIGHTS)} and no file epoch_*.pth or iter_*.pth'
    names = [path.name for path in sorted(folder.iterdir()) if path.suffix in _SUFFIXES]
    advice = f'; pass one of its files: {shorten(names)}' if names else ''
    raise FileNotFoundError(f'{argument}: {fault}, {others}{advice}')


def newest_checkpoint(
    work_dir: str | PathLike[str], *, warn: Callable[[str], object] = warnings.warn
) -> Path | None:
    """Find the newest readable checkpoint of a training's work directory, which may have been
    moved.

    It is the one that ``last_checkpoint`` names, unless a later file has a higher iteration. A
    training that was killed after it wrote a checkpoint, and before it wrote the pointer, leaves
    such a file. A file counts as later by its time, by a higher number in its name (clocks may be
    set back), or as that of a preempted training. Without a readable pointer, the readable
    checkpoint of the highest iteration is taken.

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
        others = [path for path in others if _changed(path) > since or _is_after(path, target)]
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
    """What ``last_checkpoint`` in a folder names; ``''`` without that file."""
    pointer = folder / POINTER
    return pointer.read_text('utf-8', 'replace').strip() if pointer.is_file() else ''


def _pointed_at(folder: Path) -> Path | None:
    """The checkpoint that ``last_checkpoint`` names: in the folder, which may have been moved, or
    where it was.
    """
    named = Path(_pointer(folder))
    if named.name in ('', '..'):
        return None
    for path in (folder / named.name, named):
        if os.path.isfile(path):
            return path
        # A folder is a checkpoint of DeepSpeed, if it has the name of one.
        is_step = os.path.isdir(path) and _STEP.fullmatch(path.name)
        if is_step and not os.path.samefile(path, folder):
            return path
    return None


def _changed(path: Path) -> int:
    return path.stat().st_mtime_ns


def _is_after(path: Path, other: Path) -> bool:
    """True for ``epoch_4.pth`` beside ``epoch_3.pth``, and for that of a preempted training."""
    step, before = _STEP.fullmatch(path.name), _STEP.fullmatch(other.name)
    if not step or not before:
        return path.name == INTERRUPTED
    return step[1] == before[1] and int(step[2]) > int(before[2])


def _iteration(path: Path, warn: Callable[[str], object]) -> int:
    """Iteration of a checkpoint; -1, after a warning, if it cannot be read."""
    if path.is_dir():  # DeepSpeed checks its files
        return int(''.join(filter(str.isdigit, path.stem)) or 0)
    try:
        meta = read_checkpoint(path).get('meta')
    except (CheckpointError, OSError) as error:
        warn(f'{path} is skipped: {error}')
        return -1
    if isinstance(meta, dict) and isinstance(meta.get('iter'), int):
        return meta['iter']
    warn(f'{path} is skipped: it has no meta.iter, as the checkpoint of a training has')
    return -1

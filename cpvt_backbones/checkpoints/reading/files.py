"""Checkpoint files are read without running their content."""

import os
import re
import warnings
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from cpvt_backbones.weights import sha256_of, shipped_weights, similar_names

from ..report import CheckpointError, shorten
from .inert import remove_instructions
from .shards import INDEX, check_shard, keys_of_shards
from .sources import WEIGHTS, hash_in_name, locate_checkpoint
from .unpickle import MAX_DIMS, load_pickled

MAX_HEADER = 16 << 20  # bytes of a .safetensors file; a tensor takes 100
MAX_TENSORS = 100_000
POINTER = 'last_checkpoint'
INTERRUPTED = 'interrupted.pth'  # of a preempted training; the next regular checkpoint replaces it
_SHA256 = re.compile(r'[0-9a-f]{64}')
_SHARD = re.compile(r'-\d{5}-of-(\d{5})\.(?:safetensors|bin)$')  # as huggingface_hub names them
_SUFFIXES = ('.safetensors', '.bin', '.pth', '.pt', '.ckpt')


def read_checkpoint(path: str | PathLike[str]) -> dict[str, Any]:
    """Read a checkpoint, weights only: nothing in the file is imported or run.

    Verifies checksums in a ``.pth`` file, and a SHA-256 in ``name-<8 or 64 hex digits>.pth`` or
    ``name.pth.sha256``.

    Args:
        path: ``.safetensors`` file, file of ``torch.save`` (``.pth``, ``.pt``, ``.bin``, ...),
            ``.index.json`` of several such files beside it, folder with one of ``WEIGHTS``, work
            directory of an mmengine run, for its :func:`newest_checkpoint`, or name or address: see
            :func:`locate_checkpoint`.

    Returns:
        Content of the file on the CPU: tensors, plain data, numpy numbers and arrays, mmengine's
        log buffers; paths as text, parsed command lines as ``None``. Stored configs are left out:
        mmengine would run them.

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
    file = find_checkpoint(path)
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
    remove_instructions(content)
    return content


def find_checkpoint(checkpoint: str | PathLike[str], *, argument: str = 'checkpoint') -> Path:
    """Return the file of a checkpoint, fetched if need be.

    Args:
        checkpoint: What :func:`locate_checkpoint` takes; of an mmengine run's work directory the
            :func:`newest_checkpoint`.
        argument: Name of the argument in errors.

    Raises:
        FileNotFoundError: There is no such file or folder, or no checkpoint in the folder.
        CheckpointError: See :func:`locate_checkpoint`.
    """
    file = locate_checkpoint(checkpoint)
    if file.is_dir():
        return _newest_file(file, argument)
    if not file.is_file():
        advice = similar_names(str(checkpoint)) or (
            f', and no weights of that name come with the package (those are'
            f' {list(shipped_weights())})'
        )
        fault = f'{argument}: there is no file or folder {str(checkpoint)!r}'
        raise FileNotFoundError(f'{fault}{advice}')
    return file


def _read(file: Path) -> dict[str, Any]:
    if file.stat().st_size == 0:
        raise CheckpointError(f'checkpoint: the file {str(file)!r} is empty')
    if file.name.endswith(INDEX):
        return _read_shards(file)
    _check_hash(file)
    content = _read_safetensors(file) if file.suffix == '.safetensors' else load_pickled(file)
    weights = content.get('state_dict', content) if isinstance(content, dict) else content
    if not isinstance(weights, dict) or not all(isinstance(key, str) for key in weights):
        found = f'a {type(weights).__name__}, not a dict of weights by name'
        raise CheckpointError(f'checkpoint: {str(file)!r} holds {found}')
    return content


def _read_shards(index: Path) -> dict[str, Any]:
    """The tensors of all files that an index lists."""
    weights: dict[str, Any] = {}
    for name, keys in keys_of_shards(index).items():
        shard = index.with_name(name)
        if not shard.is_file():
            fault = f'{str(index)!r} names {name!r}, which is not beside it'
            raise FileNotFoundError(f'checkpoint: {fault}')
        content = _read(shard)
        check_shard(index, name, keys, set(content))
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
    name = f'checkpoint: {str(file)!r}'
    with file.open('rb') as stream:
        header = int.from_bytes(stream.read(8), 'little')
    if MAX_HEADER < header <= file.stat().st_size:
        raise CheckpointError(f'{name} is refused: its header has more than {MAX_HEADER >> 20} MiB')
    try:
        with safe_open(file, 'pt') as opened:
            keys = opened.keys()
            if len(keys) > MAX_TENSORS:
                raise CheckpointError(
                    f'{name} is refused: it has more than {MAX_TENSORS:,} tensors'
                )
            for key in keys:
                if (dims := len(opened.get_slice(key).get_shape())) > MAX_DIMS:
                    fault = (
                        f'{ascii(key)[1:-1]:.200} has {dims} dimensions; at most {MAX_DIMS} are'
                        ' read'
                    )
                    raise CheckpointError(f'{name} is refused: {fault}')
            return {key: opened.get_tensor(key) for key in keys}
    except CheckpointError:
        raise
    except (SafetensorError, OSError, KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).split('\n')[0][:300]
        raise CheckpointError(f'{name} is truncated or no safetensors file ({reason})') from error


def newest_checkpoint(
    work_dir: str | PathLike[str], *, warn: Callable[[str], object] = warnings.warn
) -> Path | None:
    """Find the newest readable checkpoint of a training's work directory.

    The directory may have been moved.

    It is the one named in ``last_checkpoint``, unless another file has a higher iteration: a
    training that was killed between writing a checkpoint and the pointer leaves one. Such a file is
    later, has a higher number in its name (clocks are set back), or is that of a preempted
    training. Without a readable pointer it is the readable one of the highest iteration (a folder
    for DeepSpeed); ``None`` without checkpoints, ``CheckpointError`` if none is readable.

    ``warn`` is called with one line for each unreadable checkpoint.
    """
    folder = Path(work_dir)
    target = _pointed_at(folder)
    others = _other_checkpoints(folder, target)
    if target is None and not others:
        return None
    newest = None
    reached = -1
    if target is not None:
        reached = _iteration(target, warn)
    if reached >= 0:
        newest = target
        since = (folder / POINTER).stat().st_mtime_ns
        others = [path for path in others if _may_be_newer(path, target, since)]
    for path in others:
        iteration = _iteration(path, warn)
        if iteration > reached:
            newest, reached = path, iteration
    if newest is None:
        advice = 'name another one, or move them away to train from the start'
        raise CheckpointError(
            f'work_dir: none of the checkpoints in {str(folder)!r} can be read; {advice}'
        )
    return newest


def _pointed_at(folder: Path) -> Path | None:
    """The checkpoint that ``last_checkpoint`` names: in the folder, which may have been moved, or
    where it was.
    """
    named = Path(_named_in(folder))
    if named.name not in ('', '..'):
        for path in (folder / named.name, named):
            if os.path.exists(path):
                return path
    return None


def _other_checkpoints(folder: Path, target: Path | None) -> list[Path]:
    """Files and folders of checkpoints but the ``target``, the latest first."""
    found = []
    for pattern in ('epoch_*', 'iter_*', INTERRUPTED):
        for path in folder.glob(pattern):
            if path != target and (path.suffix == '.pth' or path.is_dir()):
                found.append(path)
    return sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True)


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


def _may_be_newer(path: Path, target: Path | None, since: int) -> bool:
    """True for a file later than the pointer, a preempted training's, or a higher number's."""
    later = path.stat().st_mtime_ns > since
    return later or path.name == INTERRUPTED or _has_higher_number(path, target)


def _has_higher_number(path: Path, other: Path | None) -> bool:
    """True for ``epoch_4.pth`` beside ``epoch_3.pth``."""
    step = re.fullmatch(r'(epoch|iter)_(\d+)', path.name.removesuffix('.pth'))
    before = other and re.fullmatch(r'(epoch|iter)_(\d+)', other.name.removesuffix('.pth'))
    if not step or not before:
        return False
    return step[1] == before[1] and int(step[2]) > int(before[2])


def _newest_file(folder: Path, argument: str) -> Path:
    newest = newest_checkpoint(folder)
    if newest is not None and newest.is_file():
        return newest
    fault = f'the folder {str(folder)!r} has no {POINTER!r}'
    if named := _named_in(folder):
        fault = f'{str(folder / POINTER)!r} names {named!r}, which is not there'
    others = f'none of {", ".join(WEIGHTS)} and no file epoch_*.pth or iter_*.pth'
    names = [path.name for path in sorted(folder.iterdir()) if path.suffix in _SUFFIXES]
    advice = f'; pass one of its files: {shorten(names)}' if names else ''
    raise FileNotFoundError(f'{argument}: {fault}, {others}{advice}')


def _named_in(folder: Path) -> str:
    pointer = folder / POINTER
    return pointer.read_text('utf-8', 'replace').strip() if pointer.is_file() else ''

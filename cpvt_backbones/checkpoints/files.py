"""Checkpoint files: open them without running what is in them, and write them whole or not at all."""

import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO
from urllib.request import Request, urlopen

import torch
from torch import Tensor

from cpvt_backbones.weights import shipped_file, shipped_weights

from .report import CheckpointError
from .unpickle import load_pickled

SUFFIXES = ('.pth', '.pt', '.safetensors')
# The hash that mm, torchvision and tools/publish_checkpoint.py put into a name. Digits alone are a date.
_HASH = re.compile(r'.*-(?!\d+$)([0-9a-f]{64}|[0-9a-f]{8})')
_TIMEOUT = 30.0  # seconds without a byte


def read_checkpoint(path: str | PathLike[str]) -> dict[str, Any]:
    """Read a checkpoint, weights only: nothing in the file is imported or run.

    The checksums in a ``.pth`` file are compared, and its SHA-256 where its name (``name-<8 or 64 hex digits>.pth``)
    or a file beside it (``name.pth.sha256``) tells one.

    Args:
        path: The name of weights that come with the package (:mod:`cpvt_backbones.weights`), a ``.safetensors`` file,
            one that ``torch.save`` wrote (``.pth``, ``.pt``, ``.bin``, ...), or the work
            folder of an mmengine run, whose newest checkpoint is taken. What ``https://`` names is fetched into
            torch's cache.

    Returns:
        dict: What the file holds, on the CPU: tensors and plain data, and what resuming needs beside them (numpy
        numbers and arrays, mmengine's log buffers). Parsed command lines come out as ``None``, paths as text.

    Raises:
        FileNotFoundError: There is no such file or folder, or no checkpoint in the folder.
        CheckpointError: The file is empty, damaged, no checkpoint, or would import something when opened.
        ImportError: A ``.safetensors`` file, and the package safetensors is not installed.
    """
    if str(path).startswith(('https://', 'http://')):
        path = _fetch(str(path))
    elif '://' in str(path):
        raise CheckpointError(f'checkpoint must be a file, a folder or an https:// address, got {str(path)!r}')
    file = shipped_file(path).expanduser()
    if file.is_dir():
        file = _newest_of_run(file)
    elif not file.is_file():
        raise FileNotFoundError(
            f'checkpoint: there is no file or folder {str(path)!r}, and no weights of that name come with the package '
            f'(those are {list(shipped_weights())})'
        )
    if file.stat().st_size == 0:
        raise CheckpointError(f'checkpoint: the file {str(file)!r} is empty')
    _check_hash(file)
    content = _read_safetensors(file) if file.suffix == '.safetensors' else load_pickled(file)
    if not isinstance(content, dict):
        raise CheckpointError(f'checkpoint: {str(file)!r} holds a {type(content).__name__}, not a dict of weights')
    weights = content.get('state_dict', content)
    if not isinstance(weights, dict) or not all(isinstance(key, str) for key in weights):
        raise CheckpointError(f'checkpoint: {str(file)!r} holds no dict of weights by name')
    return content


def _fetch(url: str) -> Path:
    file = Path(torch.hub.get_dir(), 'checkpoints', url.split('?')[0].rpartition('/')[2])
    if not file.is_file():
        request = Request(url, headers={'User-Agent': 'cpvt_backbones'})
        try:  # several ranks may do this side by side
            with urlopen(request, timeout=_TIMEOUT) as response, atomic_write(file) as part:
                shutil.copyfileobj(response, part)
        except OSError as error:
            raise CheckpointError(f'checkpoint: {url} could not be fetched ({error})') from error
    return file


def _check_hash(file: Path) -> None:
    beside = Path(f'{file}.sha256')
    if beside.is_file():
        wanted = (beside.read_bytes().decode(errors='replace').split() or [''])[0].lower()
    elif named := _HASH.fullmatch(file.stem):
        wanted = named[1]
    else:
        return
    digest = hashlib.sha256()
    with file.open('rb') as stream:
        while part := stream.read(1 << 20):
            digest.update(part)
    found = digest.hexdigest()
    if not wanted or not found.startswith(wanted):
        told_by = str(beside) if beside.is_file() else 'its name'
        raise CheckpointError(
            f'checkpoint: {str(file)!r} is damaged: its SHA-256 is {found}, not {wanted} as {told_by} tells'
        )


def _newest_of_run(folder: Path) -> Path:
    pointer = folder / 'last_checkpoint'
    if not pointer.is_file():
        raise FileNotFoundError(
            f"checkpoint: the folder {str(folder)!r} has no 'last_checkpoint', which an mmengine run leaves there; "
            'name a file'
        )
    named = Path(pointer.read_bytes().decode(errors='replace').strip())
    # The run may have been moved since.
    for file in (named, folder / named.name):
        if os.path.isfile(file):  # unlike Path.is_file, for any text
            return file
    raise FileNotFoundError(f'checkpoint: {str(pointer)!r} names {str(named)!r}, which is not there')


def _read_safetensors(file: Path) -> dict[str, Any]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise ImportError(
            f'checkpoint: {str(file)!r} needs the package safetensors: pip install safetensors'
        ) from error
    try:
        return load_file(file)
    except (SafetensorError, OSError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(f'checkpoint: {str(file)!r} is truncated or no safetensors file ({error})') from error


@contextmanager
def atomic_write(path: str | PathLike[str]) -> Iterator[BinaryIO]:
    """Write a file whole or not at all.

    Yields a binary file in the same folder, which is created if need be. It replaces ``path`` when the block ends, and
    is deleted when the block raises, so that a reader never meets a part of a file.

    Args:
        path: The file to write.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f'.{path.name[:40]}.{secrets.token_hex(4)}.part')
    try:
        with part.open('xb') as file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def check_destination(path: str | PathLike[str]) -> Path:
    """The path to write to.

    Raises:
        ValueError: Its ending is none of ``.pth``, ``.pt`` and ``.safetensors``.
    """
    if Path(path).suffix not in SUFFIXES:
        raise ValueError(f'destination must end in one of {", ".join(SUFFIXES)}, got {str(path)!r}')
    return Path(path)


def write_checkpoint(state_dict: Mapping[str, Tensor], path: str | PathLike[str], *, meta: Mapping[str, str]) -> None:
    """Write a state dict.

    Args:
        state_dict: The weights.
        path: ``.pth`` or ``.pt``: a dict of ``state_dict`` and ``meta``, as mm toolboxes and timm read it;
            ``.safetensors``: the tensors, with ``meta`` as the file's metadata.
        meta: Where the weights come from.

    Raises:
        ValueError: Another ending.
        ImportError: A ``.safetensors`` file, and the package safetensors is not installed.
    """
    file = check_destination(path)
    # Clones: a tensor that is a part of a larger one would take that along into the file.
    weights = {
        key: value.detach().cpu().clone(memory_format=torch.contiguous_format) for key, value in state_dict.items()
    }
    if file.suffix != '.safetensors':
        with atomic_write(file) as stream:
            torch.save(dict(state_dict=weights, meta=dict(meta)), stream)
        return
    try:
        from safetensors.torch import save
    except ImportError as error:
        raise ImportError(
            f'destination: {str(path)!r} needs the package safetensors: pip install safetensors'
        ) from error
    # Not save_file: what that writes is for its owner's eyes only, also in a wheel.
    with atomic_write(file) as stream:
        stream.write(save(weights, metadata={'format': 'pt', **meta}))

"""Atomic writing of files, and locks."""

import errno
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

import torch
from filelock import FileLock
from safetensors.torch import save
from torch import Tensor

from cpvt_backbones.checks import check_path
from cpvt_backbones.errors import InputError

SUFFIXES = ('.pth', '.pt', '.safetensors')


# Errors of a full disk, or of a user's quota.
FULL = {errno.ENOSPC, errno.EDQUOT}


@contextmanager
def atomic_write(path: str | PathLike[str]) -> Iterator[BinaryIO]:
    """Context with a binary file that replaces ``path`` at the end, flushed to the disk.

    A missing folder is created. If the block raises, ``path`` does not change.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f'.{path.name[:40]}.{secrets.token_hex(4)}.part')
    try:
        with part.open('xb') as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        flush_to_disk(path.parent)
    except OSError as error:
        if error.errno in FULL and error.filename is None:
            error.filename = str(path)
        raise
    finally:
        part.unlink(missing_ok=True)


# Errors of file systems without locks, such as some of NFS and Lustre.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


def lock_file(
    path: Path,
    *,
    warn: Callable[[str], object],
    singleton: bool = False,
) -> FileLock | None:
    """Take the lock of a file for this process.

    Args:
        path: The lock file, in an existing folder.
        warn: Called with a warning if the file system has no locks.
        singleton: Let this process take its own lock again.

    Returns:
        The lock; ``None`` if the file system has no locks.

    Raises:
        filelock.Timeout: Another process has the lock.
        OSError: The file cannot be opened.
    """
    lock = FileLock(path, is_singleton=singleton)
    try:
        _try_locks(path.parent)
        lock.acquire(timeout=0)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        reason = error.strerror or error
        warn(f'{str(path.parent)!r} cannot be locked ({reason}): let no other process write to it')
        return None
    return lock


def _try_locks(folder: Path) -> None:
    """Raise ``OSError`` if the files of a folder cannot be locked.

    Without ``flock``, filelock uses the existence of the file as the lock. A process that dies with
    its machine would leave it behind and lock out all other processes.
    """
    if sys.platform == 'win32':
        return
    import fcntl

    try:
        with TemporaryFile(dir=folder) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            raise


def flush_to_disk(path: Path) -> None:
    """Flush a file or the entries of a folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_destination(path: str | PathLike[str]) -> Path:
    """Check the path of a checkpoint to write, and return it.

    Raises:
        ValueError: The path does not end in ``.pth``, ``.pt`` or ``.safetensors``.
    """
    check_path(destination=path)
    if Path(path).suffix not in SUFFIXES:
        raise InputError(f'destination must end in one of {", ".join(SUFFIXES)}, got {str(path)!r}')
    return Path(path)


def write_checkpoint(
    state_dict: Mapping[str, Tensor], path: str | PathLike[str], *, meta: Mapping[str, str]
) -> None:
    """Write a state dict to a file, atomically.

    Args:
        state_dict: The weights.
        path: File that ends in ``.pth``, ``.pt`` or ``.safetensors``. The first two hold a dict
            with ``state_dict`` and ``meta``, which the mm toolboxes and timm read. The last holds
            the tensors, and ``meta`` as metadata.
        meta: Origin of the weights.

    Raises:
        ValueError: ``path`` has another suffix.

    Examples:
        >>> import torch
        >>> from cpvt_backbones.checkpoints import read_checkpoint
        >>> from cpvt_backbones.checkpoints import write_checkpoint
        >>> weights = {'norm.weight': torch.ones(192)}
        >>> write_checkpoint(weights, 'part.pth', meta=dict(origin='ones'))
        >>> read_checkpoint('part.pth')['meta']
        {'origin': 'ones'}
    """
    file = check_destination(path)
    # Clone, because torch.save writes the whole storage of a tensor that is part of a larger one.
    weights = {
        k: v.detach().cpu().clone(memory_format=torch.contiguous_format)
        for k, v in state_dict.items()
    }
    with atomic_write(file) as stream:
        if (
            file.suffix == '.safetensors'
        ):  # save_file would make the file readable for its owner only
            stream.write(save(weights, metadata={'format': 'pt', **meta}))
        else:
            torch.save(dict(state_dict=weights, meta=dict(meta)), stream)

"""Options, shared memory and signals of data loader workers."""

import io
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from multiprocessing import parent_process
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from mmengine.structures import BaseDataElement
from torch import Tensor
from torch.utils.data import DataLoader, get_worker_info

from cpvt_backbones.errors import InputError

SHARED_MEMORY = Path('/dev/shm')
# Options that torch's DataLoader refuses without workers.
_OF_WORKERS = ('persistent_workers', 'prefetch_factor', 'timeout', 'multiprocessing_context')


def fit_to_workers(dataloader: Any) -> Any:
    """Remove options that torch refuses without workers from a data loader's config.

    Args:
        dataloader: Config of mmengine's data loader. A built data loader is returned unchanged.
    """
    if not isinstance(dataloader, Mapping) or dataloader.get('num_workers'):
        return dataloader
    return {key: value for key, value in dataloader.items() if key not in _OF_WORKERS}


# -- shared memory


class SharedMemoryError(RuntimeError):
    """Raised in a worker that gets no shared memory; torch reraises it in the training."""


def share_batches(loader: DataLoader) -> None:
    """End the training if a worker gets no shared memory for a batch.

    By default, a thread of the worker moves the batch to shared memory. If that fails, the thread
    prints an error and continues without the batch, and the training waits forever. Here the
    collate function moves the batch, so that torch raises its errors in the training.
    """
    if loader.num_workers:
        loader.collate_fn = partial(_collate_shared, collate=loader.collate_fn)


def _collate_shared(images: Any, *, collate: Callable[[Any], Any]) -> Any:
    batch = collate(images)
    if get_worker_info() is not None:
        # Array bytes are left out of the pickle, which is not read.
        _Sharing(io.BytesIO(), 5, True, lambda buffer: None).dump(batch)
    return batch


class _Sharing(ForkingPickler):
    """Pickler that moves the storage of each tensor to shared memory."""

    def persistent_id(self, obj: Any) -> Any:
        """Share a CPU tensor or storage instead of pickling it."""
        if type(obj) is Tensor and obj.layout is torch.strided:
            obj = obj.untyped_storage()
        if not isinstance(obj, torch.UntypedStorage) or obj.device.type != 'cpu':
            return None
        try:
            obj.share_memory_()
        except RuntimeError as error:
            raise SharedMemoryError(str(error)) from error
        return 'shared'

    def reducer_override(self, obj: Any) -> Any:
        """Pickle samples by their attributes.

        mmpretrain's function for the queue of a worker, which follows, changes a sample, and would
        lose its labels the second time.
        """
        return obj.__reduce_ex__(5) if isinstance(obj, BaseDataElement) else NotImplemented


@contextmanager
def named_shared_memory() -> Iterator[None]:
    """Context that turns a worker's lack of shared memory into an ``InputError`` with a cure."""
    try:
        yield
    except RuntimeError as error:
        reason = _reason(error)
        if reason is None:
            raise
        raise InputError(
            f'num_workers: a worker of a data loader got no shared memory{reason}{_size()}; use'
            ' num_workers=0, or start the container with more, such as --shm-size=8g'
        ) from error


def _reason(error: RuntimeError) -> str | None:
    """Return why a worker got no shared memory (may be ``''``); ``None`` for other errors."""
    if isinstance(error, SharedMemoryError):
        reason = ' '.join(str(error).split()).rpartition(': ')[2]
        # Full file systems set no error number.
        return '' if reason.startswith('Success') else f': {reason}'
    # Linux ends a worker by SIGBUS if the file system has no page left for the file.
    # torch says so, or says in a later error that a worker exited.
    killed = 'killed by signal: Bus error'
    return ': Bus error' if killed in f'{error} {error.__cause__}' else None


def _size() -> str:
    try:
        total, _, free = shutil.disk_usage(SHARED_MEMORY)
    except OSError:
        return ''
    return f' ({SHARED_MEMORY} has {total / 1e6:,.0f} MB, {free / 1e6:,.0f} MB of them free)'


# -- signals


def shield_workers(loader: DataLoader) -> None:
    """Shield the workers of a data loader from signals to the whole process group.

    Schedulers send SIGTERM, and terminals SIGINT, to each process of the group. The training needs
    its workers until it has saved. SIGTERM from the main process still ends a worker. Systems
    without ``sigwaitinfo`` (macOS) are shielded from SIGINT only.
    """
    if loader.num_workers:
        loader.worker_init_fn = partial(_start_worker, start=loader.worker_init_fn)


def _start_worker(worker_id: int, *, start: Callable[[int], None] | None) -> None:
    if start is not None:
        start(worker_id)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, 'sigwaitinfo'):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # for the thread to wait for
        Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    """End a worker at SIGTERM from the main process, with the exit code of torch's workers."""
    main = parent_process()
    while main is not None and signal.sigwaitinfo([signal.SIGTERM]).si_pid != main.pid:
        pass
    os._exit(0)

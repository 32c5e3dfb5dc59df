"""Workers of a data loader: their options, their shared memory and their signals."""

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
from torch import Tensor
from torch.utils.data import DataLoader, get_worker_info

from cpvt_backbones.errors import InputError

SHARED_MEMORY = Path('/dev/shm')
# Options of torch's DataLoader that it refuses without workers.
_OF_WORKERS = ('persistent_workers', 'prefetch_factor', 'timeout', 'multiprocessing_context')


def fit_to_workers(dataloader: Any) -> Any:
    """Config of a data loader, without the options that torch refuses if there are no workers.

    Args:
        dataloader: Config of mmengine's data loader, or a data loader, which is returned.
    """
    if not isinstance(dataloader, Mapping) or dataloader.get('num_workers'):
        return dataloader
    return {key: value for key, value in dataloader.items() if key not in _OF_WORKERS}


# -- shared memory


class SharedMemoryError(RuntimeError):
    """Raised in a worker that gets no shared memory; torch raises it again in the training."""


def share_batches(loader: DataLoader) -> None:
    """Let a worker that gets no shared memory for a batch end the training.

    By default, a thread of the worker moves the batch to shared memory. If that fails, the thread
    prints an error and goes on without the batch, for which the training waits for ever. Here the
    function that collates the batch moves it, whose errors torch raises in the training.
    """
    if loader.num_workers:
        loader.collate_fn = partial(_collate_shared, collate=loader.collate_fn)


def _collate_shared(images: Any, *, collate: Callable[[Any], Any]) -> Any:
    batch = collate(images)
    if get_worker_info() is not None:
        # The bytes of arrays stay out of the pickle, which is not read.
        _Sharing(io.BytesIO(), 5, True, lambda buffer: None).dump(batch)
    return batch


class _Sharing(ForkingPickler):
    """Moves the storage of each tensor that it meets to shared memory."""

    def persistent_id(self, obj: Any) -> Any:
        """Share a tensor or storage of a CPU in place of pickling it."""
        if type(obj) is Tensor and obj.layout is torch.strided:
            obj = obj.untyped_storage()
        if not isinstance(obj, torch.UntypedStorage) or obj.device.type != 'cpu':
            return None
        try:
            obj.share_memory_()
        except RuntimeError as error:
            raise SharedMemoryError(str(error)) from error
        return 'shared'


@contextmanager
def named_shared_memory() -> Iterator[None]:
    """Context in which a worker without shared memory is an ``InputError`` that says what helps."""
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
    """Why a worker got no shared memory, maybe ``''``; ``None`` for an error of another kind."""
    if isinstance(error, SharedMemoryError):
        reason = ' '.join(str(error).split()).rpartition(': ')[2]
        # A full file system sets no error number.
        return '' if reason.startswith('Success') else f': {reason}'
    # Linux ends a worker by SIGBUS if the file has the size, but the file system no page for it.
    # torch says so, or in an error that follows from it that a worker exited.
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
    """Let the workers of a data loader outlive a signal to the whole process group.

    A scheduler sends SIGTERM, a terminal SIGINT, to each process of the group. The training still
    needs its workers, until it has saved. SIGTERM of the main process ends a worker, as it does
    without this function. A system without ``sigwaitinfo`` (macOS) is shielded from SIGINT only.
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
    """End a worker at SIGTERM of the main process. The exit code is that of torch's workers."""
    main = parent_process()
    while main is not None and signal.sigwaitinfo([signal.SIGTERM]).si_pid != main.pid:
        pass
    os._exit(0)

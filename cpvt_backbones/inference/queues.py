"""Bounded queues between the steps of a prediction: calls in threads and images by shape."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

from .predictions import LoadedImage
from .tiles import Bounds

THREADS = min(8, os.cpu_count() or 1)
WAITING_BYTES = 200_000_000  # maximum size of waiting results or images


class OrderedCalls(AbstractContextManager):
    """Runs calls in threads, and yields their results in order.

    An error of a call is returned as its result. At most ``2 * THREADS`` results and
    ``WAITING_BYTES`` are kept waiting. Leaving the context waits for running calls and drops the
    others.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS)
        self._waiting: deque[tuple[Future[Any], int]] = deque()
        self._bytes = 0

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def add(self, call: Callable[..., Any], *args: Any, nbytes: int) -> Iterator[Any]:
        """Start a call that holds ``nbytes``; yield the oldest results above the limits."""
        self._waiting.append((self._pool.submit(call, *args), nbytes))
        self._bytes += nbytes
        while len(self._waiting) > 2 * THREADS or self._bytes > WAITING_BYTES:
            yield self._take()

    def results(self, *, wait: bool = True) -> Iterator[Any]:
        """Yield all remaining results, or only the finished ones."""
        while self._waiting and (wait or self._waiting[0][0].done()):
            yield self._take()

    def _take(self) -> Any:
        future, nbytes = self._waiting.popleft()
        self._bytes -= nbytes
        return future.result()


class ShapeBuckets:
    """Collects images of the same shape until a batch is full."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._waiting: dict[tuple[int, ...], list[LoadedImage]] = {}
        self._bytes = 0

    def add(self, loaded: LoadedImage) -> Iterator[list[LoadedImage]]:
        """Add an image; yield its batch if full.

        While waiting images take too much memory, yield the oldest batches.
        """
        shape = loaded.image.shape[:2]
        self._waiting.setdefault(shape, []).append(loaded)
        self._bytes += loaded.nbytes
        if len(self._waiting[shape]) >= self._bounds.batch_of(loaded.pixels):
            yield self._take(shape)
        while self._bytes > WAITING_BYTES:
            yield self._take(next(iter(self._waiting)))

    def flush(self) -> Iterator[list[LoadedImage]]:
        """Yield the waiting batches."""
        while self._waiting:
            yield self._take(next(iter(self._waiting)))

    def _take(self, shape: tuple[int, ...]) -> list[LoadedImage]:
        batch = self._waiting.pop(shape)
        self._bytes -= sum(loaded.nbytes for loaded in batch)
        return batch


def bytes_of(output: Any) -> int:
    """Return the size in bytes of the arrays in a model's output."""
    if isinstance(output, tuple):  # prediction and best score of a tiled image
        output = output[0]
    arrays = output.values() if isinstance(output, dict) else [output]
    return sum(getattr(array, 'nbytes', 0) for array in arrays)

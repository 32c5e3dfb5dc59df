"""Calls in threads, with their results in order and in bounded memory."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

THREADS = min(8, os.cpu_count() or 1)
WAITING_BYTES = 200_000_000


class OrderedCalls(AbstractContextManager):
    """Runs calls in threads; their results come in the order of the calls, and a call's error in place of its result.

    At most ``2 * THREADS`` calls and ``WAITING_BYTES`` wait for their results to be taken. Leaving the context waits
    for the calls that run, and drops those that do not.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS)
        self._waiting: deque[tuple[Future[Any], int]] = deque()
        self._bytes = 0

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def add(self, call: Callable[..., Any], *args: Any, nbytes: int) -> Iterator[Any]:
        """Start a call that holds ``nbytes``, and yield the oldest results until few enough wait."""
        self._waiting.append((self._pool.submit(call, *args), nbytes))
        self._bytes += nbytes
        while len(self._waiting) > 2 * THREADS or self._bytes > WAITING_BYTES:
            yield self._take()

    def results(self, *, wait: bool = True) -> Iterator[Any]:
        """Yield all other results, or those that need no waiting."""
        while self._waiting and (wait or self._waiting[0][0].done()):
            yield self._take()

    def _take(self) -> Any:
        future, nbytes = self._waiting.popleft()
        self._bytes -= nbytes
        return future.result()

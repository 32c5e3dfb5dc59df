"""Peak memory of a call, whatever ran before it."""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate

import torch
from torch.autograd.profiler import profile


def peak_memory(call: Callable[[], object], device: str) -> float:
    """Memory that a call needs on top of what is there, at its peak, as torch's allocator counts it.

    Not what the process holds in RAM: malloc keeps freed blocks or hands them back as it sees fit, so that one call
    needs twice as much as the next, or nothing. The blocks that torch asks for are the same each time. Where a call
    frees what was there before it, that is counted off on a GPU, not on a CPU.

    Args:
        call: What to measure; it ran before, so that what it keeps for good is there.
        device: ``'cpu'`` or ``'cuda'``.

    Returns:
        MiB.
    """
    gc.collect()
    if device == 'cuda':
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return float(torch.cuda.max_memory_allocated() - before) / 2**20
    with _quiet_profiler(), profile(profile_memory=True) as record:
        call()
    events = sorted(record.kineto_results.events(), key=lambda event: event.start_ns())
    held = accumulate((event.nbytes() for event in events if event.name() == '[memory]'), initial=0)
    return max(held) / 2**20


@contextmanager
def _quiet_profiler() -> Iterator[None]:
    """Where there is no GPU, the profiler's library would say so on every machine's first use."""
    variable = 'KINETO_LOG_LEVEL'
    if torch.cuda.is_available() or variable in os.environ:
        yield
        return
    os.environ[variable] = '99'
    try:
        yield
    finally:
        del os.environ[variable]

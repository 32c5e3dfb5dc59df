"""Peak memory of a call."""

import gc
import os
from collections.abc import Callable
from itertools import accumulate

import torch
from torch.autograd.profiler import profile


def synchronize(device: str) -> None:
    """Wait for the kernels of a device; a CPU has no pending kernels."""
    if device == 'cuda':
        torch.cuda.synchronize()


def peak_memory(call: Callable[[], object], device: str) -> float:
    """Measure the peak memory in MiB that a call requests from torch's allocator.

    Resident memory would depend on what malloc keeps from earlier calls. On a GPU, but not on a
    CPU, memory that the call frees without having allocated it is subtracted.

    Args:
        call: The call; run it once before, so that buffers which it keeps already exist.
        device: ``'cpu'`` or ``'cuda'``.
    """
    gc.collect()
    if device == 'cuda':
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return float(torch.cuda.max_memory_allocated() - before) / 2**20
    if not torch.cuda.is_available():
        os.environ.setdefault('KINETO_LOG_LEVEL', '99')  # no warning about a missing GPU
    with profile(profile_memory=True) as record:
        call()
    events = sorted(record.kineto_results.events(), key=lambda event: event.start_ns())
    held = accumulate((event.nbytes() for event in events if event.name() == '[memory]'), initial=0)
    return max(held) / 2**20

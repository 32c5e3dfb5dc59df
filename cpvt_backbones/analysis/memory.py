"""Peak memory of a call, whatever ran before it."""

import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_SMALL, _USUAL = 1 << 16, 1 << 25  # bytes; the second is where glibc's own rule ends up once large blocks were freed


class PeakMemory:
    """Peak memory of a stretch of code, in MiB above what was there before."""

    def __init__(self, device: str) -> None:
        self.device = device
        gc.collect()
        if device == 'cuda':
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated() / 2**20
        else:
            ctypes.CDLL(None).malloc_trim(0)
            Path('/proc/self/clear_refs').write_text('5')  # resets the high-water mark
            self.before = self._status('VmRSS')

    @staticmethod
    def _status(key: str) -> float:
        for line in Path('/proc/self/status').read_text().splitlines():
            if line.startswith(key):
                return int(line.split()[1]) / 1024
        raise OSError(f'no {key} in /proc/self/status')

    def peak(self) -> float:
        """Highest use since construction."""
        if self.device == 'cuda':
            torch.cuda.synchronize()
            return torch.cuda.max_memory_allocated() / 2**20 - self.before
        return self._status('VmHWM') - self.before


def peak_memory(call: Callable[[], object], device: str, *, repeats: int = 2) -> float:
    """Memory that a call needs on top of what is there, at its peak.

    Args:
        call: What to measure; it ran before, so that what it keeps for good is there.
        device: ``'cpu'`` (resident memory of the process) or ``'cuda'`` (torch's allocator).
        repeats: Calls; the largest peak counts, as Linux may miss one.

    Returns:
        MiB.
    """
    peaks = []
    with _blocks_go_back() if device == 'cpu' else nullcontext():
        for _ in range(repeats):
            memory = PeakMemory(device)
            call()
            peaks.append(memory.peak())
    return max(peaks)


@contextmanager
def _blocks_go_back() -> Iterator[None]:
    """Within this context freed blocks go back to the system.

    Otherwise malloc keeps some: the next call takes those, and its peak depends on what ran before.
    """
    malloc_option = ctypes.CDLL(None).mallopt
    malloc_option(_M_MMAP_THRESHOLD, _SMALL)
    try:
        yield
    finally:
        malloc_option(_M_MMAP_THRESHOLD, _USUAL)
        malloc_option(_M_TRIM_THRESHOLD, 2 * _USUAL)

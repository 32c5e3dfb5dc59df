"""The machine a figure was measured on: what it is, its clock, its limits."""

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch


def describe_machine(device: str) -> dict[str, str]:
    """What a figure must carry beside it: processor, threads, versions."""
    processor = platform.processor() or platform.machine()
    if Path('/proc/cpuinfo').exists():
        names = [
            line.partition(':')[2].strip()
            for line in Path('/proc/cpuinfo').read_text().splitlines()
            if line.startswith('model name')
        ]
        processor = names[0] if names else processor
    described = dict(
        processor=f'{processor}, {os.cpu_count()} cores',
        threads=str(torch.get_num_threads()),
        python=platform.python_version(),
        torch=torch.__version__,
    )
    if device == 'cuda':
        described['gpu'] = torch.cuda.get_device_name()
    return described


def synchronize(device: str) -> None:
    if device == 'cuda':
        torch.cuda.synchronize()


def best_time(call: Callable[[], object], device: str, *, calls: int = 1) -> float:
    """Seconds a call takes, the best of five looks at the clock with ``calls`` in between."""
    times = []
    for _ in range(6):
        synchronize(device)
        start = time.perf_counter()
        for _ in range(calls):
            call()
        synchronize(device)
        times.append((time.perf_counter() - start) / calls)
    return min(times[1:])


def measure_limits(device: str, dtype: str) -> tuple[float, float]:
    """The machine's own limits, measured now: (matmul rate in FLOP/s, copy bandwidth in bytes/s read plus written)."""
    element = torch.float32 if dtype == 'fp32' else torch.bfloat16
    side, length = (2048, 1 << 26) if device == 'cpu' else (8192, 1 << 30)
    a, b = (torch.randn(side, side, device=device).to(element) for _ in range(2))
    rate = 2 * side**3 / best_time(lambda: a @ b, device)
    source = torch.zeros(length // 4, device=device)
    target = torch.empty_like(source)
    return rate, 2 * length / best_time(lambda: target.copy_(source), device)

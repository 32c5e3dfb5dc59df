"""The machine a figure was measured on."""

import os
import platform
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

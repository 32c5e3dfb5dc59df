"""Speed and memory of the backbones and their peers; run ``benchmarks/speed.py`` from a clone. Not installed."""

import os
import platform
import re
from pathlib import Path


def processor() -> str:
    """Name of the processor and number of its cores, for records of measurements."""
    cpuinfo = Path('/proc/cpuinfo')
    found = re.search(r'model name\s*: (.+)', cpuinfo.read_text()) if cpuinfo.exists() else None
    name = found[1] if found else platform.processor() or platform.machine()
    return f'{name}, {os.cpu_count()} cores'

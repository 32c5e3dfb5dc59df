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


def fill_marked(path: Path, name: str, text: str) -> None:
    """Replace the text between ``<!-- name: begin -->`` and ``<!-- name: end -->``; ``ValueError`` without marks."""
    begin, end = f'<!-- {name}: begin -->', f'<!-- {name}: end -->'
    old = path.read_text(encoding='utf-8')
    new, count = re.subn(f'{begin}.*{end}', lambda _: f'{begin}\n{text}\n{end}', old, flags=re.DOTALL)
    if not count:
        raise ValueError(f'path: {path} has no part between {begin} and {end}')
    path.write_text(new, encoding='utf-8')

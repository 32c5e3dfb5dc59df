"""Measurements of speed, memory and differences beside other packages, run from a clone.

Not installed.
"""

import os
import platform
import re
from pathlib import Path

from cpvt_backbones.errors import InputError


def processor() -> str:
    """Name of the processor and number of its cores, for records of measurements."""
    name = _cpuinfo('model name') or platform.processor() or platform.machine()
    return f'{name}, {os.cpu_count()} cores'


def fill_marked(path: Path, name: str, text: str) -> None:
    """Replace the text between ``<!-- name: begin -->`` and ``<!-- name: end -->``.

    ``ValueError`` without marks.
    """
    begin, end = f'<!-- {name}: begin -->', f'<!-- {name}: end -->'
    old = path.read_text(encoding='utf-8')
    new, count = re.subn(
        f'{begin}.*{end}', lambda _: f'{begin}\n{text}\n{end}', old, flags=re.DOTALL
    )
    if not count:
        raise InputError(f'path: {path} has no part between {begin} and {end}')
    path.write_text(new, encoding='utf-8')


def instructions() -> str:
    """Those of the processor that matter for speed: ``'AVX-512 bf16'``."""
    known = dict(avx2='AVX2', avx512f='AVX-512', avx512_bf16='bf16', amx_tile='AMX')
    return ' '.join(name for flag, name in known.items() if flag in _cpuinfo('flags').split())


def _cpuinfo(key: str) -> str:
    file = Path('/proc/cpuinfo')
    found = re.search(rf'{key}\s*: (.+)', file.read_text()) if file.exists() else None
    return found[1] if found else ''

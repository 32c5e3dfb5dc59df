"""Files that are there whole or not at all, and files that are written in part."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from cpvt_backbones.checkpoints import atomic_write


@contextmanager
def write_whole(path: Path) -> Iterator[Path]:
    """A path to write to that takes the place of ``path`` when the block ends well.

    Whoever reads meanwhile sees the old file, and so does who comes after an interruption.
    """
    with atomic_write(path) as file:
        yield Path(file.name)


@contextmanager
def claim(file: Path) -> Iterator[bool]:
    """Whether this process has, for the length of the block, what ``file`` stands for.

    Given up when the process ends, however it ends.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(file)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def fill_marked(path: Path, name: str, text: str) -> None:
    """Replace what stands between ``<!-- name: begin -->`` and ``<!-- name: end -->`` in a file.

    Raises:
        ValueError: The file has no such marks.
    """
    begin, end = f'<!-- {name}: begin -->', f'<!-- {name}: end -->'
    old = path.read_text(encoding='utf-8')
    pattern = re.compile(f'{re.escape(begin)}.*{re.escape(end)}', re.DOTALL)
    if not pattern.search(old):
        raise ValueError(f'path: {path} has no part between {begin} and {end}')
    path.write_text(pattern.sub(lambda _: f'{begin}\n{text}\n{end}', old), encoding='utf-8')

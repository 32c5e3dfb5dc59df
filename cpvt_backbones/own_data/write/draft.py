"""Replaces all files of an earlier config together.

A config, its lists of labels and its class maps belong together, because numbers of one and names
of another would mislabel everything. All files are first written to ``.part`` in the folder of the
config. At the end, the earlier config is removed, the files are renamed, and the new config is
written last. So at any time there is the earlier config with its files, the new one with its files,
or none.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import Timeout

from cpvt_backbones.checkpoints import atomic_write, flush_to_disk, lock_file
from cpvt_backbones.errors import InputError
from cpvt_backbones.label_files import CLASSES

from ..files import RECIPE

PART, LOCK = '.part', '.lock'
REPORT = 'check.csv'
# Names that a call writes to the folder of its config; other files belong to the user.
WRITTEN = (
    RECIPE,
    'iterations.py',
    'objects.py',
    'segmentor.py',
    'classifier.py',
    'data.json',
    CLASSES,
    'train.json',
    'val.json',
    'train.txt',
    'val.txt',
    'masks',
    'tiles',
    'sheet.jpg',
)


@dataclass(frozen=True)
class Draft:
    """A config and its folder while they are written.

    Args:
        out: Final path of the config.
        config: The config being written; it has its final name and inherits from ``folder``.
        folder: Folder in which the files are written.
    """

    out: Path
    config: Path
    folder: Path

    def final(self, texts: dict[str, Any]) -> dict[str, Any]:
        """Return names and paths, with paths in ``folder`` as they are after the renaming."""
        old = str(self.folder.resolve())
        new = str(self.out.with_suffix('').resolve())
        changed = {}
        for key, value in texts.items():
            inside = isinstance(value, str) and f'{value}/'.startswith(f'{old}/')
            changed[key] = new + value.removeprefix(old) if inside else value
        return changed


def check_folder(folder: Path, data: Sequence[Path]) -> None:
    """Raise ``InputError`` if the folder of a config has files that no earlier call wrote.

    Args:
        folder: Folder with the name of the config.
        data: Paths of the user's data, which must be elsewhere.
    """
    for path in data:
        if path.resolve().is_relative_to(folder.resolve()):
            raise InputError(
                f'--out: the data {path} are in {folder}/, to which the config writes its files;'
                ' choose another name for the config'
            )
    for path in folder.rglob('*'):
        if path.is_symlink():
            target = os.path.realpath(path)
            raise InputError(f'--out: {path} is a link to {target}; nothing is written through it')
    if not folder.exists() or (folder / RECIPE).is_file():
        return
    for path in sorted(folder.iterdir()):
        if path.name not in (PART, LOCK, REPORT):
            raise InputError(
                f'--out: the config writes its files to {folder}/, which has others, such as'
                f' {path.name}; choose another name for the config'
            )


@contextmanager
def replacing(out: Path) -> Iterator[Draft]:
    """Context with a :class:`Draft` whose files replace those of an earlier call at the end.

    If the block raises, the earlier config and its files do not change. Files of a killed call are
    removed.

    Raises:
        InputError: Another call writes this config.
    """
    folder = out.with_suffix('')
    config = folder / PART / out.name
    draft = Draft(out, config, config.with_suffix(''))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = lock_file(folder / LOCK, warn=print)
    except Timeout:
        raise InputError(f'--out: another cpvt make-config writes {out}') from None
    try:
        shutil.rmtree(folder / PART, ignore_errors=True)
        draft.folder.mkdir(parents=True)
        yield draft
        _move(draft, folder)
    finally:
        shutil.rmtree(folder / PART, ignore_errors=True)
        if lock is not None:
            lock.release()


def _move(draft: Draft, folder: Path) -> None:
    """Replace the files of an earlier call while no config refers to them."""
    draft.out.unlink(missing_ok=True)
    flush_to_disk(draft.out.parent)
    earlier = folder / PART / 'earlier'
    earlier.mkdir()
    for name in WRITTEN:
        if (folder / name).exists() and name != RECIPE:  # which marks the folder as ours
            (folder / name).rename(earlier / name)
    for path in sorted(draft.folder.iterdir(), key=lambda path: path.name != RECIPE):
        path.replace(folder / path.name)
    flush_to_disk(folder)
    with atomic_write(draft.out) as file:
        file.write(draft.config.read_bytes())

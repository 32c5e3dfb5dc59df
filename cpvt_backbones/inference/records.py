"""What is done already, so that a run that was interrupted goes on where it was."""

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

from cpvt_backbones.checkpoints import atomic_write

Record = dict[str, Any]


class Records:
    """One line of JSON for each image that is done, written when it is done.

    Args:
        folder: Of the run; its ``records.jsonl`` is read if it is there. A last line that was cut short is dropped.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / 'records.jsonl'
        lines = self._file.read_bytes().splitlines(keepends=True) if self._file.is_file() else []
        if lines and not lines[-1].endswith(b'\n'):
            lines.pop()
            write_atomically(self._file, lambda file: file.writelines(lines))
        self._records: dict[str, Record] = {record['key']: record for record in map(json.loads, lines)}
        # Some file systems know no difference between A and a.
        self._taken = {record['name'].lower() for record in self._records.values()}
        self._numbers: dict[str, int] = {}

    def find(self, image: Path) -> Record | None:
        """The record of an image file, if neither the file has changed since nor what was written of it has gone."""
        record = self._records.get(_key(image))
        if record is None or record['stamp'] != file_stamp(image):
            return None
        return record if all((self._folder / file).is_file() for file in record['files']) else None

    def get(self, image: Path) -> Record:
        """The record of an image file that is done."""
        return self._records[_key(image)]

    def take_name(self, image: Path) -> str:
        """What outputs of an image file are called: its name without the ending, numbered where another has it.

        What has a record keeps its name, whatever other images there are.
        """
        if known := self._records.get(_key(image)):
            return known['name']
        # File systems take 255 bytes, endings and numbers included.
        name = stem = image.stem.encode(errors='surrogateescape')[:200].decode(errors='ignore')
        while name.lower() in self._taken:
            number = self._numbers[stem] = self._numbers.get(stem, 1) + 1
            name = f'{stem}_{number}'
        self._taken.add(name.lower())
        return name

    def add(self, image: Path, *, stamp: list[int] | None, name: str, files: list[str], **values: Any) -> None:
        """Note that an image is done.

        Args:
            image: Its file.
            stamp: Of the file before it was read: what changes later is to be done again.
            name: From :meth:`take_name`.
            files: What was written of it, from the folder.
            **values: Anything else, as plain data.
        """
        record = dict(key=_key(image), stamp=stamp, name=name, files=files, **values)
        with self._file.open('a') as file:
            file.write(f'{json.dumps(record)}\n')
        self._records[record['key']] = record


def write_atomically(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Write a file so that it is there whole or not at all."""
    with atomic_write(path) as file:
        write(file)


def write_json(path: Path, content: Any) -> None:
    """Write JSON, atomically; of a list every entry in a line of its own, as it comes."""
    if isinstance(content, dict):
        write_atomically(path, lambda file: file.write(json.dumps(content, indent=1).encode()))
    else:
        write_atomically(path, lambda file: file.writelines(_lines(content)))


def _lines(entries: Iterable[Any]) -> Iterable[bytes]:
    separator = b'[\n'
    for entry in entries:
        yield separator + json.dumps(entry).encode()
        separator = b',\n'
    yield b'[]\n' if separator == b'[\n' else b'\n]\n'


def _key(image: Path) -> str:
    return os.path.abspath(image)


def file_stamp(image: Path) -> list[int]:
    """Changes when the file does."""
    status = image.stat()
    return [status.st_size, status.st_mtime_ns]

"""Values that the steps pass on: images with their labels, and the report."""

import os
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cpvt_backbones.errors import InputError
from cpvt_backbones.text import printable

Coco = dict[str, Any]
Crowd = Literal['ignore', 'objects']
"""Meaning of annotations with ``iscrowd``: regions to ignore, or objects."""

# In the order of the table; notes neither change nor refuse anything.
OUTCOMES = ('note', 'skipped', 'altered', 'refused')
SHOWN = 3  # files of a reason
SHOWN_CLASSES = 10


@dataclass
class Split:
    """Training data, validation data, or both before they are split.

    Args:
        coco: COCO's ``images``; for detectors also ``annotations`` and ``categories``. Before the
            check, these are as read.
        root: Folder to which the images' ``file_name`` is relative.
        source: File or folder of the labels, for messages.
    """

    coco: Coco
    root: Path
    source: str


def join(split: Split, other: Split) -> Split:
    """Join images and objects of two checked splits, with the categories of the first."""
    folders = [
        str(one.root.resolve() / image['file_name']).rpartition('/')[0]
        for one in (split, other)
        for image in one.coco['images']
    ]
    root = Path(os.path.commonpath(folders))
    images: list[Coco] = []
    annotations: list[Coco] = []
    for one in (split, other):
        numbers = {}
        for image in one.coco['images']:
            numbers[image['id']] = len(images) + 1
            path = one.root.resolve() / image['file_name']
            name = path.relative_to(root).as_posix()
            images.append(dict(image, id=numbers[image['id']], file_name=name))
        for found in one.coco['annotations']:
            image_id = numbers[found['image_id']]
            annotations.append(dict(found, id=len(annotations) + 1, image_id=image_id))
    coco = dict(split.coco, images=images, annotations=annotations)
    return Split(coco, root, f'{split.source}, {other.source}')


def subset(split: Split, names: Collection[str]) -> Split:
    """Select images by file name, with their annotations."""
    wanted = {*names}
    images = [image for image in split.coco['images'] if image['file_name'] in wanted]
    coco = {**split.coco, 'images': images}
    if 'annotations' in coco:
        ids = {image['id'] for image in images}
        coco['annotations'] = [one for one in coco['annotations'] if one['image_id'] in ids]
    return Split(coco, split.root, split.source)


def read_id(entry: Coco, key: str, entries: str) -> int | str:
    """Read an id of a COCO entry; 1.0, as pandas writes it, becomes 1.

    Args:
        entry: Image, annotation or category.
        key: ``id``, ``image_id`` or ``category_id``.
        entries: Kind of the entries, for the message.

    Raises:
        Fault: There is no id.
    """
    value = entry.get(key)
    if value is None:
        raise Fault('refused', f'{entries} without {key}')
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        reason = f'{entries} whose {key} is neither a whole number nor text'
        raise Fault('refused', reason, repr(value))
    return value


class Fault(ValueError):
    """Raised for an image or label that is left out.

    Args:
        outcome: ``'skipped'`` leaves it out of the training; ``'refused'`` writes no config.
        reason: Text that is equal for all images or labels with the same fault.
        detail: Text that differs between these, such as the value.
    """

    def __init__(self, outcome: str, reason: str, detail: str = '') -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.reason = reason
        self.detail = detail


class Report:
    """Counts of read and used data, classes, and files skipped, altered or refused."""

    def __init__(self) -> None:
        self.read = Counter[str]()
        self.used = Counter[str]()
        self.classes: list[str] = []  # index, name, and how much there is of each
        self.found: dict[tuple[str, str], list[str]] = {}

    def add(self, outcome: str, reason: str, where: str) -> None:
        """Record one of ``OUTCOMES`` for ``where``, a file and maybe a detail."""
        if outcome not in OUTCOMES:
            raise ValueError(f'outcome must be one of {OUTCOMES}, got {outcome!r}')
        self.found.setdefault((outcome, reason), []).append(printable(where))

    def add_fault(self, fault: Fault, where: str) -> None:
        """Record a fault for ``where``."""
        detail = f' ({fault.detail})' if fault.detail else ''
        self.add(fault.outcome, fault.reason, f'{where}{detail}')

    def count(self, *outcomes: str) -> int:
        """Count the images and labels with these outcomes."""
        return sum(len(files) for (outcome, _), files in self.found.items() if outcome in outcomes)

    @property
    def is_long(self) -> bool:
        """``True`` if the table does not show everything."""
        return bool(self.found) or len(self.classes) > SHOWN_CLASSES

    def finish(self, *, strict: bool = False, table: str = '') -> None:
        """Print the table.

        Args:
            strict: Also refuse skipped and altered data.
            table: Text from :func:`.write.data.write_report` that names the file of all entries.

        Raises:
            InputError: Anything is refused, or, with ``strict``, skipped or altered.
        """
        fatal = ('skipped', 'altered', 'refused') if strict else ('refused',)
        count = self.count(*fatal)
        for line in self.lines():
            print(line)
        if count:
            print(f'data refused{table}')
            why = ' by strict' if strict and not self.count('refused') else ''
            raise InputError(f'data: {count} refused{why}; the table above says what and why')

    def rows(self) -> list[tuple[str, str, str]]:
        """Return outcome, reason and file of each entry, in the table's order, and the classes."""
        rows = [('class', '', printable(line.strip())) for line in self.classes]
        for outcome in OUTCOMES:
            for (kind, reason), files in self.found.items():
                if kind == outcome:
                    rows += [(outcome, reason, where) for where in files]
        return rows

    def lines(self) -> list[str]:
        """Return the lines of the table: counts, classes, and each outcome with its first files."""
        lines = []
        for name, counts in (('read', self.read), ('used', self.used)):
            lines += [f'{name:8} {count:7} {what}' for what, count in counts.items() if count]
        lines += [f'{"class":8} {printable(line)}' for line in self.classes[:SHOWN_CLASSES]]
        if len(self.classes) > SHOWN_CLASSES:
            lines.append(f'{"class":8} {"...":>7} {len(self.classes) - SHOWN_CLASSES} more classes')
        for outcome in OUTCOMES:
            for (kind, reason), files in self.found.items():
                if kind == outcome:
                    lines.append(f'{outcome:8} {len(files):7} {_sentence(reason, files)}')
        return lines


def _sentence(reason: str, files: list[str]) -> str:
    more = ', ...' if len(files) > SHOWN else ''
    return f'{reason}: {", ".join(files[:SHOWN])}{more}'

"""What each step gets and gives: images with their labels, and the table of what became of each."""

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
"""What annotations with ``iscrowd`` are: regions to ignore, or objects."""

# In the order of the table. Notes change nothing and refuse nothing.
OUTCOMES = ('note', 'skipped', 'altered', 'refused')
SHOWN = 3  # files of a reason
SHOWN_CLASSES = 10


@dataclass
class Part:
    """All data, or training or validation data, on their way to a config.

    Args:
        coco: COCO's ``images``; of a detector with ``annotations`` and ``categories``. Before the
            check, as read.
        root: Folder that the images' ``file_name`` starts from.
        source: File or folder that the labels are from, for messages.
    """

    coco: Coco
    root: Path
    source: str


def join(part: Part, other: Part) -> Part:
    """The images and objects of both, as one part with the categories of the first.

    Both are checked, together.
    """
    folders = [
        str(one.root.resolve() / image['file_name']).rpartition('/')[0]
        for one in (part, other)
        for image in one.coco['images']
    ]
    root = Path(os.path.commonpath(folders))
    images: list[Coco] = []
    annotations: list[Coco] = []
    for one in (part, other):
        numbers = {}
        for image in one.coco['images']:
            numbers[image['id']] = len(images) + 1
            path = one.root.resolve() / image['file_name']
            name = path.relative_to(root).as_posix()
            images.append(dict(image, id=numbers[image['id']], file_name=name))
        for found in one.coco['annotations']:
            image_id = numbers[found['image_id']]
            annotations.append(dict(found, id=len(annotations) + 1, image_id=image_id))
    coco = dict(part.coco, images=images, annotations=annotations)
    return Part(coco, root, f'{part.source}, {other.source}')


def part_of(part: Part, names: Collection[str]) -> Part:
    """The images of these file names, and their annotations."""
    wanted = {*names}
    images = [image for image in part.coco['images'] if image['file_name'] in wanted]
    coco = {**part.coco, 'images': images}
    if 'annotations' in coco:
        ids = {image['id'] for image in images}
        coco['annotations'] = [one for one in coco['annotations'] if one['image_id'] in ids]
    return Part(coco, part.root, part.source)


def read_id(entry: Coco, key: str, entries: str) -> int | str:
    """An id of a COCO entry; 1.0, as pandas writes it, is 1.

    ``Fault`` if there is none.

    Args:
        entry: Image, annotation or category.
        key: ``id``, ``image_id`` or ``category_id``.
        entries: Of what, for the message.
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
    """One image or label that is left out.

    Args:
        outcome: ``'skipped'``: the training does without it; ``'refused'``: no config is written.
        reason: Text that is the same for every image or label with the same fault.
        detail: What differs between these, such as the value.
    """

    def __init__(self, outcome: str, reason: str, detail: str = '') -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.reason = reason
        self.detail = detail


class Report:
    """Counts of what was read and used, the classes, and the files of each reason to skip, alter or
    refuse.
    """

    def __init__(self) -> None:
        self.read = Counter[str]()
        self.used = Counter[str]()
        self.classes: list[str] = []  # index, name, and how much there is of each
        self.found: dict[tuple[str, str], list[str]] = {}

    def add(self, outcome: str, reason: str, where: str) -> None:
        """Record that ``where`` (a file, and maybe a detail) has one of ``OUTCOMES`` for this
        reason.
        """
        if outcome not in OUTCOMES:
            raise ValueError(f'outcome must be one of {OUTCOMES}, got {outcome!r}')
        self.found.setdefault((outcome, reason), []).append(printable(where))

    def add_fault(self, fault: Fault, where: str) -> None:
        """Record a fault of ``where``."""
        detail = f' ({fault.detail})' if fault.detail else ''
        self.add(fault.outcome, fault.reason, f'{where}{detail}')

    def count(self, *outcomes: str) -> int:
        """Number of images and labels with these outcomes."""
        return sum(len(files) for (outcome, _), files in self.found.items() if outcome in outcomes)

    @property
    def is_long(self) -> bool:
        """True if the table shows less than there is."""
        return bool(self.found) or len(self.classes) > SHOWN_CLASSES

    def finish(self, *, strict: bool = False, table: str = '') -> None:
        """Print the table; ``InputError`` if anything is refused, or with ``strict`` skipped or
        altered.

        Args:
            strict: Refuse what is skipped or altered too.
            table: Where every entry is, as of :func:`.write.data.write_report`.
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
        """Outcome, reason and file of each entry, in the order of the table, and the classes."""
        rows = [('class', '', printable(line.strip())) for line in self.classes]
        for outcome in OUTCOMES:
            for (kind, reason), files in self.found.items():
                if kind == outcome:
                    rows += [(outcome, reason, where) for where in files]
        return rows

    def lines(self) -> list[str]:
        """The lines of the table: counts, classes, then outcome, count, reason, first files."""
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

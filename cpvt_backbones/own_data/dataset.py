"""Values that the steps pass on: images with their labels, the report, boxes and outlines."""

import os
import sys
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cpvt_backbones.errors import InputError
from cpvt_backbones.plain import SHOWN_CLASSES
from cpvt_backbones.text import printable

Coco = dict[str, Any]
Finding = tuple[str, str, str]
"""Outcome, reason and file of an entry of the report; see :meth:`Report.add`."""
Crowd = Literal['ignore', 'objects']
"""Meaning of annotations with ``iscrowd``: regions to ignore, or objects."""

# In the order of the table; notes neither change nor refuse anything.
OUTCOMES = ('note', 'skipped', 'altered', 'refused')
LONGEST_NAME = 200  # characters of a class name
NO_TEXT = ('Cc', 'Cs', 'Zl', 'Zp')  # control characters, surrogates, separators of lines
SHOWN = 3  # files of a reason
Box = list[float]  # left, top, width, height, px
ROUNDING = 1.0  # px by which a box may exceed its image without a message
LARGEST = sys.float_info.max
SMALLEST = 1.0  # px; mmdet drops narrower or lower objects
MOST_POLYGONS = 50  # of an object that are compared with each other


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


def check_names(names: Iterable[str], where: str) -> list[Finding]:
    """Refuse class names that configs, lists or pictures cannot contain.

    Args:
        names: Names of the classes.
        where: Their file or folder.
    """
    found = []
    for name in names:
        if '{{' in name:
            reason = 'class names with {{, which mmengine substitutes in configs: rename them'
        elif len(name) > LONGEST_NAME:
            reason = f'class names of more than {LONGEST_NAME} characters'
        elif any(unicodedata.category(letter) in NO_TEXT for letter in name):
            reason = 'class names with line breaks, control characters or invalid Unicode'
        else:
            continue
        found.append(('refused', reason, f'{where} ({name[:60]!r})'))
    return found


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

    def extend(self, findings: Iterable[Finding]) -> None:
        """Record findings."""
        for finding in findings:
            self.add(*finding)

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
            lines.append(f'{"class":8} {"...":>7} {len(self.classes) - SHOWN_CLASSES} more')
        for outcome in OUTCOMES:
            for (kind, reason), files in self.found.items():
                if kind == outcome:
                    shown = ', '.join(files[:SHOWN]) + (', ...' if len(files) > SHOWN else '')
                    lines.append(f'{outcome:8} {len(files):7} {reason}: {shown}')
        return lines


def is_rle(outline: Any) -> bool:
    """``True`` for COCO's run-length encoding, compressed or not."""
    return (
        isinstance(outline, dict) and isinstance(outline.get('size'), list) and 'counts' in outline
    )


def is_polygon(points: Any) -> bool:
    """``True`` for three or more points, x, y, x, y, ..."""
    if not isinstance(points, list) or len(points) < 6 or len(points) % 2:
        return False
    return all(is_number(value) for value in points)


def is_number(value: Any) -> bool:
    """``True`` for a finite number, but not for bools and integers beyond floats."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return -LARGEST <= value <= LARGEST  # comparisons with NaN are false


def mask_of(outline: Any, size: tuple[int, int]) -> np.ndarray:
    """Draw polygons or RLE as a mask, bool (H, W), of an image of this width and height."""
    from pycocotools import mask

    if is_rle(outline):
        return mask.decode(_encoded(outline)).astype(bool)
    return mask.decode(mask.merge(mask.frPyObjects(outline, size[1], size[0]))).astype(bool)


def can_be_decoded(outline: Coco) -> bool:
    """``False`` for compressed RLE with more pixels than its size."""
    from pycocotools import mask

    try:
        mask.decode(outline)
    except ValueError:
        return False
    return True


def rle_of(where: np.ndarray) -> Coco:
    """Encode a mask, bool (H, W), as RLE that JSON can hold."""
    from pycocotools import mask

    found = mask.encode(np.asfortranarray(where.astype(np.uint8)))
    return dict(size=[*where.shape], counts=found['counts'].decode())


def box_of_outline(outline: Any) -> Box:
    """Return the box around polygons or RLE."""
    if is_rle(outline):
        from pycocotools import mask

        return mask.toBbox(_encoded(outline)).tolist()
    return box_of_polygons(outline)


def box_of_polygons(polygons: Sequence[Sequence[float]]) -> Box:
    """Return the box around polygons of x, y, x, y, ..."""
    points = np.concatenate([np.reshape(polygon, (-1, 2)) for polygon in polygons])
    left, top = points.min(axis=0).tolist()
    right, bottom = points.max(axis=0).tolist()
    return [left, top, right - left, bottom - top]


def area_of_outline(outline: Any, size: tuple[int, int]) -> float:
    """Return the area of RLE or of a union of polygons in px, in an image of this size."""
    if is_rle(outline):
        from pycocotools import mask

        return float(mask.area(_encoded(outline)))
    total = sum(_polygon_area(np.reshape(polygon, (-1, 2))) for polygon in outline)
    if len(outline) == 1:
        return total
    return min(total, float(mask_of(outline, size).sum()))


def fills_hole(outline: Sequence[Sequence[float]], size: tuple[int, int]) -> bool:
    """``True`` if a polygon lies in another one of the object and would be filled, not a hole."""
    looked_at = outline[:MOST_POLYGONS]
    boxes = [box_of_polygons([polygon]) for polygon in looked_at]
    for inner, outer in permutations(range(len(boxes)), 2):
        if _is_around(boxes[outer], boxes[inner]):
            part, whole = (mask_of([outline[index]], size) for index in (inner, outer))
            if part.any() and not (part & ~whole).any() and part.sum() < whole.sum():
                return True
    return False


def _is_around(outer: Box, inner: Box) -> bool:
    """``True`` if a box contains another."""
    starts = all(a <= b for a, b in zip(outer[:2], inner[:2], strict=True))
    ends = all(outer[i] + outer[i + 2] >= inner[i] + inner[i + 2] for i in (0, 1))
    return starts and ends


def _encoded(outline: Coco) -> Any:
    """Convert RLE for pycocotools."""
    from pycocotools import mask

    if isinstance(outline['counts'], list):
        return mask.frPyObjects(outline, *outline['size'])
    return outline


def _polygon_area(points: np.ndarray) -> float:
    x, y = points.T
    return float(abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2)


def read_box(one: Coco) -> Box | None:
    """Return ``bbox`` of an annotation; ``None`` if it is missing or empty."""
    box = one.get('bbox')
    if box is None or box == []:
        return None
    if not isinstance(box, list) or len(box) != 4 or not all(is_number(value) for value in box):
        raise Fault('refused', 'bbox is not four finite numbers', repr(box))
    return box


def extent(one: Coco) -> tuple[float, float, float, float] | None:
    """Return left, top, right and bottom of an annotation's box or polygons.

    The result is ``None`` if it has none that can be read.
    """
    try:
        box = read_box(one)
    except Fault:
        return None
    outline = one.get('segmentation')
    if box is None and isinstance(outline, list) and outline and all(map(is_polygon, outline)):
        box = box_of_polygons(outline)
    return None if box is None else (box[0], box[1], box[0] + box[2], box[1] + box[3])

"""Images with their labels, as every reader gives them."""

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .report import Fault

Coco = dict[str, Any]
Crowd = Literal['ignore', 'objects']
"""What annotations with ``iscrowd`` are: regions to ignore, or objects."""


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

"""Read a COCO JSON file as it is; :mod:`.check` judges what is in it."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Coco = dict[str, Any]
LISTS = ('images', 'annotations', 'categories')


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


def read_coco(file: Path, images: Path) -> Part:
    """A COCO JSON file; ``ValueError`` unless it has lists of images, annotations and categories.

    Args:
        file: The JSON file.
        images: Folder that the ``file_name`` of each image starts from.
    """
    try:
        content = json.loads(file.read_bytes())
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f'data: {file} is not JSON: {error}') from None
    if not isinstance(content, dict):
        raise ValueError(
            f'data: {file} is no COCO JSON: it must be an object with the keys {LISTS}'
        )
    for key in LISTS:
        entries = content.get(key)
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise ValueError(
                f'data: {file} is no COCO JSON: {key!r} must be a list of objects, got'
                f' {entries!r:.60}'
            )
    return Part(content, images, str(file))


def part_of(part: Part, names: Collection[str]) -> Part:
    """The images of these file names, and their annotations."""
    wanted = {*names}
    images = [image for image in part.coco['images'] if image['file_name'] in wanted]
    coco = {**part.coco, 'images': images}
    if 'annotations' in coco:
        ids = {image['id'] for image in images}
        coco['annotations'] = [one for one in coco['annotations'] if one['image_id'] in ids]
    return Part(coco, part.root, part.source)

"""Picture of images with their labels, as in training."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from cpvt_backbones.checkpoints import atomic_write
from cpvt_backbones.images.value_range import ValueRange
from cpvt_backbones.inference.drawing import (
    SHEET_SIDE,
    ClassStyle,
    contact_sheet,
    distinct_colours,
    draw_prediction,
    fit_to_sheet,
    make_preview,
)

from ..dataset import Coco
from ..files import read_lines
from ..read.masks import no_class_of, read_map
from ..shapes import mask_of, rle_of

MOST = {'train': 8, 'val': 4}  # images
QUALITY = 90  # of the JPEG file
UNREAD = np.full((SHEET_SIDE // 2, SHEET_SIDE, 3), 128, np.uint8)  # in place of a damaged image
NO_CLASS = (128, 128, 128)  # RGB


@dataclass
class Labelled:
    """An image file and its labels for :func:`.draw_prediction`."""

    file: Path
    labels: dict[str, Any]


def write_sheet(
    task: str, texts: dict[str, Any], file: Path, *, value_range: ValueRange | None = None
) -> Path:
    """Draw up to 12 images with their labels, read from the files of the config.

    Args:
        task: Task of the config, such as ``'detector'``.
        texts: Names and paths of the data.
        file: The picture, .jpg.
        value_range: Conversion of images of more than 8 bits.

    Returns:
        The file.
    """
    classes = [*texts['classes']]
    style = ClassStyle('detection', classes)
    if task == 'segmentor':
        colours = [*distinct_colours(len(classes)).tolist(), NO_CLASS]
        style = ClassStyle('segmentation', [*classes, 'no class'], colours)
    elif task == 'classifier':
        style = ClassStyle('classification', classes)
    pictures = []
    for split in MOST:
        for one in _labelled(task, texts, split):
            image = value_range.read(one.file) if value_range else _read(one.file)
            if image is None:  # only headers were checked
                pictures.append((UNREAD, f'{split}: {one.file.name} cannot be decoded'))
                continue
            preview = fit_to_sheet(make_preview(image))
            drawn = draw_prediction(preview, one.labels, style, image.shape[1::-1])
            pictures.append((drawn, f'{split}: {one.file.name}'))
    with atomic_write(file) as stream:
        contact_sheet(pictures).save(stream, format='JPEG', quality=QUALITY, subsampling=0)
    return file


def _labelled(task: str, texts: dict[str, Any], split: str) -> list[Labelled]:
    """Choose images of a split evenly, with their labels."""
    if task in ('detector', 'instance segmentor'):
        coco = json.loads(Path(texts[split]).read_bytes())
        root = Path(texts[f'{split}_images'])
        return _with_objects(coco, root, MOST[split], outlines=task == 'instance segmentor')
    lines = _spread(read_lines(Path(texts[split])), MOST[split])
    root = Path(texts['images'])
    if task == 'segmentor':
        masks, count = Path(texts['masks']), len(texts['classes'])
        return [Labelled(root / line, _class_map(masks / f'{line}.png', count)) for line in lines]
    found = []
    for line in lines:
        name, _, index = line.rpartition(' ')
        label = int(index)
        found.append(Labelled(root / name, {'label': label, 'class': texts['classes'][label]}))
    return found


def _with_objects(coco: Coco, root: Path, count: int, *, outlines: bool) -> list[Labelled]:
    """Choose images of COCO JSON, with objects if there are any."""
    objects: dict[int, list[Coco]] = {image['id']: [] for image in coco['images']}
    for one in coco['annotations']:
        objects[one['image_id']].append(one)
    order = [category['id'] for category in coco['categories']]
    names = {category['id']: category['name'] for category in coco['categories']}
    images = [image for image in coco['images'] if objects[image['id']]] or coco['images']
    found = []
    for image in _spread(images, count):
        labels: dict[str, Any] = dict(labels=[], classes=[], boxes=[])
        if outlines:
            labels['masks'] = []
        for one in objects[image['id']]:
            left, top, width, height = one['bbox']
            ignored = ' (ignored)' if one['iscrowd'] else ''
            labels['labels'].append(order.index(one['category_id']))
            labels['classes'].append(names[one['category_id']] + ignored)
            labels['boxes'].append([left, top, left + width, top + height])
            if outlines:
                size = image['width'], image['height']
                labels['masks'].append(rle_of(mask_of(one['segmentation'], size)))
        found.append(Labelled(root / image['file_name'], labels))
    return found


def _spread(items: Sequence[Any], count: int) -> list[Any]:
    """Choose at most ``count`` items at equal distances."""
    chosen = np.linspace(0, len(items) - 1, min(count, len(items)))
    return [items[round(index)] for index in chosen.tolist()]


def _class_map(file: Path, count: int) -> dict[str, Any]:
    """Read a class map of ``count`` classes; "no class" becomes ``count``."""
    classes = read_map(file)
    return dict(seg_map=np.where(classes == no_class_of(count), count, classes).astype(np.int64))


def _read(file: Path) -> np.ndarray | None:
    """Read an image like training, upright and BGR; ``None`` if it is damaged."""
    content = np.fromfile(file, np.uint8)
    return cv2.imdecode(content, cv2.IMREAD_COLOR) if content.size else None

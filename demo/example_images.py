"""Example images of the page and of the figures, one of each shipped model's domain.

Church and street are of photos/README.md, the blood smear is of cells/README.md.
"""

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from cpvt_backbones.weights import find_shipped

CLASSIFIER, DETECTOR, SEGMENTOR = (
    'cpvt_tiny_gap-imagenette',
    'retinanet_cpvt_tiny_gap-bccd',
    'semantic_fpn_cpvt_tiny_gap-camvid',
)
PHOTOS = Path(__file__).parent / 'photos'
STREET = PHOTOS / 'street.jpg'
CELLS = Path(__file__).parent / 'cells'
SMEAR = 'image-84.jpg'
BCCD_NAMES = {'red cell': 'RBC', 'white cell': 'WBC'}


class Example(NamedTuple):
    """An image (H, W, 3), RGB, the model that it is of, and its truth if it is known.

    A note replaces ``good size`` in the caption.
    """

    name: str
    model: str
    image: np.ndarray
    boxes: np.ndarray | None = None  # (N, 4), x1, y1, x2, y2 in px
    labels: np.ndarray | None = None  # (N,), of the boxes
    note: str = ''


@cache
def examples() -> list[Example]:
    """The example images."""
    return [open_church(), open_street(), open_cells()]


def open_church() -> Example:
    """The photograph of a church, 640 x 480 px."""
    church = Image.open(PHOTOS / 'church.jpg').resize((640, 480), Image.Resampling.LANCZOS)
    return Example('Church: classification', CLASSIFIER, np.asarray(church))


def open_street() -> Example:
    """A part of the photograph of a street, 640 x 480 px, without the nearest of its cobbles."""
    part = Image.open(STREET).crop((112, 0, 1024, 684))
    image = np.asarray(part.resize((640, 480), Image.Resampling.LANCZOS))
    note = (
        'good size | some patches are wrong: this small model (5.9 M parameters, trained on 468'
        ' photographs) has 48.3 mIoU on its test images'
    )
    return Example('Street: segmentation', SEGMENTOR, image, note=note)


def open_cells() -> Example:
    """A photograph of a blood smear, 256 x 256 px, and the cells that its labels name."""
    content = json.loads((CELLS / 'annotations/instances_val.json').read_text(encoding='utf-8'))
    classes = find_shipped(DETECTOR).dataset_meta['classes']
    names = {one['id']: one['name'] for one in content['categories']}
    (number,) = (one['id'] for one in content['images'] if one['file_name'] == SMEAR)
    objects = [one for one in content['annotations'] if one['image_id'] == number]
    left, top, width, height = np.array([one['bbox'] for one in objects]).T
    corners = np.stack([left, top, left + width, top + height], axis=1)
    labels = [classes.index(BCCD_NAMES[names[one['category_id']]]) for one in objects]
    image = np.asarray(Image.open(CELLS / 'val' / SMEAR).convert('RGB'))
    note = 'this model was trained on other smears'
    return Example('Blood: detection', DETECTOR, image, corners, np.array(labels), note)

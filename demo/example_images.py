"""Example images of the page and of the figures, one of each shipped model's domain.

The smear is drawn here, so that its truth is known. The others are photographs (photos/README.md).
"""

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from cpvt_backbones.weights import find_shipped

CLASSIFIER, DETECTOR, SEGMENTOR = (
    'cpvt_tiny_gap-imagenette',
    'retinanet_cpvt_tiny_gap-bccd',
    'semantic_fpn_cpvt_tiny_gap-camvid',
)
PHOTOS = Path(__file__).parent / 'photos'
STREET = PHOTOS / 'street.jpg'


class Example(NamedTuple):
    """An image (H, W, 3), RGB, the model that it is of, and its truth if it is known."""

    name: str
    model: str
    image: np.ndarray
    boxes: np.ndarray | None = None  # (N, 4), x1, y1, x2, y2 in px
    labels: np.ndarray | None = None  # (N,), of the boxes


@cache
def examples() -> list[Example]:
    """The example images."""
    return [open_street(), draw_smear(), open_church()]


def open_church() -> Example:
    """The photograph of a church, 640 x 480 px."""
    church = Image.open(PHOTOS / 'church.jpg').resize((640, 480), Image.Resampling.LANCZOS)
    return Example('Church: class', CLASSIFIER, np.asarray(church))


def open_street() -> Example:
    """A part of the photograph of a street, 640 x 480 px, without the nearest of its cobbles."""
    part = Image.open(STREET).crop((112, 0, 1024, 684))
    image = np.asarray(part.resize((640, 480), Image.Resampling.LANCZOS))
    return Example('Street: map', SEGMENTOR, image)


def draw_smear() -> Example:
    """A stained blood smear of 640 x 480 px: 22 red and two white cells."""
    rng = np.random.default_rng(0)
    names = find_shipped(DETECTOR).dataset_meta['classes']
    width, height, fine = 640, 480, 2  # drawn at twice its size
    picture = Image.new('RGB', (width * fine, height * fine), (226, 222, 226))
    draw = ImageDraw.Draw(picture)

    def disc(colour: tuple[int, int, int], x: float, y: float, rx: float, ry: float) -> None:
        draw.ellipse([side * fine for side in (x - rx, y - ry, x + rx, y + ry)], fill=colour)

    boxes, labels = [], []
    for place in range(24):
        white = place in (7, 16)
        rx = 46 if white else rng.uniform(36, 42)
        ry = rx * (1 if white else rng.uniform(0.9, 1.1))
        x = (place % 6 + 0.5) * 640 / 6 + rng.uniform(-8, 8)
        y = (place // 6 + 0.5) * 120 + rng.uniform(-12, 12)
        boxes.append([x - rx, y - ry, x + rx, y + ry])
        labels.append(names.index('WBC' if white else 'RBC'))
        if white:
            disc((188, 168, 206), x, y, rx, ry)
            for angle in 0.9 * np.arange(5) + rng.uniform(0, 6):
                lobe = (x + 0.45 * rx * np.cos(angle), y + 0.45 * rx * np.sin(angle))
                disc((112, 82, 188), *lobe, 0.36 * rx, 0.36 * rx)
            continue
        tone, inner = int(rng.integers(-8, 8)), rx * rng.uniform(0.25, 0.5)
        disc((208 + tone, 158 + tone, 154 + tone), x, y, rx, ry)
        disc((222 + tone, 186 + tone, 182 + tone), x, y, inner, inner)
    small = picture.resize((width, height), Image.Resampling.LANCZOS)
    small = small.filter(ImageFilter.GaussianBlur(1.5))
    grain = rng.normal(0, 3, (height, width, 1))
    image = (np.asarray(small) + grain).clip(0, 255).astype(np.uint8)
    return Example('Blood: boxes', DETECTOR, image, np.array(boxes), np.array(labels))

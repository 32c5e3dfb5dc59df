"""Rules for boxes."""

import math

from .coco import Coco
from .outlines import Box, box_of_polygons, is_number, is_polygon
from .report import Fault

ROUNDING = 1.0  # px that a box may lie outside without a word
SMALLEST = 1.0  # px; mmdet leaves out what is narrower or lower


def read_box(one: Coco) -> Box | None:
    """``bbox`` of an annotation; ``None`` if it is missing or empty."""
    box = one.get('bbox')
    if box is None or box == []:
        return None
    if not isinstance(box, list) or len(box) != 4 or not all(is_number(value) for value in box):
        raise Fault('refused', 'bbox is not four finite numbers', repr(box))
    return box


def rotation_of(one: Coco) -> float:
    """Degrees by which the box of an annotation is turned, as CVAT writes it."""
    attributes = one.get('attributes')
    found = attributes.get('rotation') if isinstance(attributes, dict) else None
    return float(found) if found is not None and is_number(found) else 0.0


def turn_box(box: Box, degrees: float) -> Box:
    """The upright box around a box that is turned about its centre."""
    x, y, width, height = box
    angle = math.radians(degrees)
    cos, sin = abs(math.cos(angle)), abs(math.sin(angle))
    wide, high = width * cos + height * sin, width * sin + height * cos
    return [x + (width - wide) / 2, y + (height - high) / 2, wide, high]


def overhang(box: Box, width: int, height: int) -> float:
    """Pixels by which a box reaches out of its image; negative within."""
    return max(-box[0], -box[1], box[0] + box[2] - width, box[1] + box[3] - height)


def clip_box(box: Box, width: int, height: int) -> Box:
    """A box within its image, of at least 1 px; else a :class:`.Fault`."""
    if box[2] < 0 or box[3] < 0:
        raise Fault('refused', 'boxes of negative width or height', repr(box))
    if box[2] == 0 or box[3] == 0:
        raise Fault('skipped', 'boxes of no width or height', repr(box))
    left, top = max(box[0], 0), max(box[1], 0)
    right, bottom = min(box[0] + box[2], width), min(box[1] + box[3], height)
    if left >= right or top >= bottom:
        raise Fault('skipped', 'boxes outside their image', f'{box} in {width} x {height}')
    if right - left < SMALLEST or bottom - top < SMALLEST:
        raise Fault(
            'skipped', 'boxes narrower or lower than 1 px, which mmdet leaves out', repr(box)
        )
    if overhang(box, width, height) <= 0:
        return box
    return [left, top, right - left, bottom - top]


def extent(one: Coco) -> tuple[float, float, float, float] | None:
    """Left, top, right, bottom of an annotation's box or polygons.

    ``None`` if it has none that can be read.
    """
    try:
        box = read_box(one)
    except Fault:
        return None
    outline = one.get('segmentation')
    if box is None and isinstance(outline, list) and outline and all(map(is_polygon, outline)):
        box = box_of_polygons(outline)
    return None if box is None else (box[0], box[1], box[0] + box[2], box[1] + box[3])

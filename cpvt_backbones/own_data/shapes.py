"""Boxes and outlines of objects: polygons or run-length encoding (RLE)."""

import math
import sys
from collections.abc import Iterable, Sequence
from itertools import permutations
from typing import Any

import numpy as np

from .dataset import Coco, Fault

Box = list[float]  # left, top, width, height, px
ROUNDING = 1.0  # px by which a box may exceed its image without a message
FAR = 10  # sides of an image
LARGEST = sys.float_info.max
SMALLEST = 1.0  # px; mmdet drops narrower or lower objects
MOST_POLYGONS = 50  # of an object that are compared with each other


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


def rotation_of(one: Coco) -> float:
    """Return the rotation of an annotation's box in degrees, as CVAT writes it."""
    attributes = one.get('attributes')
    found = attributes.get('rotation') if isinstance(attributes, dict) else None
    return float(found) if found is not None and is_number(found) else 0.0


def turn_box(box: Box, degrees: float) -> Box:
    """Return the upright box around a box that is rotated about its centre."""
    x, y, width, height = box
    angle = math.radians(degrees)
    cos, sin = abs(math.cos(angle)), abs(math.sin(angle))
    wide, high = width * cos + height * sin, width * sin + height * cos
    return [x + (width - wide) / 2, y + (height - high) / 2, wide, high]


def is_far(numbers: Iterable[float], size: tuple[int, int]) -> bool:
    """``True`` for an outline with coordinates ``FAR`` image sides away or more.

    The memory for drawing grows with the length of an outline, not with the size of the image.
    """
    limit = FAR * max(size)
    return any(abs(number) > limit for number in numbers)


def overhang(box: Box, width: int, height: int) -> float:
    """Return by how many px a box reaches out of its image; negative if inside."""
    return max(-box[0], -box[1], box[0] + box[2] - width, box[1] + box[3] - height)


def clip_box(box: Box, width: int, height: int) -> Box:
    """Clip a box to its image; raise :class:`.Fault` if less than 1 px is left."""
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

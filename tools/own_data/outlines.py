"""Outlines of objects: polygons, or run-length encoding (RLE)."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .coco import Coco

Box = list[float]  # left, top, width, height, px


def is_rle(outline: Any) -> bool:
    """True for COCO's run-length encoding, compressed or not."""
    return (
        isinstance(outline, dict) and isinstance(outline.get('size'), list) and 'counts' in outline
    )


def is_polygon(points: Any) -> bool:
    """True for three points or more, as x, y, x, y, ..."""
    if not isinstance(points, list) or len(points) < 6 or len(points) % 2:
        return False
    return all(is_number(value) for value in points)


def is_number(value: Any) -> bool:
    """True for a finite number that is no bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def mask_of(outline: Any, size: tuple[int, int]) -> np.ndarray:
    """Polygons or RLE as a mask, bool (H, W), of an image of this width and height."""
    from pycocotools import mask

    if is_rle(outline):
        return mask.decode(_encoded(outline)).astype(bool)
    return mask.decode(mask.merge(mask.frPyObjects(outline, size[1], size[0]))).astype(bool)


def can_be_decoded(outline: Coco) -> bool:
    """False for compressed RLE of more pixels than its size has."""
    from pycocotools import mask

    try:
        mask.decode(outline)
    except ValueError:
        return False
    return True


def rle_of(where: np.ndarray) -> Coco:
    """A mask, bool (H, W), as RLE that JSON can hold."""
    from pycocotools import mask

    found = mask.encode(np.asfortranarray(where.astype(np.uint8)))
    return dict(size=[*where.shape], counts=found['counts'].decode())


def box_of_outline(outline: Any) -> Box:
    """The box around polygons or RLE."""
    if is_rle(outline):
        from pycocotools import mask

        return mask.toBbox(_encoded(outline)).tolist()
    return box_of_polygons(outline)


def box_of_polygons(polygons: Sequence[Sequence[float]]) -> Box:
    """The box around polygons of x, y, x, y, ..."""
    points = np.concatenate([np.reshape(polygon, (-1, 2)) for polygon in polygons])
    left, top = points.min(axis=0).tolist()
    right, bottom = points.max(axis=0).tolist()
    return [left, top, right - left, bottom - top]


def area_of_outline(outline: Any) -> float:
    """Area of polygons or RLE, px."""
    if is_rle(outline):
        from pycocotools import mask

        return float(mask.area(_encoded(outline)))
    return sum(_polygon_area(np.reshape(polygon, (-1, 2))) for polygon in outline)


def _encoded(outline: Coco) -> Any:
    """RLE as pycocotools takes it."""
    from pycocotools import mask

    if isinstance(outline['counts'], list):
        return mask.frPyObjects(outline, *outline['size'])
    return outline


def _polygon_area(points: np.ndarray) -> float:
    x, y = points.T
    return float(abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2)

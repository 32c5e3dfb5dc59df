"""Where scenes and their masks lie on the ground."""

from pathlib import Path
from typing import Any

import numpy as np

from .report import Fault

TOLERANCE = 0.5  # px that the corners of a mask may be off those of its image


def check_place(image: Path, mask: Path) -> None:
    """``Fault`` if an image and its mask, of one size, lie in different places.

    Files without a place, or that rasterio does not read, are taken as they are.
    """
    from cpvt_backbones.inference.windows import open_scene

    scene, other = open_scene(image), open_scene(mask)
    if scene is None or other is None:
        return
    transforms = scene.file.transform, other.file.transform
    if any(one.is_identity or one.is_degenerate for one in transforms):
        return
    off = _distance(scene.file, other.file)
    if off < TOLERANCE:
        return
    detail = f'mask {mask}: its corners are {off:.4g} px away'
    systems = scene.file.crs, other.file.crs
    if all(systems) and systems[0] != systems[1]:
        detail += f'; {systems[1].to_string()}, not {systems[0].to_string()}'
    raise Fault('refused', 'masks of another place than their image: warp them to its grid', detail)


def _distance(image: Any, mask: Any) -> float:
    """How far the corners of a mask are from those of the image, at most, in px of the image.

    Infinite if the coordinates of one are none in the system of the other.
    """
    width, height = image.width, image.height
    columns, rows = np.array([0, width, 0, width]), np.array([0, 0, height, height])
    x, y = _apply(mask.transform, columns, rows)
    if image.crs and mask.crs and image.crs != mask.crs:
        from rasterio.errors import RasterioError
        from rasterio.warp import transform

        try:
            x, y = np.array(transform(mask.crs, image.crs, x.tolist(), y.tolist()))
        except (RasterioError, ValueError):
            return float('inf')
        if not np.isfinite([x, y]).all():
            return float('inf')
    found = _apply(~image.transform, x, y)
    return float(np.abs(np.array(found) - (columns, rows)).max())


def _apply(transform: Any, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    a, b, c, d, e, f = transform[:6]
    return a * x + b * y + c, d * x + e * y + f

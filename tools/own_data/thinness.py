"""How thin the classes of class maps are."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from rich.progress import track

from .mask_codes import IGNORE


class Thinnest(NamedTuple):
    """The thinnest class: its label, and its width in px in the images and as they are trained."""

    label: int
    own: float
    seen: float


def find_thinnest(maps: Sequence[Path], factors: Sequence[float]) -> Thinnest | None:
    """The class that is thinnest when each image is resized by its factor.

    ``None`` if no class has an edge.

    Args:
        maps: File of the class map of each image.
        factors: Of each image.
    """
    with ThreadPoolExecutor() as pool:
        counts = track(pool.map(_measure_file, maps), description='widths', total=len(maps))
        return thinnest_of([*counts], factors)


def _measure_file(file: Path) -> np.ndarray:
    return measure(np.asarray(Image.open(file)))


def measure(classes: np.ndarray) -> np.ndarray:
    """Pixels of each value of a class map (H, W), uint8, and pixel edges to others: (2, 256).

    The border of the map is no edge. That to pixels without class is one.
    """
    counts = np.zeros((2, 256), np.int64)
    counts[0] = np.bincount(classes.ravel(), minlength=256)
    for one, other in ((classes[:, 1:], classes[:, :-1]), (classes[1:], classes[:-1])):
        differ = one != other
        for side in (one, other):
            counts[1] += np.bincount(side[differ], minlength=256)
    return counts


def thinnest_of(counts: Sequence[np.ndarray], factors: Sequence[float]) -> Thinnest | None:
    """As :func:`find_thinnest`, of the counts of :func:`measure`.

    The width is 2 * area / edges, over all images: that of a line, half of a square's side, 0.4 of
    a disc's diameter.
    """
    areas, edges = np.moveaxis(np.asarray(counts, float), 1, 0)  # (images, 256) each
    factor = np.asarray(factors)[:, None]
    own = _widths(areas, edges)
    seen = _widths(areas * factor**2, edges * factor)
    label = int(np.argmin(seen))
    if not np.isfinite(seen[label]):
        return None
    return Thinnest(label, float(own[label]), float(seen[label]))


def _widths(areas: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Width of each class, px; infinite without edges, and of pixels without class."""
    total = edges.sum(axis=0)
    widths = np.full(len(total), np.inf)
    np.divide(2 * areas.sum(axis=0), total, out=widths, where=total > 0)
    widths[IGNORE] = np.inf
    return widths

"""Cuts images and class maps into tiles."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
from rich.progress import track

from cpvt_backbones.checkpoints import atomic_write
from cpvt_backbones.images.raster import open_raster
from cpvt_backbones.images.value_range import ValueRange

from ..dataset import Coco, Split
from ..decide.tiles import Tiles, window
from ..read.masks import read_map

QUALITY = 95  # of the JPEG files


def write_tiles(tiles: Tiles, folder: Path, *, value_range: ValueRange | None = None) -> Split:
    """Write tiles of images, and return them with their objects.

    Tiles are JPEG files, or, with ``value_range``, NumPy files with the values of the image.
    """

    if 'annotations' in tiles.coco:
        count = len(tiles.coco['images'])
        print(f'{folder.name}: {count} tiles, {tiles.left_out} without objects left out')

    def write(source: str) -> None:
        _write_images(tiles.split.root / source, tiles.by_image[source], folder, value_range)

    with ThreadPoolExecutor(4) as pool:
        total = len(tiles.by_image)
        for _ in track(pool.map(write, tiles.by_image), description='tiles', total=total):
            pass
    return Split(tiles.coco, folder, tiles.split.source)


def write_map_tiles(tiles: Tiles, maps: Path, folder: Path) -> None:
    """Write tiles of the class maps ``<file name of the image>.png`` in a folder."""

    def write(source: str) -> None:
        classes = read_map(maps / f'{source}.png')
        for tile in tiles.by_image[source]:
            _, encoded = cv2.imencode('.png', np.ascontiguousarray(classes[window(tile)]))
            with atomic_write(folder / f'{tile["file_name"]}.png') as file:
                file.write(encoded.tobytes())

    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(write, tiles.by_image):
            pass


def _write_images(
    source: Path, tiles: Sequence[Coco], folder: Path, value_range: ValueRange | None
) -> None:
    pixels = _read_values(source, value_range) if value_range else _read_image(source)
    for tile in tiles:
        part = np.ascontiguousarray(pixels[window(tile)])
        with atomic_write(folder / tile['file_name']) as file:
            if value_range:
                np.save(file, part)
                continue
            _, content = cv2.imencode('.jpg', part, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
            file.write(content.tobytes())


def _read_image(source: Path) -> np.ndarray:
    """Read an image like training: upright, 8 bits."""
    pixels = cv2.imdecode(np.fromfile(source, np.uint8), cv2.IMREAD_COLOR)
    assert pixels is not None  # the check has decoded it
    return pixels


def _read_values(source: Path, value_range: ValueRange) -> np.ndarray:
    """Read all bands; pixels without data, which NumPy files cannot mark, become LOW or less."""
    with open_raster(source) as raster:
        pixels = raster.read(range(1, raster.count + 1))
        missing = raster.missing(pixels)
    low = value_range.low
    if pixels.dtype.kind != 'f':
        low = max(np.floor(low), np.iinfo(pixels.dtype).min)
    pixels[missing] = low
    return pixels

"""Cut large images with small objects into tiles, as tools/infer.py does."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import cv2
import numpy as np
from rich.progress import track

from .boxes import SMALLEST
from .coco import Coco, Part
from .mask_codes import IGNORE
from .outlines import is_rle, mask_of, rle_of

if TYPE_CHECKING:
    from cpvt_backbones.value_range import ValueRange

TILE = 640  # px, side of a tile
OVERLAPS = 64, 320  # px, least and most that neighbours share, of images with boxes
VISIBLE = 0.5  # share of an object below which its part in a tile is ignored
QUALITY = 95  # of the JPEG files


def overlap_of(parts: Sequence[Part]) -> int:
    """Pixels that neighbouring tiles share: most objects are whole in one of them."""
    sides = [max(one['bbox'][2:]) for part in parts for one in part.coco['annotations']]
    return int(np.clip(np.ceil(np.quantile(sides, 0.95)), *OVERLAPS))


def cut_tiles(
    parts: Sequence[Part], folder: Path, *, overlap: int, value_range: 'ValueRange | None' = None
) -> list[Part]:
    """Write the tiles of all images and return them with their objects.

    Tiles without objects are written for as many as have some, evenly chosen; of an object that is
    cut, a part of less than ``VISIBLE`` of it is ignored (``iscrowd``). Tiles are JPEG
    files; with ``value_range``, NumPy files with the values of the image.
    """
    names = ('train', 'val')
    return [
        _cut_part(part, folder / name, overlap, value_range)
        for name, part in zip(names, parts, strict=True)
    ]


def cut_maps(
    part: Part,
    maps: Path,
    folder: Path,
    *,
    side: int,
    overlap: int = 0,
    value_range: 'ValueRange | None' = None,
) -> Part:
    """Write the tiles of images and of their class maps; return the images.

    Tiles without a pixel of a class are left out, but for the first of an image without any.

    Args:
        part: Images with their sizes.
        maps: Folder of ``<file name of the image>.png``.
        folder: Gets ``images/`` and ``masks/``.
        side: Of a tile, px.
        overlap: Pixels that neighbouring tiles share.
        value_range: Tiles are NumPy files with the values of the image; without it, JPEG files.
    """
    from cpvt_backbones.checkpoints import atomic_write

    suffix = '.npy' if value_range else '.jpg'

    def cut(image: Coco) -> list[Coco]:
        content = np.fromfile(maps / f'{image["file_name"]}.png', np.uint8)
        classes = cv2.imdecode(content, cv2.IMREAD_UNCHANGED)
        assert classes is not None  # just written
        tiles = [*_tiles_of(image, (), overlap, names[image['file_name']], suffix, side=side)]
        tiles = [tile for tile in tiles if (classes[_place_of(tile)] != IGNORE).any()] or tiles[:1]
        for tile in tiles:
            _, encoded = cv2.imencode('.png', np.ascontiguousarray(classes[_place_of(tile)]))
            with atomic_write(folder / f'masks/{tile["file_name"]}.png') as file:
                file.write(encoded.tobytes())
        _write_tiles(part.root / image['file_name'], tiles, folder / 'images', value_range)
        return tiles

    images = part.coco['images']
    names = output_names([image['file_name'] for image in images])
    with ThreadPoolExecutor(4) as pool:
        found = track(pool.map(cut, images), description='tiles', total=len(images))
        tiles = [tile for some in found for tile in some]
    return Part(dict(images=tiles), folder / 'images', part.source)


def _cut_part(part: Part, folder: Path, overlap: int, value_range: 'ValueRange | None') -> Part:
    suffix = '.npy' if value_range else '.jpg'
    objects: dict[int, list[Coco]] = {image['id']: [] for image in part.coco['images']}
    for one in part.coco['annotations']:
        objects[one['image_id']].append(one)
    tiles: list[Coco] = []
    names = output_names([image['file_name'] for image in part.coco['images']])
    for image in part.coco['images']:
        name = names[image['file_name']]
        tiles += _tiles_of(image, objects[image['id']], overlap, name, suffix)
    full = [tile for tile in tiles if tile['objects']]
    empty = [tile for tile in tiles if not tile['objects']]
    chosen = full + empty[:: max(1, -(-len(empty) // max(1, len(full))))]
    by_image: dict[str, list[Coco]] = {}
    for tile in chosen:
        by_image.setdefault(tile['source'], []).append(tile)
    print(f'{folder}: {len(chosen)} tiles, {len(tiles) - len(chosen)} without objects left out')

    def write(source: str) -> None:
        _write_tiles(part.root / source, by_image[source], folder, value_range)

    with ThreadPoolExecutor(4) as pool:
        for _ in track(pool.map(write, by_image), description='tiles', total=len(by_image)):
            pass
    images: list[Coco] = []
    annotations: list[Coco] = []
    for tile in chosen:
        number = len(images) + 1
        size = dict(width=tile['width'], height=tile['height'])
        images.append(dict(id=number, file_name=tile['file_name'], **size))
        for one in tile['objects']:
            annotations.append(dict(one, id=len(annotations) + 1, image_id=number))
    return Part(dict(part.coco, images=images, annotations=annotations), folder, part.source)


def output_names(sources: Sequence[str]) -> dict[str, str]:
    """A name within the output folder for each image, whatever its labels call it.

    Absolute paths and ``..`` lose what leads out of the folder. A name that is taken gets a number;
    case does not tell names apart.
    """
    names: dict[str, str] = {}
    taken: set[str] = set()
    for source in sources:
        parts = [part for part in PurePosixPath(source).parts if part not in ('/', '//', '..')]
        name = PurePosixPath(*parts)
        number = 1
        while str(name).lower() in taken:
            number += 1
            name = PurePosixPath(*parts[:-1], f'{number}_{parts[-1]}')
        taken.add(str(name).lower())
        names[source] = str(name)
    return names


def _tiles_of(
    image: Coco,
    objects: Sequence[Coco],
    overlap: int,
    name: str,
    suffix: str,
    *,
    side: int = TILE,
) -> Iterator[Coco]:
    """Tiles of an image, with their objects; ``name`` begins the names of their files."""
    from cpvt_backbones.inference.tiles import make_grid

    width, height = image['width'], image['height']
    grid = make_grid(height, width, tile_size=side, overlap=overlap)
    for (top, bottom), (left, right) in product(grid.rows, grid.columns):
        found = []
        for one in objects:
            cut = cut_object(one, left, top, right, bottom, size=(width, height))
            if cut is not None:
                found.append(cut)
        yield dict(
            source=image['file_name'],
            file_name=f'{name}_{top}_{left}{suffix}',
            left=left,
            top=top,
            width=right - left,
            height=bottom - top,
            objects=found,
        )


def cut_object(
    one: Coco, left: int, top: int, right: int, bottom: int, *, size: tuple[int, int]
) -> Coco | None:
    """The part of an object in a tile, in px of the tile; ``None`` if it has less than 1 px.

    Args:
        one: Annotation with ``bbox``.
        left: Of the tile, px; so ``top``, ``right`` and ``bottom``.
        top: See ``left``.
        right: See ``left``.
        bottom: See ``left``.
        size: Width and height of the image, px.
    """
    x, y, width, height = one['bbox']
    x1, x2 = max(x, left), min(x + width, right)
    y1, y2 = max(y, top), min(y + height, bottom)
    if x2 - x1 < SMALLEST or y2 - y1 < SMALLEST:
        return None
    visible = (x2 - x1) * (y2 - y1) / (width * height)
    cut = dict(one, bbox=[x1 - left, y1 - top, x2 - x1, y2 - y1], area=one['area'] * visible)
    outline = one.get('segmentation')
    if outline is not None and (visible < 1 or is_rle(outline)):
        mask = mask_of(outline, size)
        part = mask[top:bottom, left:right]
        if not part.any():
            return None
        visible = float(part.sum() / mask.sum())
        cut |= dict(segmentation=rle_of(part), area=int(part.sum()))
        rows, columns = np.flatnonzero(part.any(1)), np.flatnonzero(part.any(0))
        span = int(columns[-1] - columns[0]) + 1, int(rows[-1] - rows[0]) + 1
        cut['bbox'] = [int(columns[0]), int(rows[0]), *span]
    elif outline is not None:
        shift = np.array([left, top])
        cut['segmentation'] = [
            (np.reshape(points, (-1, 2)) - shift).ravel().tolist() for points in outline
        ]
    if visible < VISIBLE:
        cut['iscrowd'] = 1
    return cut


def _write_tiles(
    source: Path, tiles: Sequence[Coco], folder: Path, value_range: 'ValueRange | None'
) -> None:
    from cpvt_backbones.checkpoints import atomic_write

    pixels = _read_values(source, value_range) if value_range else _read_image(source)
    for tile in tiles:
        part = np.ascontiguousarray(pixels[_place_of(tile)])
        with atomic_write(folder / tile['file_name']) as file:
            if value_range:
                np.save(file, part)
                continue
            _, content = cv2.imencode('.jpg', part, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
            file.write(content.tobytes())


def _place_of(tile: Coco) -> tuple[slice, slice]:
    rows = slice(tile['top'], tile['top'] + tile['height'])
    return rows, slice(tile['left'], tile['left'] + tile['width'])


def _read_image(source: Path) -> np.ndarray:
    """As training reads images: upright, 8 bits."""
    pixels = cv2.imdecode(np.fromfile(source, np.uint8), cv2.IMREAD_COLOR)
    assert pixels is not None  # the check has decoded it
    return pixels


def _read_values(source: Path, value_range: 'ValueRange') -> np.ndarray:
    """Values of all bands; pixels without data, which NumPy files lack, become LOW or less."""
    from cpvt_backbones.value_range import open_raster

    with open_raster(source) as raster:
        pixels = raster.read(range(1, raster.count + 1))
        missing = raster.missing(pixels)
    low = value_range.low
    if pixels.dtype.kind != 'f':
        low = max(np.floor(low), np.iinfo(pixels.dtype).min)
    pixels[missing] = low
    return pixels

"""Tiles of large images, and the sizes that need them.

``sahi.slicing`` is not used for boxes, because it drops RLE outlines, takes regions to ignore for
objects, and leaves small parts of objects as background.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import PurePosixPath

import numpy as np
from rich.progress import track

from cpvt_backbones.inference.tiles import make_grid

from ..dataset import SMALLEST, Coco, Split, is_rle, mask_of, rle_of
from ..read.masks import IGNORE

TILE = 640  # px, side of a tile
OVERLAPS = 64, 320  # px, minimum and maximum overlap of neighbours in images with boxes
VISIBLE = 0.5  # share of an object below which its part in a tile is ignored


def overlap_of(splits: Sequence[Split]) -> int:
    """Choose the overlap in px with which most objects are whole in some tile."""
    sides = [max(one['bbox'][2:]) for split in splits for one in split.coco['annotations']]
    return int(np.clip(np.ceil(np.quantile(sides, 0.95)), *OVERLAPS))


@dataclass
class Tiles:
    """Tiles of a split, not yet cut.

    Args:
        split: The images to be cut.
        coco: Images of the tiles, and their objects, if any.
        by_image: Tiles by ``file_name`` of their image: ``file_name``, ``left``, ``top``, ``width``
            and ``height`` in px.
        left_out: Number of unused tiles without objects.
    """

    split: Split
    coco: Coco
    by_image: dict[str, list[Coco]]
    left_out: int = 0


def tile_objects(split: Split, *, overlap: int, suffix: str) -> Tiles:
    """Make tiles of images with objects.

    Tiles without objects are used up to the number of those with objects, evenly chosen. Parts of
    objects below the share ``VISIBLE`` are ignored (``iscrowd``).

    Args:
        split: Images with their sizes and objects.
        overlap: Overlap of neighbouring tiles in px.
        suffix: Suffix of the tiles' files.
    """
    objects: dict[int, list[Coco]] = {image['id']: [] for image in split.coco['images']}
    for one in split.coco['annotations']:
        objects[one['image_id']].append(one)
    tiles: list[Coco] = []
    names = output_names([image['file_name'] for image in split.coco['images']])
    for image in split.coco['images']:
        name = names[image['file_name']]
        tiles += _tiles_of(image, objects[image['id']], overlap, name, suffix)
    full = [tile for tile in tiles if tile['objects']]
    empty = [tile for tile in tiles if not tile['objects']]
    chosen = full + empty[:: max(1, -(-len(empty) // max(1, len(full))))]
    by_image: dict[str, list[Coco]] = {}
    images: list[Coco] = []
    annotations: list[Coco] = []
    for tile in chosen:
        by_image.setdefault(tile['source'], []).append(tile)
        number = len(images) + 1
        size = dict(width=tile['width'], height=tile['height'])
        images.append(dict(id=number, file_name=tile['file_name'], **size))
        for one in tile['objects']:
            annotations.append(dict(one, id=len(annotations) + 1, image_id=number))
    coco = dict(split.coco, images=images, annotations=annotations)
    return Tiles(split, coco, by_image, len(tiles) - len(chosen))


def tile_maps(
    split: Split,
    read: Callable[[str], np.ndarray],
    *,
    side: int,
    suffix: str,
    overlap: int = 0,
    no_class: int = IGNORE,
) -> Tiles:
    """Make tiles of images with class maps.

    Tiles without a pixel of a class are left out, except the first one of an image without any.

    Args:
        split: Images with their sizes.
        read: Function that returns the class map (H, W) of an image by its ``file_name``.
        side: Side of a tile in px.
        suffix: Suffix of the tiles' files.
        overlap: Overlap of neighbouring tiles in px.
        no_class: Value of pixels without class.
    """
    names = output_names([image['file_name'] for image in split.coco['images']])

    def choose(image: Coco) -> list[Coco]:
        source = image['file_name']
        classes = read(source)
        tiles = [*_tiles_of(image, (), overlap, names[source], suffix, side=side)]
        return [tile for tile in tiles if (classes[window(tile)] != no_class).any()] or tiles[:1]

    images = split.coco['images']
    with ThreadPoolExecutor(4) as pool:
        found = [*track(pool.map(choose, images), description='tiles', total=len(images))]
    by_image = {image['file_name']: tiles for image, tiles in zip(images, found, strict=True)}
    return Tiles(split, dict(images=[tile for tiles in found for tile in tiles]), by_image)


def window(tile: Coco) -> tuple[slice, slice]:
    """Return rows and columns of a tile in its image."""
    rows = slice(tile['top'], tile['top'] + tile['height'])
    return rows, slice(tile['left'], tile['left'] + tile['width'])


def output_names(sources: Sequence[str]) -> dict[str, str]:
    """Choose a name within the output folder for each image.

    Absolute paths and ``..`` are cut so that they stay in the folder. A taken name gets a number,
    regardless of case.
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
    """Make the tiles of an image with their objects; their file names begin with ``name``."""
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
    """Cut an object to a tile, in px of the tile; ``None`` if less than 1 px is left.

    Args:
        one: Annotation with ``bbox``.
        left: Left side of the tile in px of the image.
        top: Top side of the tile.
        right: Right side of the tile.
        bottom: Bottom side of the tile.
        size: Width and height of the image in px.
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

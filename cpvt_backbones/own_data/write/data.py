"""Writes the data of a config to one folder: JSON files, lists, class maps and tiles."""

import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.progress import track

from cpvt_backbones.checkpoints import atomic_write
from cpvt_backbones.errors import InputError
from cpvt_backbones.images.value_range import ValueRange
from cpvt_backbones.images.windows import open_scene
from cpvt_backbones.label_files import CLASSES, describe_labels
from cpvt_backbones.text import csv_text

from ..check.masks import MaskClasses
from ..dataset import Report, Split
from ..decide.settings import Settings
from ..read.masks import MaskedImages, measure, no_class_of, read_mask, translate
from .tiles import write_map_tiles, write_tiles

SPLITS = ('train', 'val')
MAPS = 'masks'  # folder of the class maps


def write_list(names: Iterable[str], path: Path) -> str:
    """Write one name per line; return the absolute path."""
    with atomic_write(path) as file:
        file.write(''.join(f'{name}\n' for name in names).encode())
    return str(path.resolve())


def write_json(content: Any, path: Path, *, indent: int | None = None) -> Path:
    """Write JSON and return the absolute path.

    Raises:
        InputError: The content is nested too deeply.
    """
    try:
        text = json.dumps(content, allow_nan=False, indent=indent)
    except RecursionError:
        raise InputError('data: labels with values that are nested too deeply') from None
    with atomic_write(path) as file:
        file.write(text.encode())
    return path.resolve()


def write_report(report: Report, file: Path) -> str:
    """Write a CSV file of all entries, and return a text that names it.

    The text is ``''`` if there are no entries and the printed table has all classes.
    """
    if not report.is_long:
        file.unlink(missing_ok=True)  # of an earlier call
        return ''
    text = csv_text([('outcome', 'reason', 'file'), *report.rows()])
    with atomic_write(file) as stream:
        stream.write(text.encode(errors='surrogateescape'))
    return f'; the whole list: {file}'


def write_objects(
    settings: Settings, folder: Path, *, value_range: ValueRange | None = None
) -> dict[str, Any]:
    """Write COCO JSON of both splits, and tiles; return names and paths for the config."""
    splits = settings.splits
    if settings.tiles:
        splits = []
        for name, tiles in zip(SPLITS, settings.tiles, strict=True):
            splits.append(write_tiles(tiles, folder / 'tiles' / name, value_range=value_range))
    texts: dict[str, Any] = dict(classes=tuple(settings.classes))
    for name, split in zip(SPLITS, splits, strict=True):
        texts[name] = str(write_json(split.coco, folder / f'{name}.json'))
        texts[f'{name}_images'] = str(split.root.resolve())
    return texts


def write_map_lists(
    settings: Settings, folder: Path, *, value_range: ValueRange | None = None
) -> dict[str, Any]:
    """Write lists of images, and tiles of images and class maps; return names and paths."""
    maps, images = folder / MAPS, settings.splits[0].root
    write_json(describe_labels(settings.classes), maps / CLASSES)
    if settings.tiles:
        tiled = folder / 'tiles'
        for tiles in settings.tiles:
            write_tiles(tiles, tiled / 'images', value_range=value_range)
            write_map_tiles(tiles, maps, tiled / MAPS)
        maps, images = tiled / MAPS, tiled / 'images'
        write_json(describe_labels(settings.classes), maps / CLASSES)
    texts: dict[str, Any] = dict(classes=tuple(settings.classes))
    texts |= dict(images=str(images.resolve()), masks=str(maps.resolve()))
    for name, split in zip(SPLITS, settings.splits, strict=True):
        names = [image['file_name'] for image in split.coco['images']]
        texts[name] = write_list(names, folder / f'{name}.txt')
    _write_classes(settings.classes, folder)
    return texts


def write_labels(settings: Settings, folder: Path) -> dict[str, Any]:
    """Write lists of images with class indices; return names and paths."""
    classes = [*settings.classes]
    images = str(settings.splits[0].root.resolve())
    texts: dict[str, Any] = dict(classes=tuple(classes), images=images)
    for name, split in zip(SPLITS, settings.splits, strict=True):
        lines = []
        for image in split.coco['images']:
            lines.append(f'{image["file_name"]} {classes.index(image["label"])}')
        texts[name] = write_list(lines, folder / f'{name}.txt')
    _write_classes(classes, folder)
    return texts


def _write_classes(classes: Sequence[str], folder: Path) -> None:
    """Write the class names for the numbers in the lists of a folder."""
    lists = [folder / f'{name}.txt' for name in SPLITS]
    write_json(describe_labels(classes, lists), folder / CLASSES)


def write_class_maps(
    images: MaskedImages,
    classes: MaskClasses,
    splits: Sequence[Split],
    target: Path,
    *,
    value_range: ValueRange | None = None,
) -> tuple[list[np.ndarray], float]:
    """Write the class map of each image as ``<file name of the image>.png``.

    "No class" is 255, or 65535 in the 16-bit maps of more than 255 classes. Pixels without data in
    a TIFF or JPEG 2000 image have no class.

    Args:
        images: Images with masks.
        classes: Classes of the masks.
        splits: The images that are used.
        target: Folder of the maps.
        value_range: Conversion of images of more than 8 bits.

    Returns:
        Counts of each map in the first split, from :func:`..read.masks.measure`, and the share of
        pixels without data in all maps.
    """
    no_class = no_class_of(len(classes.names))

    def write(name: str) -> tuple[np.ndarray, int, int]:
        """Return the counts, the number of pixels without data, and the number of pixels."""
        codes = read_mask(images.masks[name], palette=images.palette).codes
        indices = translate(codes, classes.table, no_class)
        height, width = indices.shape
        scene = open_scene(images.split.root / name, value_range)
        missing = scene.missing((0, height), (0, width)) if scene else None
        if missing is not None:
            indices[missing] = no_class
        with atomic_write(target / f'{name}.png') as file:
            Image.fromarray(indices).save(file, format='PNG')
        without = 0 if missing is None else int(missing.sum())
        return measure(indices, len(classes.names)), without, indices.size

    names = [image['file_name'] for split in splits for image in split.coco['images']]
    with ThreadPoolExecutor() as pool:
        found = [*track(pool.map(write, names), description='class maps', total=len(names))]
    counts, missing, pixels = zip(*found, strict=True)
    return [*counts[: len(splits[0].coco['images'])]], sum(missing) / sum(pixels)

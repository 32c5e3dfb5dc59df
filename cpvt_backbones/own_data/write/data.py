"""Writes the data of a config to one folder: JSON, lists, class maps, tiles and a sheet."""

import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image
from rich.progress import track

from cpvt_backbones.checkpoints import atomic_write
from cpvt_backbones.errors import InputError
from cpvt_backbones.images.raster import open_raster
from cpvt_backbones.images.value_range import ValueRange
from cpvt_backbones.images.windows import open_scene
from cpvt_backbones.inference.drawing import (
    SHEET_SIDE,
    ClassStyle,
    class_colours,
    contact_sheet,
    draw_prediction,
    fit_to_sheet,
    make_preview,
)
from cpvt_backbones.label_files import CLASSES, describe_labels
from cpvt_backbones.text import csv_text

from ..check.masks import MaskClasses
from ..dataset import Coco, Report, Split, mask_of, rle_of
from ..decide.settings import Settings, measure
from ..decide.tiles import Tiles, window
from ..read.files import read_lines
from ..read.masks import MaskedImages, no_class_of, read_map, read_mask, translate

SPLITS = ('train', 'val')
MAPS = 'masks'  # folder of the class maps
QUALITY = 95  # of the JPEG files
MOST = {'train': 8, 'val': 4}  # images
SHEET_QUALITY = 90  # of the JPEG file
UNREAD = np.full((SHEET_SIDE // 2, SHEET_SIDE, 3), 128, np.uint8)  # in place of a damaged image
NO_CLASS = (128, 128, 128)  # RGB


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


@dataclass
class Labelled:
    """An image file and its labels for :func:`.draw_prediction`."""

    file: Path
    labels: dict[str, Any]


def write_sheet(
    task: str, texts: dict[str, Any], file: Path, *, value_range: ValueRange | None = None
) -> Path:
    """Draw up to 12 images with their labels, read from the files of the config.

    Args:
        task: Task of the config, such as ``'detector'``.
        texts: Names and paths of the data.
        file: The picture, .jpg.
        value_range: Conversion of images of more than 8 bits.

    Returns:
        The file.
    """
    classes = [*texts['classes']]
    style = ClassStyle('detection', classes)
    if task == 'segmentor':
        colours = class_colours(ClassStyle('segmentation', classes)).tolist()
        style = ClassStyle('segmentation', [*classes, 'no class'], [*colours, NO_CLASS])
    elif task == 'classifier':
        style = ClassStyle('classification', classes)
    pictures = []
    for split in MOST:
        for one in _labelled(task, texts, split):
            image = value_range.read(one.file) if value_range else _read(one.file)
            if image is None:  # only headers were checked
                pictures.append((UNREAD, f'{split}: {one.file.name} cannot be decoded'))
                continue
            preview = fit_to_sheet(make_preview(image))
            drawn = draw_prediction(preview, one.labels, style, image.shape[1::-1])
            pictures.append((drawn, f'{split}: {one.file.name}'))
    with atomic_write(file) as stream:
        contact_sheet(pictures).save(stream, format='JPEG', quality=SHEET_QUALITY, subsampling=0)
    return file


def _labelled(task: str, texts: dict[str, Any], split: str) -> list[Labelled]:
    """Choose images of a split evenly, with their labels."""
    if task in ('detector', 'instance segmentor'):
        coco = json.loads(Path(texts[split]).read_bytes())
        root = Path(texts[f'{split}_images'])
        return _with_objects(coco, root, MOST[split], outlines=task == 'instance segmentor')
    lines = _spread(read_lines(Path(texts[split])), MOST[split])
    root = Path(texts['images'])
    found = []
    for line in lines:
        if task == 'segmentor':
            seg_map = read_map(Path(texts['masks'], f'{line}.png')).astype(np.int64)
            # "No class", a larger number, becomes the number of classes.
            labels: dict[str, Any] = dict(seg_map=np.minimum(seg_map, len(texts['classes'])))
            found.append(Labelled(root / line, labels))
        else:
            name, _, index = line.rpartition(' ')
            label = int(index)
            labels = {'label': label, 'class': texts['classes'][label]}
            found.append(Labelled(root / name, labels))
    return found


def _with_objects(coco: Coco, root: Path, count: int, *, outlines: bool) -> list[Labelled]:
    """Choose images of COCO JSON, with objects if there are any."""
    objects: dict[int, list[Coco]] = {image['id']: [] for image in coco['images']}
    for one in coco['annotations']:
        objects[one['image_id']].append(one)
    order = [category['id'] for category in coco['categories']]
    names = {category['id']: category['name'] for category in coco['categories']}
    images = [image for image in coco['images'] if objects[image['id']]] or coco['images']
    found = []
    for image in _spread(images, count):
        labels: dict[str, Any] = dict(labels=[], classes=[], boxes=[])
        if outlines:
            labels['masks'] = []
        for one in objects[image['id']]:
            left, top, width, height = one['bbox']
            ignored = ' (ignored)' if one['iscrowd'] else ''
            labels['labels'].append(order.index(one['category_id']))
            labels['classes'].append(names[one['category_id']] + ignored)
            labels['boxes'].append([left, top, left + width, top + height])
            if outlines:
                size = image['width'], image['height']
                labels['masks'].append(rle_of(mask_of(one['segmentation'], size)))
        found.append(Labelled(root / image['file_name'], labels))
    return found


def _spread(items: Sequence[Any], count: int) -> list[Any]:
    """Choose at most ``count`` items at equal distances."""
    chosen = np.linspace(0, len(items) - 1, min(count, len(items)))
    return [items[round(index)] for index in chosen.tolist()]


def _read(file: Path) -> np.ndarray | None:
    """Read an image like training, upright and BGR; ``None`` if it is damaged."""
    content = np.fromfile(file, np.uint8)
    return cv2.imdecode(content, cv2.IMREAD_COLOR) if content.size else None

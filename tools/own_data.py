"""Readers of a user's own data: COCO JSON, Pascal VOC, masks, class folders; see tools/make_config.py."""

import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image
from rich.progress import track

Coco = dict[str, Any]
Item = TypeVar('Item')
IGNORE = 255  # class index of pixels without class
COLOUR = 0x1000000


def files_in(folder: Path, suffixes: Collection[str] | None = None) -> dict[str, Path]:
    """Images (or files with ``suffixes``) in a folder, in order, by their path in it without suffix."""
    from cpvt_backbones.inference import IMAGE_SUFFIXES

    suffixes = suffixes or IMAGE_SUFFIXES
    found = sorted(path for path in folder.rglob('*') if path.suffix.lower() in suffixes)
    if not found:
        raise FileNotFoundError(f'data: no {" or ".join(suffixes)} in the folder {str(folder)!r}')
    return {path.relative_to(folder).with_suffix('').as_posix(): path for path in found}


def split(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Training and validation names: by their folders train and val, valid, validation or test, or every fifth."""
    names = sorted(names)
    first = {name: name.partition('/')[0].lower() for name in names}
    for other in ('val', 'valid', 'validation', 'test'):
        if {'train', other} <= {*first.values()}:
            return [name for name in names if first[name] == 'train'], [name for name in names if first[name] == other]
    if len(names) < 2:
        raise ValueError(f'data: at least 2 images are needed, for training and validation, got {len(names)}')
    held_out = {*names[4::5]} or {names[-1]}
    return [name for name in names if name not in held_out], sorted(held_out)


def write_json(content: Any, path: Path) -> Path:
    """Write JSON; returns the absolute path."""
    from cpvt_backbones.checkpoints import atomic_write

    with atomic_write(path) as file:
        file.write(json.dumps(content).encode())
    return path.resolve()


def read_coco(file: Path, images: Path) -> Coco:
    """A COCO JSON of boxes, completed with areas and sizes; every image is checked to exist."""
    try:
        content = json.loads(file.read_bytes())
        for image in content['images']:
            if not (images / image['file_name']).is_file():
                raise FileNotFoundError(f'data: {file} names {image["file_name"]!r}, which is not in {str(images)!r}')
            if not (image.get('width') and image.get('height')):
                image['width'], image['height'] = Image.open(images / image['file_name']).size
        known = {category['id'] for category in content['categories']}
        for box in content['annotations']:
            if box['category_id'] not in known:
                raise ValueError(f'data: {file}: a box has category_id {box["category_id"]}, which is no category')
            box.update(iscrowd=box.get('iscrowd', 0), area=box.get('area') or box['bbox'][2] * box['bbox'][3])
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f'data: {file} is no COCO JSON of boxes ({type(error).__name__}: {error})') from error
    return content


def part_of(coco: Coco, names: Collection[str]) -> Coco:
    """The images of these file names, and their boxes."""
    images = [image for image in coco['images'] if image['file_name'] in names]
    ids = {image['id'] for image in images}
    return {**coco, 'images': images, 'annotations': [box for box in coco['annotations'] if box['image_id'] in ids]}


def read_voc(folder: Path, names: Sequence[str] | None = None, *, classes: Sequence[str] | None = None) -> Coco:
    """Boxes of Pascal VOC files as COCO JSON; paths of images are those in ``folder``.

    Args:
        folder: Has the .xml files and the images anywhere in it; one belongs to the image of its name.
        names: Of the .xml files, without folder and suffix; by default all.
        classes: Names of the classes; by default those that occur, sorted.
    """
    files = {path.stem: path for path in files_in(folder, ['.xml']).values()}
    pictures = {path.stem: path for path in files_in(folder).values()}
    images, boxes = [], []
    for name in track(sorted(files) if names is None else names, description='VOC'):
        if name not in files or name not in pictures:
            raise FileNotFoundError(f'data: there is no {name}.xml, or no image {name!r}, in {str(folder)!r}')
        with Image.open(pictures[name]) as picture:
            width, height = picture.size
        path = pictures[name].relative_to(folder).as_posix()
        images.append(dict(id=len(images) + 1, file_name=path, width=width, height=height))
        for kind, box in _voc_boxes(files[name], width, height):
            if classes is not None and kind not in classes:
                raise ValueError(f'data: the classes of {files[name]} must be among {classes}, got {kind!r}')
            area = box[2] * box[3]
            boxes.append(dict(id=len(boxes) + 1, image_id=len(images), bbox=box, area=area, iscrowd=0, name=kind))
    classes = sorted({box['name'] for box in boxes}) if classes is None else classes
    for box in boxes:
        box['category_id'] = classes.index(box.pop('name')) + 1
    categories = [dict(id=number, name=name) for number, name in enumerate(classes, 1)]
    return dict(images=images, annotations=boxes, categories=categories)


def _voc_boxes(file: Path, width: int, height: int) -> Iterable[tuple[str, list[float]]]:
    """Name and x, y, width, height of each box. VOC counts pixels from 1 and includes the last one."""
    try:
        objects = list(ET.parse(file).iter('object'))
    except ET.ParseError as error:
        raise ValueError(f'data: {file} is not XML: {error}') from None
    for element in objects:
        corners = [float(element.findtext(f'bndbox/{side}') or 'nan') for side in ('xmin', 'ymin', 'xmax', 'ymax')]
        left, top = max(corners[0] - 1, 0), max(corners[1] - 1, 0)
        right, bottom = min(corners[2], width), min(corners[3], height)
        if not (left < right and top < bottom):
            raise ValueError(f'data: boxes of {file} must have pixels in its {width} x {height}, got {corners}')
        if np.abs(np.array([left + 1, top + 1, right, bottom]) - corners).max() > 1:  # some tools count from 0
            print(f'{file}: a box is clipped to the image, {corners}')
        yield element.findtext('name', ''), [left, top, right - left, bottom - top]


def read_classes(file: Path) -> tuple[list[str], list[tuple[int, ...]]]:
    """Names of classes, one a line, and their colours if each line has three numbers too."""
    lines = [line.replace(',', ' ').split() for line in file.read_text(encoding='utf-8').splitlines() if line.strip()]
    colours = [tuple(int(word) for word in line if word.isdecimal()) for line in lines]
    names = [' '.join(word for word in line if not word.isdecimal()) for line in lines]
    if {*map(len, colours)} - {0} not in (set(), {3}) or (any(colours) and not all(colours)) or not all(names):
        raise ValueError(f'--classes: lines of {file} must be NAME, or NAME RED GREEN BLUE each, got {lines[:3]}')
    return names, colours if all(colours) else []


def pair_masks(pictures: Collection[str], masks: Mapping[str, Path]) -> dict[str, Path]:
    """The mask of each image: of the same path, or of the path and a separator (``a.jpg``, ``a_mask.png``).

    A mask of the longer image name is not that of the shorter (``img_1``, ``img_1_2``). ``ValueError`` unless each
    image has exactly one mask.
    """
    owners: dict[str, list[str]] = {name: [] for name in pictures}
    for mask in masks:
        starts = [mask[: match.start()] for match in re.finditer(r'[_\-. ]', mask)]
        owner = next((name for name in (mask, *reversed(starts)) if name in owners), None)
        if owner is not None:
            owners[owner].append(mask)
    pairs = {}
    for name, found in owners.items():
        exact = [mask for mask in found if mask == name]
        if len(exact or found) > 1:
            raise ValueError(f'data: image {name!r} must have one mask, got {sorted(found)}')
        if found:
            pairs[name] = masks[(exact or found)[0]]
    if lacking := [name for name in pictures if name not in pairs]:
        fault = f'{len(lacking)} of {len(owners)} images have no mask, the first is {lacking[0]!r}'
        raise FileNotFoundError(f'data: {fault}')
    return pairs


def write_masks(
    images: Path, masks: Path, target: Path, *, classes: Path | None, ignore: Sequence[int]
) -> tuple[dict[str, Path], list[str]]:
    """Write class maps (PNG, 255 for no class) from masks of class indices or colours.

    :func:`pair_masks` says which mask belongs to which image.

    Returns:
        The images by name, and the names of the classes.
    """
    from cpvt_backbones.checkpoints import atomic_write

    pictures, found = files_in(images), files_in(masks)
    pairs = pair_masks(pictures, found)
    names, colours = read_classes(classes) if classes else ([], [])
    values = Counter[int]()
    for path in track([*pairs.values()], description='masks'):
        values.update(np.unique(_codes(path)).tolist())
    coded = max(values) >= COLOUR and (bool(colours) or any(v % 0x10101 for v in map(_rgb, values)))
    own = (lambda code: code) if coded else (lambda code: code & 0xFF)  # a grey mask stored as RGB
    seen = {own(value) for value in values}
    if coded:
        order = [COLOUR + (r << 16) + (g << 8) + b for r, g, b in colours] or sorted(seen)
    elif seen == {0, IGNORE} and not ignore:
        order = [0, IGNORE]
    else:
        order = [*range(max([len(names) - 1, *(seen - {IGNORE})]) + 1)]
    unknown = seen - {*order, IGNORE}
    if unknown or len(order) > 255 or (names and {*range(len(names), len(order))} - {*ignore}):
        what = f'{len(seen)} values, {len(unknown)} of them unknown, for {len(names)} names'
        raise ValueError(f'data: the masks in {str(masks)!r} have {what}: see --classes and --ignore')
    kept = [i for i in range(len(order)) if i not in ignore]
    table = {order[i]: new for new, i in enumerate(kept)}
    names = [names[i] if names else f'class_{_rgb(order[i]):06x}' if coded else f'class_{i}' for i in kept]
    for name, path in track(pairs.items(), description='class maps'):
        codes, inverse = np.unique(mask := _codes(path), return_inverse=True)
        if mask.shape != (shape := Image.open(pictures[name]).size[::-1]):
            raise ValueError(f'data: {path} must have the size of its image, {shape}, got {mask.shape}')
        new = np.array([table.get(own(code), IGNORE) for code in codes.tolist()], np.uint8)
        with atomic_write(target / f'{name}.png') as file:
            Image.fromarray(new[inverse].reshape(mask.shape)).save(file, format='PNG')
    return pictures, names


def _codes(path: Path) -> np.ndarray:
    """(H, W): class indices, or COLOUR plus the colour as one number."""
    with Image.open(path) as mask:
        if mask.mode in ('1', 'L', 'P', 'I', 'I;16'):
            return np.asarray(mask).astype(np.int64)
        red, green, blue = np.asarray(mask.convert('RGB')).astype(np.int64).transpose(2, 0, 1)
    return COLOUR + (red << 16) + (green << 8) + blue


def _rgb(code: int) -> int:
    return code & 0xFFFFFF

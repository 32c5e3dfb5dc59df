"""Reads Pascal VOC files."""

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from rich.progress import track

from cpvt_backbones.errors import InputError
from cpvt_backbones.text import Spellings, stems

from ..dataset import Coco, Fault, Report, Split
from .files import (
    OTHER_SPELLING,
    TRAIN,
    VALIDATION,
    files_in,
    read_bytes,
    read_lines,
)

MASK_FOLDERS = ('SegmentationClass', 'SegmentationObject')  # VOC's own
# Names of both lists in ImageSets/Main; the first existing pair is used.
LISTS = (*((TRAIN, other) for other in VALIDATION), ('trainval', 'test'))
SIDES = ('xmin', 'ymin', 'xmax', 'ymax')


def read_voc(
    folder: Path,
    report: Report,
    *,
    classes: Sequence[str] | None = None,
    lists: Sequence[str] | None = None,
    first_pixel: int | None = None,
) -> list[Split]:
    """Read boxes of Pascal VOC files as COCO JSON; image paths are relative to ``folder``.

    Args:
        folder: Folder with .xml files and images anywhere in it.
        report: Receives files that are skipped or refused.
        classes: Names of the classes; by default those that occur, sorted.
        lists: Names of files in ``ImageSets/Main``, without ``.txt``, that each list the images of
            a split; by default the first existing pair of ``LISTS``.
        first_pixel: Number of the first pixel of a side: 1 in VOC, or 0. The default is 0 if a left
            or upper corner is below 1, which VOC does not have; otherwise 1.

    Returns:
        A split for each list if all exist, otherwise one split.
    """
    files = files_in(folder, report, ['.xml'])
    pictures = [name for name in files_in(folder, report) if not _is_drawn(name)]
    owners = pair_files(files, pictures, report, str(folder))
    images: list[Coco] = []
    objects: list[Coco] = []
    for file in track(files, description='VOC'):
        if file in owners:
            try:
                image, found = _read_file(folder / file, report)
            except Fault as fault:
                report.add_fault(fault, str(folder / file))
                continue
            images.append(dict(image, id=len(images) + 1, file_name=owners[file]))
            for one in found:
                objects.append(dict(one, id=len(objects) + 1, image_id=len(images)))
    if first_pixel is None:
        first_pixel = _find_first_pixel(objects, images, folder, report)
    for one in objects:
        one['bbox'] = _box_of(one.pop('corners'), first_pixel)
    names = sorted({one['name'] for one in objects}) if classes is None else [*classes]
    for one in objects:
        name = one.pop('name')
        one['category_id'] = names.index(name) + 1 if name in names else name
    categories = [dict(id=number, name=name) for number, name in enumerate(names, 1)]
    coco = dict(images=images, annotations=objects, categories=categories)
    return _by_lists(Split(coco, folder, str(folder)), [lists] if lists else LISTS, report)


def _find_first_pixel(
    objects: Sequence[Coco], images: Sequence[Coco], folder: Path, report: Report
) -> int:
    """Return 0, and report it, if a left or upper corner is below 1; otherwise 1, as in VOC."""
    found = [one for one in objects if 0 <= min(one['corners'][:2]) < 1]
    reason = (
        'boxes with a corner of 0: the corners of all boxes count pixels from 0, as programs other'
        ' than VOC write them, and are read as they are'
    )
    for one in found:
        name = images[one['image_id'] - 1]['file_name']  # ids count from 1
        report.add('note', reason, f'{folder / name} ({one["corners"]})')
    return 0 if found else 1


def _box_of(corners: Sequence[float], first_pixel: int) -> list[float]:
    """Convert corners to left, top, width and height in px.

    VOC counts pixels from 1 and includes the last one. Programs that count from 0 write the corners
    of the box.
    """
    left, top, right, bottom = corners
    return [
        left - first_pixel,
        top - first_pixel,
        right - left + first_pixel,
        bottom - top + first_pixel,
    ]


def _is_drawn(name: str) -> bool:
    """``True`` for masks, and for LabelMe's pictures of labels (AnnotationsVisualization)."""
    folders = PurePosixPath(name).parts[:-1]
    return any(part in MASK_FOLDERS or part.endswith('Visualization') for part in folders)


def pair_files(
    labels: Sequence[str], images: Sequence[str], report: Report, folder: str
) -> dict[str, str]:
    """Find the image of each label file: the one of the same name in the nearest folder.

    The folder is the same, or one part of its path differs (``Annotations/1.xml``,
    ``JPEGImages/1.jpg``), or only one image has this name. Images without label file are skipped.
    Label files without image, with several, or with the image of another are refused.
    """
    by_name: dict[str, list[str]] = {}
    for image in images:
        by_name.setdefault(PurePosixPath(image).stem, []).append(image)
    spellings = Spellings(by_name)
    owners: dict[str, str] = {}
    for label in labels:
        name = PurePosixPath(label).stem
        name = name if name in by_name else spellings.find(name)
        found = _nearest(label, by_name.get(name, []))
        if len(found) == 1:
            owners[label] = found[0]
            if name != PurePosixPath(label).stem:
                report.add('altered', OTHER_SPELLING, f'{folder}/{label} ({found[0]})')
        elif not found:
            report.add('refused', 'label files without an image', f'{folder}/{label}')
        else:
            report.add(
                'refused',
                'label files with several images',
                f'{folder}/{label} ({", ".join(found)})',
            )
    users: dict[str, list[str]] = {}
    for label, image in owners.items():
        users.setdefault(image, []).append(label)
    for image in images:
        if image not in users:
            report.add('skipped', 'images without a label file', f'{folder}/{image}')
        elif len(users[image]) > 1:
            report.add(
                'refused',
                'images with several label files',
                f'{folder}/{image} ({", ".join(users[image])})',
            )
    return owners


def _nearest(label: str, images: Sequence[str]) -> list[str]:
    own = PurePosixPath(label).parent.parts
    same, similar = [], []
    for image in images:
        other = PurePosixPath(image).parent.parts
        if other == own:
            same.append(image)
        elif len(other) == len(own) and sum(a != b for a, b in zip(own, other, strict=True)) == 1:
            similar.append(image)
    return same or similar or [*images]


def _read_file(file: Path, report: Report) -> tuple[Coco, list[Coco]]:
    """Read width and height (0 if missing) and the objects of a file."""
    try:
        root = ET.fromstring(read_bytes(file))
        size = {key: int(float(root.findtext(f'size/{key}') or 0)) for key in ('width', 'height')}
    except ET.ParseError as error:
        raise Fault('refused', 'files that are not XML', str(error)) from None
    except InputError as error:
        raise Fault('refused', 'label files that cannot be read', str(error)) from None
    except (OverflowError, ValueError) as error:  # inf is one of a number
        raise Fault('refused', 'sizes that are not numbers', str(error)) from None
    objects = []
    for number, element in enumerate(root.iter('object'), 1):
        where = f'{file}: object {number}'
        try:
            one = _read_object(element)
        except Fault as fault:
            report.add_fault(fault, where)
            continue
        if one['iscrowd']:
            report.add(
                'note',
                'difficult objects are ignored in training and evaluation, as by VOC (iscrowd)',
                where,
            )
        objects.append(one)
    return size, objects


def _read_object(element: ET.Element) -> Coco:
    """Read an object with ``corners``: left, top, right and bottom as written."""
    name = (element.findtext('name') or '').strip()
    if not name:
        raise Fault('refused', 'objects without name')
    texts = [element.findtext(f'bndbox/{side}') or '' for side in SIDES]
    try:
        left, top, right, bottom = (float(text) for text in texts)
    except ValueError:
        raise Fault('refused', 'objects without four numbers in bndbox', repr(texts)) from None
    if right < left or bottom < top:
        raise Fault('refused', 'objects whose corners are in the wrong order', repr(texts))
    difficult = (element.findtext('difficult') or '').strip() == '1'
    corners = [left, top, right, bottom]
    one: Coco = dict(name=name, corners=corners, iscrowd=int(difficult))
    for attribute in element.iterfind('attributes/attribute'):  # of CVAT
        if attribute.findtext('name') == 'rotation':
            with suppress(TypeError, ValueError):
                one['attributes'] = dict(rotation=float(attribute.findtext('value') or 0))
    return one


def _by_lists(split: Split, choices: Sequence[Sequence[str]], report: Report) -> list[Split]:
    """Split by the first group of lists that all exist in ``ImageSets/Main``."""
    with_lists = sorted(folder for folder in split.root.rglob('ImageSets/Main') if folder.is_dir())
    for names in choices:
        folders = [
            folder
            for folder in with_lists
            if all((folder / f'{name}.txt').is_file() for name in names)
        ]
        if folders:
            break
    else:
        wanted = ' and '.join(f'{name}.txt' for name in choices[0])
        for folder in with_lists:
            report.add('note', f'lists of images that are not used, without {wanted}', str(folder))
        return [split]
    if len(folders) > 1:
        found = ', '.join(str(folder) for folder in folders)
        raise InputError(
            f'data: {split.source} must have one ImageSets/Main, got {found}; give one folder of'
            ' them'
        )
    by_name: dict[str, list[Coco]] = {}
    for image in split.coco['images']:
        by_name.setdefault(PurePosixPath(image['file_name']).stem, []).append(image)
    splits = [_listed(split, folders[0] / f'{name}.txt', by_name, report) for name in names]
    chosen = {image['id'] for one in splits for image in one.coco['images']}
    for image in split.coco['images']:
        if image['id'] not in chosen:
            reason = f'images in none of {", ".join(f"{name}.txt" for name in names)}'
            report.add('skipped', reason, f'{split.root}/{image["file_name"]}')
    return splits


def _listed(split: Split, file: Path, by_name: dict[str, list[Coco]], report: Report) -> Split:
    """Return the images in a list, with one name per line, maybe with spaces or a suffix."""
    images = []
    spellings = Spellings(by_name)
    lines = read_lines(file)
    bare = stems(lines)
    for line in lines:
        found = by_name.get(line) or by_name.get(spellings.find(bare[line]), [])
        found = found or by_name.get(spellings.find(line), [])
        if len(found) == 1:
            images.append(found[0])
        else:
            reason = (
                'names in a list without label file and image'
                if not found
                else 'names of several images'
            )
            report.add('refused', reason, f'{file}: {line}')
    ids = {image['id'] for image in images}
    objects = [one for one in split.coco['annotations'] if one['image_id'] in ids]
    return Split(dict(split.coco, images=images, annotations=objects), split.root, str(file))

"""Read a COCO JSON file as it is; :mod:`.check` judges what is in it."""

import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from .files import LEFT_OUT, files_in
from .report import Report

Coco = dict[str, Any]
LISTS = ('images', 'annotations', 'categories')
SAMPLE = 20  # images of a JSON file that are looked for
PREDICTIONS = ('images.json', 'predictions.json')  # of tools/infer.py


@dataclass
class Part:
    """All data, or training or validation data, on their way to a config.

    Args:
        coco: COCO's ``images``; of a detector with ``annotations`` and ``categories``. Before the
            check, as read.
        root: Folder that the images' ``file_name`` starts from.
        source: File or folder that the labels are from, for messages.
    """

    coco: Coco
    root: Path
    source: str


def read_coco(file: Path, images: Path) -> Part:
    """A COCO JSON file; ``ValueError`` unless it has lists of images, annotations and categories.

    Args:
        file: The JSON file.
        images: Folder that the ``file_name`` of each image starts from.
    """
    content = read_json(file)
    if not isinstance(content, dict):
        raise ValueError(
            f'data: {file} is no COCO JSON: it must be an object with the keys {LISTS}'
        )
    for key in LISTS:
        entries = content.get(key)
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise ValueError(
                f'data: {file} is no COCO JSON: {key!r} must be a list of objects, got'
                f' {entries!r:.60}'
            )
    for image in content['images']:
        if isinstance(image.get('file_name'), str):
            image['file_name'] = with_slashes(image['file_name'])
    _check_root(content['images'], file, images)
    return Part(content, images, str(file))


def with_slashes(name: str) -> str:
    """A ``file_name`` of Windows with slashes."""
    return name.replace('\\', '/')


def sample_names(entries: Sequence[Coco]) -> list[str]:
    """About ``SAMPLE`` names of images, with slashes."""
    names = [entry.get('file_name') for entry in entries]
    found = [with_slashes(name) for name in names if isinstance(name, str)]
    return found[:: len(names) // SAMPLE + 1]


def _check_root(entries: Sequence[Coco], file: Path, images: Path) -> None:
    """``ValueError`` if images that are not in the folder are all in one around it, or are there
    by the last part of their names.
    """
    sample = sample_names(entries)
    if not sample or any((images / name).exists() for name in sample):
        return
    below = sorted(path for path in images.glob('*') if path.is_dir())
    for root in (images.parent, file.parent, *below):
        if all((root / name).is_file() for name in sample):
            raise ValueError(
                f'data: the file_name of the images in {file}, such as {sample[0]!r}, starts from'
                f' another folder than {str(images)!r}: give {str(root)!r}'
            )
    last = [unquote(name).rpartition('/')[2] for name in sample]
    if all((images / name).is_file() for name in last):
        raise ValueError(
            f'data: the file_name of the images in {file} must be a path from the folder'
            f' {str(images)!r}, such as {last[0]!r}, got {sample[0]!r}'
        )


def read_json(file: Path) -> Any:
    """The content of a JSON file; ``ValueError`` if it is none."""
    try:
        return json.loads(file.read_bytes())
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f'data: {file} is not JSON: {error}') from None


def read_predictions(folder: Path) -> Part:
    """Objects that tools/infer.py found, as labels.

    Args:
        folder: Its output folder, of a detector or instance segmentor. Paths of images that are
            not absolute start from the current folder, as when they were predicted.
    """
    content, found = (read_json(folder / name) for name in PREDICTIONS)
    if not found:
        raise ValueError(f'data: {folder} has no predictions: predict with a lower score_thr')
    if not all('bbox' in one for one in found):
        raise ValueError(f'data: {folder} must have predictions of boxes')
    for number, one in enumerate(found, 1):
        one['id'] = number
    return Part(dict(content, annotations=found), Path.cwd(), str(folder))


def join(part: Part, other: Part) -> Part:
    """The images and objects of both, as one part with the categories of the first.

    Both are checked, together.
    """
    folders = [
        str(one.root.resolve() / image['file_name']).rpartition('/')[0]
        for one in (part, other)
        for image in one.coco['images']
    ]
    root = Path(os.path.commonpath(folders))
    images: list[Coco] = []
    annotations: list[Coco] = []
    for one in (part, other):
        numbers = {}
        for image in one.coco['images']:
            numbers[image['id']] = len(images) + 1
            path = one.root.resolve() / image['file_name']
            name = path.relative_to(root).as_posix()
            images.append(dict(image, id=numbers[image['id']], file_name=name))
        for found in one.coco['annotations']:
            image_id = numbers[found['image_id']]
            annotations.append(dict(found, id=len(annotations) + 1, image_id=image_id))
    coco = dict(part.coco, images=images, annotations=annotations)
    return Part(coco, root, f'{part.source}, {other.source}')


def note_unlisted(parts: Sequence[Part], report: Report) -> None:
    """Note images in the folders of COCO files that no entry names."""
    listed = {
        part.root / str(image.get('file_name')) for part in parts for image in part.coco['images']
    }
    for folder in {part.root for part in parts}:
        for name in files_in(folder, Report()):
            if folder / name not in listed:
                report.add('note', 'images that no JSON file lists', f'{folder}/{name}')


def report_left_out(files: Sequence[Path], report: Report) -> None:
    """Report the images of COCO files, maybe without annotations, that are neither training nor
    validation data.
    """
    for file in files:
        images = read_json(file)['images']
        for image in images if isinstance(images, list) else []:
            name = image.get('file_name') if isinstance(image, dict) else image
            report.add('skipped', LEFT_OUT, f'{file}: {name}')


def part_of(part: Part, names: Collection[str]) -> Part:
    """The images of these file names, and their annotations."""
    wanted = {*names}
    images = [image for image in part.coco['images'] if image['file_name'] in wanted]
    coco = {**part.coco, 'images': images}
    if 'annotations' in coco:
        ids = {image['id'] for image in images}
        coco['annotations'] = [one for one in coco['annotations'] if one['image_id'] in ids]
    return Part(coco, part.root, part.source)

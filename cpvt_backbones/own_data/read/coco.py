"""Reads a COCO JSON file unchanged; :mod:`..check` judges its content."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from cpvt_backbones.errors import InputError

from ..dataset import Coco, Report, Split
from .files import LEFT_OUT, OTHER_SPELLING, Listings, files_in, path_problem, read_bytes

LISTS = ('images', 'annotations', 'categories')
SAMPLE = 20  # number of images of a JSON file that are looked for
PREDICTIONS = ('images.json', 'predictions.json')  # of tools/infer.py


def read_coco(file: Path, images: Path, report: Report) -> Split:
    """Read a COCO JSON file.

    Args:
        file: The JSON file.
        images: Folder to which the ``file_name`` of each image is relative.
        report: Receives names that are spelt differently from the files.

    Raises:
        InputError: The file lacks lists of images, annotations and categories.
    """
    content = read_json(file)
    if not isinstance(content, dict):
        raise InputError(
            f'data: {file} is not COCO JSON: it must be an object with the keys {LISTS}'
        )
    _check_lists(content, file)
    for image in content['images']:
        if isinstance(image.get('file_name'), str):
            image['file_name'] = with_slashes(image['file_name'])
    _correct_names(content['images'], file, images, report)
    _check_root(content['images'], file, images)
    return Split(content, images, str(file))


def _correct_names(entries: Sequence[Coco], file: Path, images: Path, report: Report) -> None:
    """Use the spelling of the disk in entries whose file is spelt differently."""
    files = Listings()
    for image in entries:
        name = image.get('file_name')
        if not isinstance(name, str) or path_problem(name):
            continue
        found = files.find(images / name)
        if found != images / name and found.is_relative_to(images):
            image['file_name'] = found.relative_to(images).as_posix()
            report.add('altered', OTHER_SPELLING, f'{file}: {name} ({image["file_name"]})')


def _check_lists(content: Coco, file: Path) -> None:
    """Raise ``InputError`` unless there are lists of images, annotations and categories."""
    for key in LISTS:
        entries = content.get(key)
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise InputError(
                f'data: {file} is not COCO JSON: {key!r} must be a list of objects, got'
                f' {entries!r:.60}'
            )


def with_slashes(name: str) -> str:
    """Replace the backslashes of a Windows ``file_name``."""
    return name.replace('\\', '/')


def sample_names(entries: Sequence[Coco]) -> list[str]:
    """Return about ``SAMPLE`` names of images, with slashes."""
    names = [entry.get('file_name') for entry in entries]
    texts = [name for name in names if isinstance(name, str) and not path_problem(name)]
    found = [with_slashes(name) for name in texts]
    return found[:: len(names) // SAMPLE + 1]


def _check_root(entries: Sequence[Coco], file: Path, images: Path) -> None:
    """Raise ``InputError`` if missing images are elsewhere: in a parent folder, or by file name."""
    sample = sample_names(entries)
    if not sample or any((images / name).exists() for name in sample):
        return
    below = sorted(path for path in images.glob('*') if path.is_dir())
    for root in (images.parent, file.parent, *below):
        if all((root / name).is_file() for name in sample):
            raise InputError(
                f'data: the file_name of the images in {file}, such as {sample[0]!r}, starts from'
                f' another folder than {str(images)!r}: give {str(root)!r}'
            )
    last = [unquote(name).rpartition('/')[2] for name in sample]
    if all((images / name).is_file() for name in last):
        raise InputError(
            f'data: the file_name of the images in {file} must be a path from the folder'
            f' {str(images)!r}, such as {last[0]!r}, got {sample[0]!r}'
        )


def read_json(file: Path) -> Any:
    """Read a JSON file; raise ``InputError`` if it is not JSON."""
    try:
        return json.loads(read_bytes(file))
    except RecursionError:
        raise InputError(f'data: {file} is not read: its JSON is nested too deeply') from None
    except InputError:
        raise
    except ValueError as error:  # also for numbers of more than 4300 digits
        raise InputError(f'data: {file} is not JSON: {error}') from None


def read_predictions(folder: Path) -> Split:
    """Read objects found by ``cpvt infer`` as labels.

    Args:
        folder: Output folder of a detector or instance segmentor. Relative paths of images start
            from the current folder, as in the prediction.

    Raises:
        InputError: The folder has no such predictions.
    """
    content, found = (read_json(folder / name) for name in PREDICTIONS)
    is_listed = isinstance(content, dict) and isinstance(found, list)
    if not is_listed or not all(isinstance(one, dict) for one in found):
        raise InputError(f'data: {folder} has no {" and ".join(PREDICTIONS)} of cpvt infer')
    if not found:
        raise InputError(f'data: {folder} has no predictions: predict with a lower score_thr')
    if not all('bbox' in one for one in found):
        raise InputError(f'data: {folder} must have predictions of boxes')
    for number, one in enumerate(found, 1):
        one['id'] = number
    merged = dict(content, annotations=found)
    _check_lists(merged, folder / PREDICTIONS[0])
    return Split(merged, Path.cwd(), str(folder))


def note_unlisted(splits: Sequence[Split], report: Report) -> None:
    """Report images in the folders of COCO files that are not in any entry."""
    listed = set()
    for split in splits:
        for image in split.coco['images']:
            name = str(image.get('file_name'))
            if not path_problem(name):
                listed.add(os.path.realpath(split.root / name))
    for folder in {split.root for split in splits}:
        for name in files_in(folder, Report()):
            if os.path.realpath(folder / name) not in listed:
                report.add('note', 'images that no JSON file lists', f'{folder}/{name}')


def report_left_out(files: Sequence[Path], report: Report) -> None:
    """Report images of COCO files that are neither training nor validation data."""
    for file in files:
        images = read_json(file)['images']
        for image in images if isinstance(images, list) else []:
            name = image.get('file_name') if isinstance(image, dict) else image
            report.add('skipped', LEFT_OUT, f'{file}: {name}')

"""Recognises the format of data by its files."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpvt_backbones.errors import InputError

from ..dataset import Report
from .coco import LISTS, read_json, sample_names
from .files import (
    TRAINING,
    VALIDATION,
    Listings,
    files_in,
    is_image_folder,
    is_mask_folder,
    is_written,
    read_bytes,
)
from .yolo import NAME_FILES, YAML, find_yaml

SAMPLE = 5  # number of files of a kind that are examined
# Formats that are read instead of a program's own format.
EXPORTS = {
    'CreateML': 'convert it to COCO JSON',
    'CVAT': 'export COCO 1.0 there, with images',
    'Label Studio': 'export COCO or YOLO there, with images',
    'LabelMe': 'its own labelme2coco.py writes COCO JSON, which is read',
    'Roboflow': 'export folders of classes there, or COCO JSON',
    "Roboflow's masks": 'move the masks to a folder of their own, and give IMAGES MASKS --classes'
    ' _classes.csv',
    'Supervisely': 'export COCO there',
    'VIA': 'export COCO there',
    'Open Images or TensorFlow': 'convert it to COCO JSON',
}


@dataclass
class Form:
    """A format of data, as on the command line.

    Args:
        kind: Name of the format.
        data: Its paths.
        val: Paths of ``--val``.
        left_out: Further COCO files, such as that of a test set.
    """

    kind: str
    data: list[Path]
    val: list[Path] = field(default_factory=list)
    left_out: list[Path] = field(default_factory=list)


def recognise(paths: Sequence[Path]) -> Form:
    """Recognise the format of the data at one or two paths.

    Raises:
        InputError: No format fits, or several do.
    """
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f'data: there is no file or folder {str(path)!r}')
    if len(paths) == 2 and paths[0].is_dir() and paths[1].is_dir():
        return Form('masks', [*paths])
    if len(paths) == 2 and paths[0].suffix == '.json' and paths[1].is_dir():
        return Form('coco', [*paths])
    if len(paths) == 1 and paths[0].suffix == '.json':
        return Form('coco', [paths[0], images_of(paths[0], paths[0].parent)])
    if len(paths) == 1 and paths[0].suffix in YAML:
        return Form('yolo', [*paths])
    if len(paths) != 1 or not paths[0].is_dir():
        raise InputError(
            f'data: the format of {[str(path) for path in paths]} is not recognised; name it'
        )
    return _recognise_folder(paths[0])


def _recognise_folder(folder: Path) -> Form:
    coco, partial = _coco_files(folder)
    boxes = {'coco': coco, 'voc': _voc_file(folder), 'yolo': _yolo_file(folder)}
    found = [kind for kind, files in boxes.items() if files]
    if len(found) > 1:
        examples = ', '.join(f'{kind} ({boxes[kind][0]})' for kind in found)
        raise InputError(f'data: {str(folder)!r} has more than one format, {examples}; name one')
    if found == ['coco']:
        form = _coco_form(folder, coco)
        form.left_out += [file for file, missing in partial if missing == ['annotations']]
        return form
    if found:
        return Form(found[0], [folder])
    for file, missing in partial:
        raise InputError(
            f'data: {file} is not COCO JSON: it lacks {", ".join(map(repr, missing))}; complete it,'
            ' or name the format of the data to ignore it'
        )
    refuse_other_programs(folder, _files)
    return _masks_form(folder) or Form('folders', [folder])


def _files(folder: Path, suffix: str) -> list[Path]:
    try:
        return [folder / name for name in files_in(folder, Report(), [suffix])]
    except FileNotFoundError:
        return []


def _voc_file(folder: Path) -> list[Path]:
    for file in _files(folder, '.xml')[:1]:
        try:
            tag = ET.fromstring(read_bytes(file)).tag
        except ET.ParseError:
            tag = 'annotation'  # the reader reports the error
        if tag == 'annotation':
            return [file]
    return []


def _yolo_file(folder: Path) -> list[Path]:
    config = find_yaml(folder)
    if config is not None:
        return [config]
    for place in (folder, folder / 'labels'):
        for name in NAME_FILES:
            if (place / name).is_file() and len(_files(folder, '.txt')) > 1:
                return [place / name]
    return _files(folder / 'labels', '.txt')[:1]


def _read(file: Path) -> dict[str, Any]:
    content = read_json(file)
    return content if isinstance(content, dict) else {}


def _coco_files(folder: Path) -> tuple[list[Path], list[tuple[Path, list[str]]]]:
    """Find COCO files, and similar files with the lists that they lack."""
    complete, partial = [], []
    for file in _files(folder, '.json'):
        content = _read(file)
        missing = [key for key in LISTS if key not in content]
        if not missing:
            complete.append(file)
        elif not {'images', 'annotations'} <= {*missing}:
            partial.append((file, missing))
    return complete, partial


def _words(path: Path, root: Path) -> set[str]:
    return {*re.split('[^a-z]+', path.relative_to(root).as_posix().lower())}


def _coco_form(folder: Path, files: Sequence[Path]) -> Form:
    """Return the only JSON file, or those with the words train and val in their paths."""
    if len(files) == 1:
        return Form('coco', [files[0], images_of(files[0], folder)])
    train = [file for file in files if {*TRAINING} & _words(file, folder)]
    for other in VALIDATION:
        val = [file for file in files if other in _words(file, folder) and file not in train]
        if len(train) == len(val) == 1:
            roots = [images_of(file, folder) for file in (train[0], val[0])]
            others = [file for file in files if file not in (train[0], val[0])]
            return Form('coco', [train[0], roots[0]], [val[0], roots[1]], others)
    names = ', '.join(str(file) for file in files)
    raise InputError(
        f'data: {str(folder)!r} has several COCO files, {names}; name those of both splits'
        ' in data and val'
    )


def images_of(file: Path, root: Path) -> Path:
    """Find the folder below ``root`` with the images of a COCO file.

    Of several, the folder of the file is taken, or the one whose path has the same words train and
    val.

    Raises:
        InputError: There is no such folder.
    """
    images = _read(file).get('images')
    sample = sample_names([image for image in images or [] if isinstance(image, dict)])
    folders = [root, *sorted(path for path in root.rglob('*') if path.is_dir())]
    files = Listings()
    found = [
        folder
        for folder in folders
        if sample and all(files.find(folder / name).is_file() for name in sample)
    ]
    if file.parent in found:
        return file.parent
    parts = {*TRAINING, *VALIDATION}
    alike = [
        folder for folder in found if _words(folder, root) & parts == _words(file, root) & parts
    ]
    chosen = found if len(found) == 1 else alike
    if len(chosen) != 1:
        what = ', '.join(str(path) for path in found) or f'none with {", ".join(sample[:1])}'
        raise InputError(
            f'data: {file} must have its images in one folder of {str(root)!r}, found {what};'
            ' give the folder as the second path'
        )
    return chosen[0]


def _masks_form(folder: Path) -> Form | None:
    """Find two folders in ``folder``, of images and of masks."""
    children = [
        path
        for path in sorted(folder.iterdir())
        if path.is_dir() and not path.name.startswith('.') and not is_written(path)
    ]
    images = [path for path in children if is_image_folder(path.name)]
    masks = [path for path in children if is_mask_folder(path.name)]
    if len(images) == len(masks) == 1 and len(children) == 2:
        return Form('masks', [images[0], masks[0]])
    return None


def refuse_other_programs(folder: Path, find: Callable[[Path, str], Iterable[Path]]) -> None:
    """Raise ``InputError`` for a folder with labels of another program.

    Args:
        folder: Folder of the data.
        find: Function that lists the files with a suffix in it.
    """
    programs = {'.json': _of_json, '.xml': _of_xml, '.csv': _of_csv}
    for suffix, program_of in programs.items():
        for file in [*find(folder, suffix)][:SAMPLE]:
            program = program_of(file)
            if program:
                raise InputError(
                    f'data: {file} is of {program}: {EXPORTS[program]}; to ignore the file, name'
                    ' the format of the data'
                )


def _of_json(file: Path) -> str | None:
    content = read_json(file)
    if isinstance(content, list):
        first: Any = content[0] if content else None
        keys = {*first} if isinstance(first, dict) else set()
        if {'data', 'annotations'} <= keys or 'annotator' in keys:
            return 'Label Studio'
        return 'CreateML' if {'image', 'annotations'} <= keys else None
    if not isinstance(content, dict):
        return None
    if 'shapes' in content:
        return 'LabelMe'
    entries = [value for value in content.values() if isinstance(value, dict)]
    if '_via_img_metadata' in content or any('regions' in entry for entry in entries):
        return 'VIA'
    objects = content.get('objects')
    if isinstance(objects, list) and any('classTitle' in str(one) for one in objects):
        return 'Supervisely'
    return None


def _of_xml(file: Path) -> str | None:
    try:
        return 'CVAT' if ET.fromstring(read_bytes(file)).tag == 'annotations' else None
    except ET.ParseError:
        return None


def _of_csv(file: Path) -> str | None:
    if not file.is_file():
        return None
    with file.open(encoding='utf-8-sig', errors='replace') as stream:
        heading = stream.readline(1000).lower()
    if 'region_shape_attributes' in heading:
        return 'VIA'
    if 'xmin' in heading and 'xmax' in heading:
        return 'Open Images or TensorFlow'
    if file.name == '_classes.csv' and heading.startswith('pixel value'):
        return "Roboflow's masks"
    if file.name == '_classes.csv':
        return 'Roboflow'
    return None

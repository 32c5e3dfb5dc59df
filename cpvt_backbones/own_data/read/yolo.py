"""Reads YOLO data: data.yaml, and lines of a class index with a box or polygon.

Coordinates are shares of the image's sides.
"""

import os
import unicodedata
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from rich.progress import track

from cpvt_backbones.errors import InputError

from ..dataset import Coco, Fault, Report, Split, box_of_polygons
from .coco import with_slashes
from .files import (
    LEFT_OUT,
    OTHER_SPELLING,
    VALIDATION,
    Listings,
    Size,
    files_in,
    path_problem,
    read_lines,
    read_text,
    upright_size,
)

NAME_FILES = ('classes.txt', 'obj.names')
DARKNET = 'obj.data'
NULLS = ('', '~', 'null', 'Null', 'NULL')  # of YAML
SLACK = 0.01  # by which a coordinate may exceed 0 to 1
YAML = ('.yaml', '.yml')


def read_yolo(path: Path, report: Report) -> list[Split]:
    """Read boxes and polygons of YOLO's label files as COCO JSON.

    The label file of ``images/a.jpg`` is ``labels/a.txt``, or ``a.txt`` beside it. An image without
    one has no object.

    Args:
        path: The data.yaml, or a folder with it, with the obj.data of Darknet and CVAT's YOLO 1.1,
            or with classes.txt in it or in its ``labels``.
        report: Receives files and lines that are skipped or refused.

    Returns:
        Training and validation data of data.yaml or obj.data, otherwise one split.
    """
    config = path if path.suffix in YAML else find_yaml(path)
    polygons = False
    if config is None and (path / DARKNET).is_file():
        names, groups = read_darknet(path / DARKNET, report)
    elif config is None:
        names = _names_of_folder(path)
        groups = {str(path): [path / name for name in files_in(path, report)]}
    else:
        content = read_yaml(config)
        names = names_of_yaml(content, config)
        polygons = content.get('task') == 'segment'
        groups = groups_of_yaml(content, config, report)
    splits = []
    for source, images in groups.items():
        splits.append(_read_split(images, names, source, report, polygons=polygons))
    return splits


def read_darknet(file: Path, report: Report) -> tuple[list[str], dict[str, list[Path]]]:
    """Read class names, and training and validation images, from an obj.data file.

    Its lines are ``train = data/train.txt`` and the like. Lists and images are found with and
    without the folder ``data``, which CVAT writes in paths but does not create.
    """
    content = {}
    for line in read_lines(file):
        key, _, value = line.partition('=')
        content[key.strip().lower()] = value.strip()
    names_file = _locate_darknet(content.get('names') or 'obj.names', file)
    names = read_lines(names_file)
    count = content.get('classes')
    if count and count != str(len(names)):
        raise InputError(
            f'data: {file} has classes = {count:.200}, and {names_file} {len(names)} names'
        )
    if not content.get('train'):
        raise InputError(f'data: {file} must name a list of images as train')
    keys = ['train', *(key for key in VALIDATION if content.get(key))]
    groups = {}
    for key in keys[:2]:
        groups[f'{file}: {key}'] = _images_of_darknet(content[key], file, report)
    for key in keys[2:]:
        for path in _images_of_darknet(content[key], file, Report()):
            report.add('skipped', LEFT_OUT, str(path))
    return names, groups


def _images_of_darknet(place: str, file: Path, report: Report) -> list[Path]:
    listed = read_lines(_locate_darknet(place, file))
    images = [_locate_darknet(line, file, is_image=True) for line in listed]
    return _as_spelt(images, report)


def _locate_darknet(place: str, file: Path, *, is_image: bool = False) -> Path:
    """Locate a path of an obj.data file or of its lists; the check reports missing images."""
    name = with_slashes(place)
    found = [file.parent / name, file.parent / name.removeprefix('data/')]
    for path in found:
        if path.exists():
            return path
    if is_image:
        return found[-1]
    raise FileNotFoundError(f'data: {file} names {place!r}, but there is no {found[-1]}')


def _as_spelt(images: Sequence[Path], report: Report) -> list[Path]:
    """Return the images of a list with the spelling of their files."""
    files = Listings()
    spelt = []
    for image in images:
        found = image if path_problem(str(image)) else files.find(image)
        if found != image:
            report.add('altered', OTHER_SPELLING, f'{image} ({found.name})')
        spelt.append(found)
    return spelt


def _names_of_folder(folder: Path) -> list[str]:
    for place in (folder, folder / 'labels'):
        for name in NAME_FILES:
            if (place / name).is_file():
                return read_lines(place / name)
    wanted = ' or '.join(('data.yaml', *NAME_FILES))
    raise FileNotFoundError(
        f'data: no {wanted} with the names of the classes in the folder {str(folder)!r}; in'
        ' classes.txt, each line has one name'
    )


def _read_split(
    images: Sequence[Path],
    names: Sequence[str],
    source: str,
    report: Report,
    *,
    polygons: bool = False,
) -> Split:
    """Read images with their labels; with ``polygons``, lines of six or more numbers are these."""
    paths = [Path(os.path.abspath(path)) for path in images]
    root = Path(os.path.commonpath([path.parent for path in paths]))
    entries: list[Coco] = []
    objects: list[Coco] = []
    used = set()
    rows = Rows()
    folders = TextFiles()
    for path in track(paths, description='YOLO'):
        entry = dict(id=len(entries) + 1, file_name=path.relative_to(root).as_posix())
        entries.append(entry)
        try:
            file = label_file(path, folders)
        except Fault as fault:
            report.add_fault(fault, str(path))
            continue
        used.add(file)
        size = upright_size(path)
        if file.exists() and not file.is_file():
            report.add('refused', 'label files that are not regular files', str(file))
        elif not file.is_file():
            report.add(
                'note', 'images without a label file: taken as images without objects', str(path)
            )
        elif size != (0, 0):  # the check refuses other images
            entry.update(width=size[0], height=size[1])
            for one in read_labels(file, size, len(names), report, rows):
                objects.append(dict(one, id=len(objects) + 1, image_id=entry['id']))
    if not any(file.is_file() for file in used):
        raise FileNotFoundError(
            f'data: none of the images of {source} has a label file, such as {min(used)}'
        )
    if not polygons:
        rows.report(report)
    _note_unused(used, folders, report)
    categories = [dict(id=index, name=name) for index, name in enumerate(names)]
    return Split(dict(images=entries, annotations=objects, categories=categories), root, source)


class TextFiles:
    """Text files of folders, found regardless of the case of ``.txt`` and the form of accents."""

    def __init__(self) -> None:
        self._known: dict[Path, dict[str, Path]] = {}

    def text_files(self, folder: Path) -> list[Path]:
        """Return the sorted text files of a folder."""
        return sorted(self._listed(folder).values())

    def find(self, path: Path) -> Path:
        """Return the existing text file for a path, or the path itself."""
        return path if path.is_file() else self._listed(path.parent).get(_key(path.stem), path)

    def _listed(self, folder: Path) -> dict[str, Path]:
        if folder not in self._known:
            files = folder.iterdir() if folder.is_dir() else ()
            texts = [file for file in files if file.suffix.lower() == '.txt']
            self._known[folder] = {_key(file.stem): file for file in sorted(texts)}
        return self._known[folder]


def _note_unused(used: Collection[Path], folders: TextFiles, report: Report) -> None:
    """Report text files without an image."""
    for folder in sorted({path.parent for path in used}):
        for file in folders.text_files(folder):
            if file not in used and file.name not in NAME_FILES:
                report.add('skipped', 'text files without an image', str(file))


def _key(name: str) -> str:
    """Normalise accented letters, which programs write as one or two characters."""
    return unicodedata.normalize('NFC', name)


@dataclass
class Rows:
    """Lines read as polygons, and those that also fit boxes with keypoints or scores.

    Args:
        lengths: Number of numbers in each line of a polygon.
        fitting: File and line of each line whose first numbers are a box that contains the others.
    """

    lengths: Counter[int] = field(default_factory=Counter)
    fitting: list[str] = field(default_factory=list)

    def add(self, numbers: Sequence[float], where: str) -> None:
        """Add a line of a polygon, without its class."""
        self.lengths[len(numbers)] += 1
        if is_box_with_more(numbers):
            self.fitting.append(where)

    def report(self, report: Report) -> None:
        """Refuse lines that have the same length and all fit boxes with keypoints or scores."""
        if len(self.lengths) != 1 or len(self.fitting) < self.lengths.total():
            return
        reason = (
            'lines that fit boxes with keypoints, or with score and track: boxes are CLASS X Y'
            ' WIDTH HEIGHT alone; if they are polygons, write task: segment to data.yaml'
        )
        for where in self.fitting:
            report.add('refused', reason, where)


def is_box_with_more(numbers: Sequence[float]) -> bool:
    """``True`` if the first four numbers are a box in its image that contains the other points.

    The points are x, y or x, y, visibility; unlabelled points are 0, 0. Two numbers are a score and
    a track of 0 or 1; lines with larger tracks are already refused.
    """
    x, y, width, height = numbers[:4]
    sides = x - width / 2, y - height / 2, x + width / 2, y + height / 2
    if min(width, height) <= 0 or min(sides) < -SLACK or max(sides) > 1 + SLACK:
        return False
    rest = numbers[4:]
    if len(rest) == 2 and rest[1] in (0, 1):
        return True
    for step in (2, 3):
        points = [rest[index : index + step] for index in range(0, len(rest), step)]
        if len(points[-1]) == step and all(_is_keypoint(point, sides) for point in points):
            return True
    return False


def _is_keypoint(point: Sequence[float], sides: Sequence[float]) -> bool:
    x, y = point[:2]
    if len(point) == 3 and point[2] not in (0, 1, 2):
        return False
    left, top, right, bottom = sides
    inside = left - SLACK <= x <= right + SLACK and top - SLACK <= y <= bottom + SLACK
    return inside or x == y == 0


def label_file(image: Path, folders: TextFiles) -> Path:
    """Return the label file of an image: in ``labels`` beside ``images``, or beside the image."""
    beside = folders.find(image.with_suffix('.txt'))
    parts = [*image.with_suffix('.txt').parts]
    for index in range(len(parts) - 2, -1, -1):
        if parts[index] == 'images':
            parts[index] = 'labels'
            apart = folders.find(Path(*parts))
            if apart.is_file() and beside.is_file():
                raise Fault('refused', 'images with two label files', f'{apart}, {beside}')
            return beside if beside.is_file() else apart
    return beside


def read_labels(file: Path, size: Size, classes: int, report: Report, rows: Rows) -> list[Coco]:
    """Read the annotations of a label file, without ids.

    Args:
        file: The label file.
        size: Width and height of the image in px.
        classes: Number of classes.
        report: Receives refused lines.
        rows: Receives lines of polygons.
    """
    found = []
    for number, line in enumerate(read_lines(file), 1):
        where = f'{file}: line {number}'
        try:
            one, shares = _read_line(line, size, classes)
        except Fault as fault:
            report.add_fault(fault, where)
            continue
        if 'segmentation' in one:
            rows.add(shares, where)
        found.append(one)
    return found


def _read_line(line: str, size: Size, classes: int) -> tuple[Coco, list[float]]:
    """Read ``CLASS X Y WIDTH HEIGHT`` (of the centre) or ``CLASS X Y X Y X Y ...``.

    Returns:
        The object, and the numbers after its class.
    """
    words = line.split()
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        raise Fault('refused', 'lines with words that are not numbers', line[:40]) from None
    count = len(numbers) - 1
    shares = numbers[1:]
    is_inside = all(-SLACK <= share <= 1 + SLACK for share in shares)
    if count > 4 and (count % 2 or not is_inside) and is_box_with_more(shares):
        reason = (
            'lines of boxes with keypoints, which are not read: boxes are CLASS X Y WIDTH HEIGHT'
            ' alone'
        )
        raise Fault('refused', reason, f'{len(numbers)} numbers')
    if count != 4 and (count < 6 or count % 2):
        reason = 'lines of neither CLASS X Y WIDTH HEIGHT nor CLASS X Y X Y X Y ...'
        raise Fault('refused', reason, f'{len(numbers)} numbers')
    if not numbers[0].is_integer() or not 0 <= numbers[0] < classes:
        raise Fault('refused', f'classes outside 0 to {classes - 1}, which have names', words[0])
    if not is_inside:
        raise Fault('refused', 'coordinates outside 0 to 1', line[:40])
    width, height = size
    scaled = [round(share * (width, height)[index % 2], 4) for index, share in enumerate(shares)]
    one: Coco = dict(category_id=int(numbers[0]))
    if count == 4:
        x, y, box_width, box_height = scaled
        one['bbox'] = [
            round(x - box_width / 2, 4),
            round(y - box_height / 2, 4),
            box_width,
            box_height,
        ]
    else:
        one.update(bbox=box_of_polygons([scaled]), segmentation=[scaled])
    return one, shares


def find_yaml(folder: Path) -> Path | None:
    """Return the only YAML file with ``names`` in a folder; ``None`` without one.

    Raises:
        InputError: There are several.
    """
    found = [
        path
        for path in sorted(folder.glob('*'))
        if path.suffix in YAML and 'names' in read_yaml(path)
    ]
    if len(found) > 1:
        raise InputError(
            f'data: give one of the files with classes, {[str(path) for path in found]}'
        )
    return found[0] if found else None


class _TextLoader(yaml.BaseLoader):
    """YAML loader that reads all values as text, because 16:9, 007, 1.10 and no are names."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError('aliases (*name) are not accepted')
        return super().compose_node(parent, index)


def read_yaml(file: Path) -> dict[str, Any]:
    """Read a YAML file with all values as text; ``{}`` if it is not a mapping.

    Aliases are refused, because a few of them can expand to gigabytes.

    Raises:
        InputError: The file is not YAML.
    """
    try:
        content = yaml.load(read_text(file), Loader=_TextLoader)  # runs nothing
    except RecursionError:
        raise InputError(f'data: {file} is not read: it is nested too deeply') from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f'data: {file} is not YAML: {error}') from None
    return content if isinstance(content, dict) else {}


def names_of_yaml(content: Mapping[str, Any], file: Path) -> list[str]:
    """Return class names in the order of their index; ``InputError`` if they are not accepted."""
    if 'kpt_shape' in content:
        raise InputError(f'data: {file} is of keypoints; boxes and polygons are accepted')
    names = content.get('names')
    if isinstance(names, dict):
        wanted = [str(index) for index in range(len(names))]
        if {*names} != {*wanted}:
            raise InputError(f'data: the keys of names in {file} must be 0, 1, ..., got {[*names]}')
        names = [names[index] for index in wanted]
    if not isinstance(names, list) or not names:
        raise InputError(f'data: {file} must have a list of names, got {names!r:.200}')
    for name in names:
        if not isinstance(name, str) or name in ('', '~'):
            raise InputError(f'data: the names in {file} must be text, got {name!r:.200}')
    count = content.get('nc')
    if count and count != str(len(names)):
        raise InputError(f'data: {file} has nc: {count!s:.200} and {len(names)} names')
    return names


def groups_of_yaml(content: Mapping[str, Any], file: Path, report: Report) -> dict[str, list[Path]]:
    """Return the images of training and validation, by the file and key that list them."""
    content = {key: None if value in NULLS else value for key, value in content.items()}
    keys = ['train', *(key for key in VALIDATION if content.get(key))][:2]
    groups = {}
    for key in keys:
        images = []
        for name in _listed_paths(key, content, file):
            images += _images_of(_locate(name, content, file), report)
        groups[f'{file}: {key}'] = images
    for key in VALIDATION:
        if content.get(key) and key not in keys:
            _report_left_out(_listed_paths(key, content, file), content, file, report)
    return groups


def _listed_paths(key: str, content: Mapping[str, Any], file: Path) -> list[str]:
    """Return folders and lists of images of a data set."""
    value = content.get(key)
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not listed:
        raise InputError(
            f'data: {file} must name a folder or list of images as {key}, got {value!r}'
        )
    return [str(name) for name in listed]


def _report_left_out(
    listed: Sequence[str], content: Mapping[str, Any], file: Path, report: Report
) -> None:
    """Report the images of a data set that is neither for training nor for validation."""
    for name in listed:
        with suppress(FileNotFoundError):  # Roboflow lists folders that it does not write
            for path in _images_of(_locate(name, content, file), Report()):
                report.add('skipped', LEFT_OUT, str(path))


def _locate(place: str, content: Mapping[str, Any], file: Path) -> Path:
    """Locate a path of data.yaml, relative to its ``path`` or to the folder of the file.

    It is also tried without a leading ``../``.
    """
    bases = [file.parent / with_slashes(str(content.get('path') or '')), file.parent]
    names = [place, place.removeprefix('../')]
    if '\\' in place:  # of Windows
        names += [with_slashes(name) for name in (place, place.removeprefix('..\\'))]
    found = [base / name for base in bases for name in names]
    for path in found:
        if path.exists():
            return path
    tried = ', '.join(str(path) for path in dict.fromkeys(found))
    raise FileNotFoundError(f'data: {file} names {place!r}, but there is none of {tried}')


def _listed(folder: Path, line: str) -> Path:
    """Return the image of a line in a list; Windows writes backslashes."""
    path = folder / line
    return path if path.exists() or '\\' not in line else folder / with_slashes(line)


def _images_of(place: Path, report: Report) -> list[Path]:
    if place.suffix == '.txt':
        return _as_spelt([_listed(place.parent, line) for line in read_lines(place)], report)
    return [place / name for name in files_in(place, report)]

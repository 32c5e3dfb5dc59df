"""Read data in the form of YOLO: data.yaml, and a class index and a box, or a polygon, a line, in
shares of the image's sides.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.progress import track

from cpvt_backbones.errors import InputError

from ..dataset import Coco, Part
from ..files import LEFT_OUT, VALIDATION, files_in, read_lines
from ..report import Fault, Report
from ..shapes import box_of_polygons
from .images import Size, upright_size

NAME_FILES = ('classes.txt', 'obj.names')
SLACK = 0.01  # by which a share may exceed 0 to 1
YAML = ('.yaml', '.yml')


def read_yolo(path: Path, report: Report) -> list[Part]:
    """Boxes and polygons of YOLO's label files as COCO JSON.

    The label file of ``images/a.jpg`` is ``labels/a.txt``, or ``a.txt`` beside it; an image without
    one has no object.

    Args:
        path: The data.yaml, or a folder with one, or with classes.txt in it or in its ``labels``.
        report: Gets files and lines that are skipped or refused.

    Returns:
        Training and validation data as data.yaml names them; else one part.
    """
    config = path if path.suffix in YAML else find_yaml(path)
    if config is None:
        names = _names_of_folder(path)
        groups = {str(path): [path / name for name in files_in(path, report)]}
    else:
        content = read_yaml(config)
        names = names_of_yaml(content, config)
        groups = groups_of_yaml(content, config, report)
    parts = []
    for source, images in groups.items():
        parts.append(_read_part(images, names, source, report))
    return parts


def _names_of_folder(folder: Path) -> list[str]:
    for place in (folder, folder / 'labels'):
        for name in NAME_FILES:
            if (place / name).is_file():
                return read_lines(place / name)
    wanted = ' or '.join(('data.yaml', *NAME_FILES))
    raise FileNotFoundError(
        f'data: no {wanted} with the names of the classes in the folder {str(folder)!r}'
    )


def _read_part(images: Sequence[Path], names: Sequence[str], source: str, report: Report) -> Part:
    paths = [Path(os.path.abspath(path)) for path in images]
    root = Path(os.path.commonpath([path.parent for path in paths]))
    entries: list[Coco] = []
    objects: list[Coco] = []
    used = set()
    for path in track(paths, description='YOLO'):
        entry = dict(id=len(entries) + 1, file_name=path.relative_to(root).as_posix())
        entries.append(entry)
        try:
            file = label_file(path)
        except Fault as fault:
            report.add_fault(fault, str(path))
            continue
        used.add(file)
        size = upright_size(path)
        if not file.is_file():
            report.add(
                'note', 'images without a label file: taken as images without objects', str(path)
            )
        elif size != (0, 0):  # otherwise the check refuses the image
            entry.update(width=size[0], height=size[1])
            for one in read_labels(file, size, len(names), report):
                objects.append(dict(one, id=len(objects) + 1, image_id=entry['id']))
    if not any(file.is_file() for file in used):
        raise FileNotFoundError(
            f'data: none of the images of {source} has a label file, such as {min(used)}'
        )
    for file in sorted(
        {other for folder in {path.parent for path in used} for other in folder.glob('*.txt')}
        - used
    ):
        if file.name not in NAME_FILES:
            report.add('skipped', 'text files without an image', str(file))
    categories = [dict(id=index, name=name) for index, name in enumerate(names)]
    return Part(dict(images=entries, annotations=objects, categories=categories), root, source)


def label_file(image: Path) -> Path:
    """Where the labels of an image are: in ``labels`` beside ``images``, or beside the image."""
    beside = image.with_suffix('.txt')
    parts = [*beside.parts]
    for index in range(len(parts) - 2, -1, -1):
        if parts[index] == 'images':
            parts[index] = 'labels'
            apart = Path(*parts)
            if apart.is_file() and beside.is_file():
                raise Fault('refused', 'images with two label files', f'{apart}, {beside}')
            return beside if beside.is_file() else apart
    return beside


def read_labels(file: Path, size: Size, classes: int, report: Report) -> list[Coco]:
    """Annotations of a label file, without ids.

    Args:
        file: The label file.
        size: Width and height of the image, px.
        classes: Number of classes.
        report: Gets lines that are refused.
    """
    found = []
    for number, line in enumerate(read_lines(file), 1):
        try:
            found.append(_read_line(line, size, classes))
        except Fault as fault:
            report.add_fault(fault, f'{file}: line {number}')
    return found


def _read_line(line: str, size: Size, classes: int) -> Coco:
    """An object of ``CLASS X Y WIDTH HEIGHT`` (of the centre), or ``CLASS X Y X Y X Y ...``."""
    words = line.split()
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        raise Fault('refused', 'lines with words that are no numbers', line[:40]) from None
    count = len(numbers) - 1
    if count != 4 and (count < 6 or count % 2):
        reason = 'lines of neither CLASS X Y WIDTH HEIGHT nor CLASS X Y X Y X Y ...'
        raise Fault('refused', reason, f'{len(numbers)} numbers')
    if not numbers[0].is_integer() or not 0 <= numbers[0] < classes:
        raise Fault('refused', f'classes outside 0 to {classes - 1}', words[0])
    shares = numbers[1:]
    if not all(-SLACK <= share <= 1 + SLACK for share in shares):
        raise Fault('refused', 'coordinates that are no shares of 0 to 1', line[:40])
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
    return one


def find_yaml(folder: Path) -> Path | None:
    """The one YAML file with ``names`` in a folder.

    ``None`` if there is none, ``InputError`` if there are several.
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


def read_yaml(file: Path) -> dict[str, Any]:
    """The content of a YAML file, without running anything; ``{}`` if it is no mapping."""
    import yaml

    try:
        content = yaml.safe_load(file.read_text(encoding='utf-8-sig'))
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f'data: {file} is not YAML: {error}') from None
    return content if isinstance(content, dict) else {}


def names_of_yaml(content: Mapping[str, Any], file: Path) -> list[str]:
    """Names of the classes in order of their index; ``InputError`` if they are not accepted."""
    if 'kpt_shape' in content:
        raise InputError(f'data: {file} is of keypoints; boxes and polygons are accepted')
    names = content.get('names')
    if isinstance(names, dict):
        if {*names} != {*range(len(names))}:
            raise InputError(f'data: the keys of names in {file} must be 0, 1, ..., got {[*names]}')
        names = [names[index] for index in range(len(names))]
    if not isinstance(names, list) or not names:
        raise InputError(f'data: {file} must have a list of names, got {names!r}')
    for name in names:
        if isinstance(name, bool) or not isinstance(name, (str, int, float)):
            raise InputError(
                f'data: the names in {file} must be text, got {name!r}; YAML reads yes, no, on and'
                " off as true and false, so quote them: 'no'"
            )
    if content.get('nc', len(names)) != len(names):
        raise InputError(f'data: {file} has nc: {content["nc"]} and {len(names)} names')
    return [str(name) for name in names]


def groups_of_yaml(content: Mapping[str, Any], file: Path, report: Report) -> dict[str, list[Path]]:
    """The images of training and validation, by the file and the key that name them."""
    keys = ['train', *(key for key in VALIDATION if content.get(key))][:2]
    groups = {}
    for key in keys:
        images = []
        for place in _places(key, content, file):
            images += _images_of(_locate(place, content, file), report)
        groups[f'{file}: {key}'] = images
    for key in VALIDATION:
        if content.get(key) and key not in keys:
            _report_left_out(_places(key, content, file), content, file, report)
    return groups


def _places(key: str, content: Mapping[str, Any], file: Path) -> list[str]:
    """Folders and lists of images of a set."""
    value = content.get(key)
    places = [value] if isinstance(value, str) else value
    if not isinstance(places, list) or not places:
        raise InputError(
            f'data: {file} must name a folder or list of images as {key}, got {value!r}'
        )
    return [str(place) for place in places]


def _report_left_out(
    places: Sequence[str], content: Mapping[str, Any], file: Path, report: Report
) -> None:
    """Report the images of a set that is neither training nor validation data."""
    for place in places:
        with suppress(FileNotFoundError):  # Roboflow names folders that it does not write
            for path in _images_of(_locate(place, content, file), Report()):
                report.add('skipped', LEFT_OUT, str(path))


def _locate(place: str, content: Mapping[str, Any], file: Path) -> Path:
    """A path in data.yaml: from its ``path``, or from the folder of the file.

    Also without a leading ``../``.
    """
    bases = [file.parent / str(content.get('path') or ''), file.parent]
    found = [base / name for base in bases for name in (place, place.removeprefix('../'))]
    for path in found:
        if path.exists():
            return path
    tried = ', '.join(str(path) for path in dict.fromkeys(found))
    raise FileNotFoundError(f'data: {file} names {place!r}, but there is none of {tried}')


def _images_of(place: Path, report: Report) -> list[Path]:
    if place.suffix == '.txt':
        return [place.parent / line for line in read_lines(place)]
    return [place / name for name in files_in(place, report)]

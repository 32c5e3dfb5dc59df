"""YOLO's data.yaml: names of the classes, and where the images are."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .files import LEFT_OUT, VALIDATION, files_in, read_lines
from .report import Report

YAML = ('.yaml', '.yml')


def find_yaml(folder: Path) -> Path | None:
    """The one YAML file with ``names`` in a folder.

    ``None`` if there is none, ``ValueError`` if there are several.
    """
    found = [
        path
        for path in sorted(folder.glob('*'))
        if path.suffix in YAML and 'names' in read_yaml(path)
    ]
    if len(found) > 1:
        raise ValueError(
            f'data: give one of the files with classes, {[str(path) for path in found]}'
        )
    return found[0] if found else None


def read_yaml(file: Path) -> dict[str, Any]:
    """The content of a YAML file, without running anything; ``{}`` if it is no mapping."""
    import yaml

    try:
        content = yaml.safe_load(file.read_text(encoding='utf-8-sig'))
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f'data: {file} is not YAML: {error}') from None
    return content if isinstance(content, dict) else {}


def names_of_yaml(content: Mapping[str, Any], file: Path) -> list[str]:
    """Names of the classes in order of their index; ``ValueError`` if they are not accepted."""
    if 'kpt_shape' in content:
        raise ValueError(f'data: {file} is of keypoints; boxes and polygons are accepted')
    names = content.get('names')
    if isinstance(names, dict):
        if {*names} != {*range(len(names))}:
            raise ValueError(f'data: the keys of names in {file} must be 0, 1, ..., got {[*names]}')
        names = [names[index] for index in range(len(names))]
    if not isinstance(names, list) or not names:
        raise ValueError(f'data: {file} must have a list of names, got {names!r}')
    for name in names:
        if isinstance(name, bool) or not isinstance(name, (str, int, float)):
            raise ValueError(
                f'data: the names in {file} must be text, got {name!r}; YAML reads yes, no, on and'
                " off as true and false, so quote them: 'no'"
            )
    if content.get('nc', len(names)) != len(names):
        raise ValueError(f'data: {file} has nc: {content["nc"]} and {len(names)} names')
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
        raise ValueError(
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

"""Labels in formats of other programs, which are not read: the error names the export that is."""

import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .coco import read_json

SAMPLE = 5  # files of a kind that are looked at
# What is read in place of the program's own format.
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


def refuse_other_programs(folder: Path, find: Callable[[Path, str], Iterable[Path]]) -> None:
    """``ValueError`` for a folder with labels of another program.

    Args:
        folder: Of the data.
        find: Lists the files of a suffix in it.
    """
    programs = {'.json': _of_json, '.xml': _of_xml, '.csv': _of_csv}
    for suffix, program_of in programs.items():
        for file in [*find(folder, suffix)][:SAMPLE]:
            program = program_of(file)
            if program:
                raise ValueError(
                    f'data: {file} is of {program}: {EXPORTS[program]}; to ignore the file, name'
                    ' the form of the data'
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
        return 'CVAT' if ET.parse(file).getroot().tag == 'annotations' else None
    except ET.ParseError:
        return None


def _of_csv(file: Path) -> str | None:
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

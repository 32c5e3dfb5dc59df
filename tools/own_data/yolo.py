"""Read data in the form of YOLO."""

import os
from collections.abc import Sequence
from pathlib import Path

from rich.progress import track

from .coco import Coco, Part
from .files import files_in, read_lines
from .images import upright_size
from .report import Fault, Report
from .yolo_labels import label_file, read_labels
from .yolo_yaml import YAML, find_yaml, groups_of_yaml, names_of_yaml, read_yaml

NAME_FILES = ('classes.txt', 'obj.names')


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

"""Read images in a folder for each class."""

from collections.abc import Sequence
from pathlib import Path

from .coco import Coco, Part
from .files import TRAIN, VALIDATION, files_in
from .report import Report


def read_folders(folder: Path, report: Report) -> Part:
    """Images with the class (``label``) that their folder is named by.

    Args:
        folder: Has ``<class>/*.jpg``, or ``train/<class>/*.jpg`` and ``val/<class>/*.jpg`` (or
            another folder of ``VALIDATION``).
        report: Gets images that are skipped or refused.
    """
    names = files_in(folder, report)
    tops = {name.partition('/')[0].lower() for name in names if '/' in name}
    is_split = TRAIN in tops and bool(tops & {*VALIDATION})
    depth = 1 if is_split else 0
    where = '<split>/<class>/' if is_split else '<class>/'
    images: list[Coco] = []
    for name in names:
        folders = name.split('/')[:-1]
        if len(folders) != depth + 1:
            place = 'deeper than' if len(folders) > depth + 1 else 'outside of'
            report.add('refused', f'images {place} {where}', f'{folder}/{name}')
            continue
        images.append(dict(id=len(images) + 1, file_name=name, label=folders[depth]))
    _note_empty_folders(
        folder, depth, {str(folder / name).rpartition('/')[0] for name in names}, report
    )
    return Part(dict(images=images), folder, str(folder))


def _note_empty_folders(folder: Path, depth: int, used: set[str], report: Report) -> None:
    for path in sorted(folder.glob('/'.join('*' * (depth + 1)))):
        if (
            path.is_dir()
            and not path.name.startswith('.')
            and not any(_is_within(one, path) for one in used)
        ):
            report.add('note', 'folders without images', str(path))


def _is_within(path: str, folder: Path) -> bool:
    return Path(path).is_relative_to(folder)


def classes_of(parts: Sequence[Part]) -> list[str]:
    """Names of the classes of images in class folders, sorted."""
    return sorted({image['label'] for part in parts for image in part.coco['images']})


def check_labels(parts: Sequence[Part], report: Report) -> None:
    """Refuse classes without a training image; note those without a validation image."""
    train, val = ({image['label'] for image in part.coco['images']} for part in parts)
    for label in sorted(val - train):
        report.add('refused', 'classes without a training image', label)
    for label in sorted(train - val):
        report.add('note', 'classes without a validation image', label)
    if len(train | val) < 2:
        found = ', '.join(sorted(train | val)) or 'none'
        report.add(
            'refused',
            'fewer than two classes: images must be in <class>/ or <split>/<class>/',
            found,
        )

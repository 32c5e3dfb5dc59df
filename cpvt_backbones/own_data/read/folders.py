"""Reads images from one folder per class."""

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from PIL import Image

from ..dataset import Coco, Report, Split
from .files import files_in, find_split, is_image_folder, is_mask_folder, is_written

# Folder names that may also be classes: 'mask' for people, 'image' for documents.
MAYBE_CLASSES = ('mask', 'gt', 'image', 'images', 'photos')
SAMPLE, FEW_VALUES = 5, 32  # images, and values of a mask
ALIKE = 0.8  # share of names in the smaller of two folders that makes them belong together


def read_folders(folder: Path, report: Report) -> Split:
    """Read images whose class (``label``) is the name of their folder.

    Args:
        folder: Folder with ``<class>/*.jpg``, or with ``train/<class>/*.jpg`` and
            ``val/<class>/*.jpg`` (or other folders of :func:`.find_split`).
        report: Receives images that are skipped or refused.
    """
    names = files_in(folder, report)
    tops = {name.partition('/')[0].lower() for name in names if '/' in name}
    is_split = find_split(tops) is not None
    depth = 1 if is_split else 0
    where = '<split>/<class>/' if is_split else '<class>/'
    # All images are in folders of the only folder.
    is_nested = len(tops) == 1 and all(name.count('/') > 1 for name in names)
    advice = ''
    if is_nested:
        advice = f': give {folder}/{names[0].partition("/")[0]}'
    elif not any(name.count('/') == depth + 1 for name in names):
        advice = ', and no labels: make a folder for each class, or name the format of the labels'
    images: list[Coco] = []
    for name in names:
        folders = name.split('/')[:-1]
        if len(folders) != depth + 1:
            place = 'deeper than' if len(folders) > depth + 1 else 'outside of'
            report.add('refused', f'images {place} {where}{advice}', f'{folder}/{name}')
            continue
        images.append(dict(id=len(images) + 1, file_name=name, label=folders[depth]))
    _refuse_parts_of_images(images, folder, report)
    _note_empty_folders(
        folder, depth, {str(folder / name).rpartition('/')[0] for name in names}, report
    )
    return Split(dict(images=images), folder, str(folder))


def _refuse_parts_of_images(images: Sequence[Coco], folder: Path, report: Report) -> None:
    """Refuse folders of images and of their masks, which are not classes.

    Equal file names in several folders are reported.
    """
    stems: dict[str, set[str]] = {}
    folder_of: dict[str, str] = {}
    for image in images:
        path = PurePosixPath(image['file_name'])
        stems.setdefault(image['label'], set()).add(path.stem)
        folder_of.setdefault(image['label'], str(folder / path.parent))
    alike = _with_equal_names(stems)
    masks, pictures = [], []
    for name in stems:
        is_certain = name.lower() not in MAYBE_CLASSES or name in alike
        if is_certain and is_mask_folder(name):
            masks.append(folder_of[name])
        elif is_certain and is_image_folder(name):
            pictures.append(folder_of[name])
    if masks or pictures:
        first = pictures[0] if pictures else f'{folder}/IMAGES'
        masks.sort(key=_is_secondary)
        second = masks[0] if masks else f'{folder}/MASKS'
        reason = (
            'folders of images or masks, which are not classes: for class maps, give masks'
            f' {first} {second}; for objects, name the format'
        )
        for refused in [*pictures, *masks]:
            report.add('refused', reason, refused)
    elif len(alike) == 2 and any(_look_like_masks(images, name, folder) for name in alike):
        reason = 'class folders with the same file names: are they images and masks?'
        report.add('note', reason, ', '.join(folder_of[name] for name in sorted(alike)))


def _look_like_masks(images: Sequence[Coco], label: str, folder: Path) -> bool:
    """``True`` if the first images of a class folder have one channel and few values."""
    names = [image['file_name'] for image in images if image['label'] == label][:SAMPLE]
    for name in names:
        try:
            with Image.open(folder / name) as image:
                if image.mode not in ('1', 'L', 'P') or image.getcolors(FEW_VALUES) is None:
                    return False
        except Exception:  # a damaged file, which the check reports
            return False
    return True


def _is_secondary(place: str) -> bool:
    """``True`` for VOC's and LabelMe's folders of instances and of pictures of masks."""
    name = PurePosixPath(place).name.lower()
    return 'object' in name or 'visual' in name


def _with_equal_names(stems: Mapping[str, set[str]]) -> set[str]:
    """Find folders whose file names nearly equal those of another folder."""
    found = set()
    for name, mine in stems.items():
        for other, theirs in stems.items():
            common = len(mine & theirs)
            if name != other and common > 1 and common >= ALIKE * min(len(mine), len(theirs)):
                found |= {name, other}
    return found


def _note_empty_folders(folder: Path, depth: int, used: set[str], report: Report) -> None:
    for path in sorted(folder.glob('/'.join('*' * (depth + 1)))):
        if (
            path.is_dir()
            and not path.name.startswith('.')
            and not is_written(path)
            and not any(_is_within(one, path) for one in used)
        ):
            report.add('note', 'folders without images', str(path))


def _is_within(path: str, folder: Path) -> bool:
    return Path(path).is_relative_to(folder)

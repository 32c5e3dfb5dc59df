"""Finds files and reads their text."""

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from cpvt_backbones.errors import InputError
from cpvt_backbones.images.finding import FOUND_SUFFIXES, UNREAD_SUFFIXES, file_problem
from cpvt_backbones.text import Spellings

from .dataset import Report

TRAIN = 'train'
VALIDATION = (
    'val',
    'valid',
    'validation',
    'test',
)  # folders of validation images; the first existing one is used
# Usual names of folders, in lower case.
IMAGE_FOLDERS = ('images', 'image', 'imgs', 'img', 'jpegimages', 'photos')
MASK_FOLDERS = (
    'masks',
    'mask',
    'labels',
    'label',
    'annotation',
    'annotations',
    'segmentationclass',
    'segmentation',
    'gt',
)
# Ends of these names, such as PNGImages and PedMasks.
IMAGE_ENDS, MASK_ENDS = ('images', 'photos'), ('masks', 'labels', 'annotations')
LEFT_OUT = 'images of another set than training and validation, such as test'
LONGEST_PATH, LONGEST_PART = 4095, 255  # bytes
RECIPE = 'recipe.py'  # in each folder that cpvt make-config writes


def files_in(folder: Path, report: Report, suffixes: Collection[str] | None = None) -> list[str]:
    """List images (or files with ``suffixes``) in a folder and its subfolders, following links.

    Names that begin with a dot are skipped, and so are folders written by ``cpvt make-config`` and
    unsupported images (``UNREAD_SUFFIXES``). Without images, NumPy files count as images.

    Returns:
        Their sorted paths in the folder, with slashes.
    """
    found, arrays = [], []
    for path in _walk(folder, report, ()):
        suffix = path.suffix.lower()
        if suffix in (suffixes or FOUND_SUFFIXES):
            found.append(path.relative_to(folder).as_posix())
        elif suffixes is None and suffix == '.npy':
            arrays.append(path.relative_to(folder).as_posix())
        elif suffixes is None and suffix in UNREAD_SUFFIXES:
            report.add('skipped', f'images of an unsupported format ({suffix})', str(path))
    found = found or arrays  # arrays beside images may hold other data
    if not found:
        wanted = ' or '.join(suffixes or FOUND_SUFFIXES)
        raise FileNotFoundError(f'data: no {wanted} in the folder {str(folder)!r}')
    return sorted(found)


def _walk(folder: Path, report: Report, parents: Collection[str]) -> Iterator[Path]:
    """Yield files below a folder; links to parent folders are skipped."""
    real = os.path.realpath(folder)
    if real in parents:
        report.add('skipped', 'links to a folder that contains them', str(folder))
        return
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        if path.name.startswith('.'):
            report.add('skipped', 'names that begin with a dot', str(path))
        elif is_written(path):
            report.add('skipped', 'folders that cpvt make-config wrote', str(path))
        elif path.is_dir():
            yield from _walk(path, report, (*parents, real))
        else:
            yield path


def is_image_folder(name: str) -> bool:
    """``True`` for usual names of image folders, such as ``PNGImages``."""
    return name.lower() in IMAGE_FOLDERS or name.lower().endswith(IMAGE_ENDS)


def is_mask_folder(name: str) -> bool:
    """``True`` for usual names of mask folders: ``PedMasks``, VOC's ``SegmentationClassPNG``."""
    lower = name.lower()
    return lower in MASK_FOLDERS or lower.startswith('segmentation') or lower.endswith(MASK_ENDS)


def is_written(folder: Path) -> bool:
    """``True`` for a folder with a config's name, which holds converted labels and pictures."""
    return (folder / RECIPE).is_file()


OTHER_SPELLING = (
    'names in another case, or with accents in another Unicode form, than those of the files: the'
    ' one file that agrees is taken'
)


class Listings:
    """Files of folders that can be found regardless of case and Unicode form."""

    def __init__(self) -> None:
        self._known: dict[Path, Spellings] = {}

    def find(self, path: Path) -> Path:
        """Return the stored spelling of a path if it is unambiguous; otherwise the path itself."""
        if path.exists() or path.parent == path:
            return path
        folder = self.find(path.parent)
        if not folder.is_dir():
            return path
        if folder not in self._known:
            self._known[folder] = Spellings(os.listdir(folder))
        found = folder / self._known[folder].find(path.name)
        return found if found.exists() else path


def path_problem(name: str) -> str:
    """Return why a name cannot be a path, such as one of megabytes, or ``''``."""
    try:
        encoded = os.fsencode(name)
    except UnicodeEncodeError:
        return 'invalid Unicode'
    if b'\0' in encoded:
        return 'has a zero byte'
    if len(encoded) > LONGEST_PATH or max(map(len, encoded.split(b'/'))) > LONGEST_PART:
        return f'{len(encoded)} bytes long'
    return ''


def read_lines(file: Path) -> list[str]:
    """Read the non-blank lines of a text file, stripped, without a byte order mark."""
    lines = [line.strip() for line in read_text(file).splitlines()]
    return [line for line in lines if line]


def read_text(file: Path) -> str:
    """Read the text of a file without byte order mark; ``InputError`` if it is not UTF-8."""
    try:
        return read_bytes(file).decode('utf-8-sig')
    except UnicodeDecodeError as error:
        raise InputError(f'data: {file} is not UTF-8 text: {error}') from None


def read_bytes(file: Path) -> bytes:
    """Read a regular file; ``InputError`` for others, such as an endless pipe."""
    if file.exists() and not file.is_file():
        raise InputError(f'data: {file} cannot be read ({file_problem(file)})')
    return file.read_bytes()

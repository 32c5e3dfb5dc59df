"""Finds image files by path, folder or pattern."""

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from .raster import ARRAY_SUFFIX
from .reading import ImageInput, local_path

IMAGE_SUFFIXES = ('.bmp', '.gif', '.jpeg', '.jpg', '.pgm', '.png', '.ppm', '.tif', '.tiff', '.webp')
FOUND_SUFFIXES = (*IMAGE_SUFFIXES, '.jp2')  # JPEG 2000 is read by windows
# Image formats that Pillow and OpenCV do not read without plugins.
UNREAD_SUFFIXES = (
    '.avif',
    '.cr2',
    '.dng',
    '.exr',
    '.heic',
    '.heif',
    '.jfif',
    '.nef',
    '.psd',
    '.svg',
    '.tga',
)


def find_images(inputs: ImageInput | Sequence[ImageInput]) -> list[Path | np.ndarray]:
    """List the image files of folders and patterns.

    Folders and patterns select files by suffix. They select NumPy files only if there is no other
    image. ``**`` enters each folder once, however many links lead to it.

    Args:
        inputs: One or a list of: an image file; a folder, without its subfolders, sorted by name; a
            pattern such as ``'photos/**/*.jpg'``, where ``**`` matches any folders; an array.

    Returns:
        The paths, and the arrays unchanged, in the order of the inputs.

    Raises:
        FileNotFoundError: An input does not exist or has no image.
        ImageError: An input is a URL.

    Examples:
        >>> from pathlib import Path
        >>> from cpvt_backbones.inference import find_images
        >>> for name in ('b.png', 'a.jpg', 'notes.txt'):
        ...     Path(name).touch()
        >>> [path.name for path in find_images('.')]
        ['a.jpg', 'b.png']
    """
    return search_images(inputs)[0]


def search_images(
    inputs: ImageInput | Sequence[ImageInput],
) -> tuple[list[Path | np.ndarray], list[Path]]:
    """List the images of :func:`find_images`, and image files of unsupported formats.

    Args:
        inputs: See :func:`find_images`, whose errors are raised.

    Returns:
        The images; and the files of folders and patterns with one of ``UNREAD_SUFFIXES``, such as
        ``.heic`` and ``.dng``, sorted.
    """
    images: list[Path | np.ndarray] = []
    unread: set[Path] = set()
    for source in _listed(inputs):
        if isinstance(source, (str, os.PathLike)):
            found, others = _find_files(source)
            images += found
            unread.update(others)
        else:  # read_image refuses other objects than arrays
            images.append(source)
    return images, sorted(unread)


def each_image(inputs: ImageInput | Sequence[ImageInput]) -> Iterator[ImageInput]:
    """Yield the images of :func:`find_images`, including missing files named in a list.

    A missing file gets an error when it is read, like a damaged file.
    """
    if isinstance(inputs, (str, os.PathLike)):
        yield from find_images(inputs)
        return
    for source in _listed(inputs):
        found: Sequence[ImageInput] = [source]
        if isinstance(source, (str, os.PathLike)) and is_group(source):
            with suppress(FileNotFoundError):
                found, _ = _find_files(source)
        yield from found


def _listed(inputs: ImageInput | Sequence[ImageInput]) -> Iterable[ImageInput]:
    """Wrap one input in a list, also an object of an unsupported type such as a PIL image."""
    if isinstance(inputs, (str, os.PathLike, np.ndarray)) or not isinstance(inputs, Iterable):
        return [inputs]
    return inputs


def is_group(source: str | os.PathLike[str]) -> bool:
    """``True`` for a folder, and for a pattern that is not the name of a file."""
    pattern = glob.has_magic(os.fspath(source)) and not os.path.lexists(source)
    return pattern or os.path.isdir(source)


def _find_files(source: str | os.PathLike[str]) -> tuple[list[Path], list[Path]]:
    """Return image files, and those of unsupported formats in a folder or pattern."""
    path = local_path(source)
    if os.path.lexists(path) and not path.is_dir():  # true for a broken link
        return [path], []
    found = sorted(_candidates(path))
    images = [file for file in found if file.suffix.lower() in FOUND_SUFFIXES]
    # Arrays beside images may hold other data.
    images = images or [file for file in found if file.suffix.lower() == ARRAY_SUFFIX]
    unread = [file for file in found if file.suffix.lower() in UNREAD_SUFFIXES]
    if not images:
        where = f'in folder {str(path)!r}' if path.is_dir() else f'matches {str(path)!r}'
        fault = f'inputs: no image ({", ".join(FOUND_SUFFIXES)}) {where}'
        if unread:
            fault += f'; {about_unread(unread)}'
        raise FileNotFoundError(fault)
    return images, unread


def about_unread(files: Sequence[Path]) -> str:
    """Describe image files of unsupported formats by number and suffixes."""
    suffixes = ', '.join(sorted({file.suffix.lower() for file in files}))
    count = f'{len(files)} {"file" if len(files) == 1 else "files"}'
    return f'{count} of unsupported formats ({suffixes}): convert them to JPEG or PNG'


def _candidates(path: Path) -> list[Path]:
    """List the content of a folder, or the matches of a pattern."""
    if path.is_dir():
        return list(path.iterdir())
    if glob.has_magic(str(path)):
        return list(_matches(path))
    raise FileNotFoundError(f'inputs: there is no file or folder {str(path)!r}')


def _matches(pattern: Path) -> Iterator[Path]:
    """Yield files that match a pattern; :func:`_folders_below` explains ``**``."""
    if '**' not in pattern.parts:
        yield from map(Path, glob.iglob(str(pattern)))
        return
    position = pattern.parts.index('**')
    rest = pattern.parts[position + 1 :] or ('*',)
    for start in glob.iglob(str(Path(*pattern.parts[:position]))):
        for folder in _folders_below(Path(start)):
            yield from _matches(Path(glob.escape(str(folder)), *rest))


def _folders_below(start: Path) -> Iterator[Path]:
    """Yield a folder and its subfolders at any depth, without hidden ones.

    Each folder is yielded once, because links may lead back to a parent folder.
    """
    seen = {os.path.realpath(start)}
    folders = [start]
    links: list[Path] = []
    while folders or links:
        folder = folders.pop() if folders else links.pop(0)
        if folder.is_symlink() and folder != start:
            real = os.path.realpath(folder)
            if real in seen:
                continue
            seen.add(real)
        yield folder
        for child in _subfolders(folder):
            if child.is_symlink():
                links.append(child)
                continue
            real = os.path.realpath(child)
            if real not in seen:
                seen.add(real)
                folders.append(child)


def _subfolders(folder: Path) -> list[Path]:
    """List visible subfolders in reverse order; an unreadable folder has none."""
    if not os.access(folder, os.R_OK | os.X_OK):
        return []
    children = sorted(folder.iterdir(), reverse=True)
    return [child for child in children if not child.name.startswith('.') and child.is_dir()]


def file_stamp(source: ImageInput) -> list[int] | None:
    """Return [size, mtime_ns] of a file; ``None`` for an array or a missing file."""
    try:
        status = Path(source).stat()  # type: ignore[arg-type]
    except (OSError, TypeError, ValueError):
        return None
    return [status.st_size, status.st_mtime_ns]

"""From paths, folders, patterns and arrays to single images."""

import glob
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .reading import Source, refuse_url

IMAGE_SUFFIXES = ('.bmp', '.gif', '.jpeg', '.jpg', '.pgm', '.png', '.ppm', '.tif', '.tiff', '.webp')


def find_images(inputs: Source | Sequence[Source]) -> list[Path | np.ndarray]:
    """The images that ``inputs`` name.

    Args:
        inputs: One of these or a list of them: an image file; a folder, whose own images are taken in order of name; a
            pattern such as ``'photos/**/*.jpg'``, ``**`` being any folders; an array. Folders and patterns give what
            has the ending of an image, readable or not: what cannot be read is named later, not left out.

    Returns:
        list: Each image, a path or an array.

    Raises:
        FileNotFoundError: An input does not exist, or a folder or pattern has no image.
        ImageError: An input is a URL.
    """
    if isinstance(inputs, (str, os.PathLike, np.ndarray)):
        inputs = [inputs]
    images: list[Path | np.ndarray] = []
    for source in inputs:
        if isinstance(source, (str, os.PathLike)):
            refuse_url(source)
            images += _find_files(Path(source))
        else:  # what is no array is refused when it is read
            images.append(source)
    return images


def _find_files(path: Path) -> list[Path]:
    if path.is_dir():
        found, what = list(path.iterdir()), f'in folder {str(path)!r}'
    elif os.path.lexists(path):  # a broken link exists
        return [path]
    elif glob.has_magic(str(path)):
        found, what = [Path(match) for match in glob.iglob(str(path), recursive=True)], f'matches {str(path)!r}'
    else:
        raise FileNotFoundError(f'inputs: there is no file or folder {str(path)!r}')
    images = sorted(file for file in found if file.suffix.lower() in IMAGE_SUFFIXES)
    if not images:
        raise FileNotFoundError(f'inputs: no image ({", ".join(IMAGE_SUFFIXES)}) {what}')
    return images

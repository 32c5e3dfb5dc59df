"""Any image file or array as (H, W, 3) uint8 BGR, or one clear reason why not."""

import os
import re
import stat
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

Source = str | os.PathLike[str] | np.ndarray

READ_LIMIT = 1_000_000_000
# Pillow's image and the array stand side by side while one is copied to the other, this many pixels at a time.
_BAND_PIXELS = 1 << 22
# Pillow's switches are the whole process's.
_pillow_lock = threading.Lock()


class ImageError(ValueError):
    """An image that cannot be used.

    Args:
        source: What it was to be read from.
        reason: Why it cannot.
    """

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(f'{source}: {reason}')
        self.source = source
        self.reason = reason


def read_image(source: Source, *, name: str | None = None, read_limit: int | None = READ_LIMIT) -> np.ndarray:
    """Read one image as the toolboxes take it.

    A file is turned upright by its EXIF orientation; of an animation or a stack of pages the first is taken; CMYK and
    palettes become colours; an alpha channel is dropped, as the toolboxes' own loader does. 16 bits become 8 over their
    full range: 65535 is 255. Pillow holds three colours in four bytes: for a moment a file takes 7 bytes a pixel, 3
    afterwards.

    Args:
        source: Image file, or an array (H, W), (H, W, 1), (H, W, 3: BGR) or (H, W, 4: BGRA), uint8 or uint16.
        name: What to call it in an error; the path, or ``'array'``, without it.
        read_limit: Most pixels of a file; ``None`` for no limit. It stands in for Pillow's own.

    Returns:
        numpy.ndarray: (H, W, 3), uint8, BGR. An array of that kind comes back as it is.

    Raises:
        ImageError: It is no image, is damaged or cut short, or is of a kind that has no meaning here.
    """
    if isinstance(source, np.ndarray):
        return _from_array(source, name or 'array')
    if not isinstance(source, (str, os.PathLike)):
        raise ImageError(name or repr(source), f'a path or a numpy array is accepted, got {type(source).__name__}')
    path = Path(source)
    name = name or str(path)
    refuse_url(source)
    if reason := _not_a_file(path):
        raise ImageError(name, reason)
    try:
        # From an open file: one that Pillow maps by its name is rotated wrongly.
        with path.open('rb') as file, _pillow_without_surprises(), Image.open(file) as image:
            pixels = image.width * image.height
            if read_limit is not None and pixels > read_limit:
                raise ImageError(
                    name, f'{image.width} x {image.height} is {pixels} pixels, more than read_limit={read_limit}'
                )
            image.load()
            ImageOps.exif_transpose(image, in_place=True)
            return _from_pillow(image, name)
    except ImageError:
        raise
    except UnidentifiedImageError as error:
        raise ImageError(name, 'no image in a format that Pillow reads') from error
    # Pillow's decoders raise whatever they come across: OSError, SyntaxError, struct.error, ...
    except Exception as error:
        raise ImageError(name, f'damaged: {error or type(error).__name__}') from error


def refuse_url(source: str | os.PathLike[str]) -> None:
    """Raise :class:`ImageError` if ``source`` is an address on a network rather than a path."""
    # One slash as well: pathlib has folded the second one away.
    if re.match(r'[A-Za-z][A-Za-z0-9+.-]+:/', os.fspath(source)):
        raise ImageError(os.fspath(source), 'addresses are not fetched; download it and give the path')


def _not_a_file(path: Path) -> str | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return (
            f'a link to {os.readlink(path)!r}, which does not exist' if path.is_symlink() else 'there is no such file'
        )
    except (OSError, ValueError) as error:
        return getattr(error, 'strerror', None) or str(error)
    if stat.S_ISDIR(status.st_mode):
        return 'a folder, not a file'
    if not stat.S_ISREG(status.st_mode):
        return 'not a regular file'
    if not status.st_size:
        return 'the file is empty'
    if not os.access(path, os.R_OK):
        return 'permission denied'
    return None


@contextmanager
def _pillow_without_surprises() -> Iterator[None]:
    """Pillow's own size limit off, its refusal of truncated files on, no matter what else has set these switches."""
    with _pillow_lock, warnings.catch_warnings():
        warnings.simplefilter('ignore')
        before = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
        Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = None, False
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = before


def _from_pillow(image: Image.Image, name: str) -> np.ndarray:
    # Pillow opens 16-bit grey PGMs, and used to open PNGs, as 32 bits.
    sixteen = image.mode.startswith('I;16') or (image.mode == 'I' and image.format in ('PNG', 'PPM'))
    if image.mode in ('I', 'F') and not sixteen:
        raise ImageError(name, f'32 bits a channel (mode {image.mode!r}) have no agreed range; 8 and 16 are accepted')
    width, height = image.size
    result = np.empty((height, width, 3), np.uint8)
    rows = max(1, _BAND_PIXELS // width)
    for top in range(0, height, rows):
        band = image.crop((0, top, width, min(top + rows, height)))
        if sixteen:
            result[top : top + rows] = _to_8_bits(np.asarray(band))[..., None]
        else:
            # A palette with transparency goes through RGBA: straight to RGB, Pillow makes one colour of it transparent.
            rgb = np.asarray((band.convert('RGBA') if band.mode in ('P', 'PA') else band).convert('RGB'))
            result[top : top + rows] = rgb[..., ::-1]
    return result


def _from_array(array: np.ndarray, name: str) -> np.ndarray:
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        raise ImageError(name, f'shapes (H, W) and (H, W, 1 or 3 or 4) are accepted, got {array.shape}')
    if not array.size:
        raise ImageError(name, f'no pixels: the shape is {array.shape}')
    if array.dtype.kind != 'u' or array.dtype.itemsize > 2:
        nan = ' with NaN in it' if array.dtype.kind == 'f' and np.isnan(array).any() else ''
        raise ImageError(name, f'uint8 and uint16 are accepted, got {array.dtype}{nan}')
    if array.dtype.itemsize == 2:
        array = _to_8_bits(array)
    if array.ndim == 2:
        array = array[..., None]
    return np.repeat(array, 3, axis=2) if array.shape[2] == 1 else array[..., :3]


def _to_8_bits(array: np.ndarray) -> np.ndarray:
    """0 ... 65535 to 0 ... 255, rounded."""
    return ((array.astype(np.uint32) + 128) // 257).astype(np.uint8)

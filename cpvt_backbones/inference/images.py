"""Finding, reading and scaling images."""

import glob
import os
import re
import stat
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import ExifTags, Image, ImageFile, ImageOps, UnidentifiedImageError

from cpvt_backbones.options import READ_LIMIT

from .sizes import fit

if TYPE_CHECKING:
    from .windows import ImageFile as WindowedFile

ImageInput = str | os.PathLike[str] | np.ndarray

IMAGE_SUFFIXES = ('.bmp', '.gif', '.jpeg', '.jpg', '.pgm', '.png', '.ppm', '.tif', '.tiff', '.webp')
FOUND_SUFFIXES = (*IMAGE_SUFFIXES, '.jp2')  # JPEG 2000 is read by windows
# Pillow has other decoders, some of which start a program.
IMAGE_FORMATS = ('BMP', 'GIF', 'JPEG', 'PNG', 'PPM', 'TIFF', 'WEBP')
MAX_PREVIEW_SIDE = 2048  # drawing costs far more a pixel than reading
DECODING_BYTES = 7  # a pixel: four in Pillow's image and three in the array
_BAND_PIXELS = 1 << 22  # copied from Pillow's image to the array at a time
_pillow_lock = threading.Lock()  # Pillow's settings are global
_restore_pillow, _readers = ExitStack(), 0  # the last of the threads that read now restores them


class ImageError(ValueError):
    """An image (its path or name) that cannot be used, and the reason."""

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(f'{source}: {reason}')
        self.source, self.reason = source, reason


class NotDecodedError(ImageError):
    """A file that is too large to decode as a whole, or that Pillow cannot.

    :class:`~.windows.ImageFile` may.
    """


def find_images(inputs: ImageInput | Sequence[ImageInput]) -> list[Path | np.ndarray]:
    """List images; ``FileNotFoundError`` if an input does not exist or has none, ``ImageError`` for
    a URL.

    Args:
        inputs: One or a list of: an image file; a folder, without its subfolders, sorted by name; a
            pattern such as ``'photos/**/*.jpg'``, where ``**`` matches any folders; an array.
            Folders and patterns select by suffix. ``**`` enters each folder once, however many
            links lead to it.
    """
    images: list[Path | np.ndarray] = []
    for source in [inputs] if isinstance(inputs, (str, os.PathLike, np.ndarray)) else inputs:
        # Another object is refused by read_image.
        images += _find_files(source) if isinstance(source, (str, os.PathLike)) else [source]
    return images


def _find_files(source: str | os.PathLike[str]) -> list[Path]:
    path = _local_path(source)
    if path.is_dir():
        found, where = list(path.iterdir()), f'in folder {str(path)!r}'
    elif os.path.lexists(path):  # true for a broken link
        return [path]
    elif glob.has_magic(str(path)):
        found, where = list(_matches(path)), f'matches {str(path)!r}'
    else:
        raise FileNotFoundError(f'inputs: there is no file or folder {str(path)!r}')
    images = sorted(file for file in found if file.suffix.lower() in FOUND_SUFFIXES)
    if not images:
        raise FileNotFoundError(f'inputs: no image ({", ".join(FOUND_SUFFIXES)}) {where}')
    return images


def _matches(pattern: Path) -> Iterator[Path]:
    """Files that match a pattern, in which ``**`` is any folders; see :func:`_folders_below`."""
    if '**' not in pattern.parts:
        yield from map(Path, glob.iglob(str(pattern)))
        return
    position = pattern.parts.index('**')
    rest = pattern.parts[position + 1 :] or ('*',)
    for start in glob.iglob(str(Path(*pattern.parts[:position]))):
        for folder in _folders_below(Path(start)):
            yield from _matches(Path(glob.escape(str(folder)), *rest))


def _folders_below(start: Path) -> Iterator[Path]:
    """A folder and those below it, without hidden ones.

    Each once, by its own path rather than by a link.

    Links may lead back to a folder above them.
    """
    seen = {os.path.realpath(start)}
    folders = [start]
    links: list[Path] = []
    while folders or links:
        folder = folders.pop() if folders else links.pop(0)
        real = os.path.realpath(folder)
        if folder.is_symlink() and folder != start:
            if real in seen:
                continue
            seen.add(real)
        yield folder
        for child in (
            sorted(folder.iterdir(), reverse=True) if os.access(folder, os.R_OK | os.X_OK) else ()
        ):
            if child.name.startswith('.') or not child.is_dir():
                continue
            if child.is_symlink():
                links.append(child)
            elif (real := os.path.realpath(child)) not in seen:
                seen.add(real)
                folders.append(child)


def _local_path(source: str | os.PathLike[str]) -> Path:
    if re.match(
        r'[A-Za-z][A-Za-z0-9+.-]+:/', os.fspath(source)
    ):  # pathlib turns the two slashes of a URL into one
        raise ImageError(
            os.fspath(source), 'URLs are not fetched; download the file and give its path'
        )
    return Path(source)


def read_image(
    source: ImageInput, *, name: str | None = None, read_limit: int | None = READ_LIMIT
) -> np.ndarray:
    """Read one image in the toolboxes' format: (H, W, 3), uint8, BGR.

    An array of this kind is returned unchanged.

    EXIF orientation is applied. The first frame or page is taken. CMYK and palettes are converted
    to RGB; alpha is dropped, as by the toolboxes' own loader. 16 bits are scaled to 8 (65535
    becomes 255).

    Args:
        source: Image file, or an array (H, W), (H, W, 1), (H, W, 3: BGR) or (H, W, 4: BGRA), uint8
            or uint16.
        name: Name for error messages; by default the path, or ``'array'``.
        read_limit: Maximum pixels of a file, instead of Pillow's own limit; ``None`` for no limit.

    ``ImageError`` for what is no image, damaged, truncated, or of an unsupported kind.
    """
    if isinstance(source, np.ndarray):
        return _from_array(source, name or 'array')
    if not isinstance(source, (str, os.PathLike)):
        raise ImageError(
            name or repr(source),
            f'a path or a numpy array is accepted, got {type(source).__name__}',
        )
    path = _local_path(source)
    name = name or str(path)
    if reason := _file_problem(path):
        raise ImageError(name, reason)
    try:
        # Opened here, because Pillow transposes an image wrongly that it memory-maps by name.
        with (
            path.open('rb') as file,
            _fixed_pillow_settings(),
            Image.open(file, formats=IMAGE_FORMATS) as image,
        ):
            pixels = image.width * image.height
            if read_limit is not None and pixels > read_limit:
                limit = (
                    f'{image.width} x {image.height} is {pixels} pixels, more than'
                    f' read_limit={read_limit}'
                )
                turned = (
                    getattr(image, 'tag_v2', {}).get(ExifTags.Base.Orientation, 1) != 1
                )  # only Pillow applies it
                kind = ImageError if turned else NotDecodedError
                raise kind(
                    name,
                    f'{limit}; decoding takes {pixels * DECODING_BYTES / 1e9:.2g} GB of memory',
                )
            image.load()
            ImageOps.exif_transpose(image, in_place=True)
            return _from_pillow(image, name)
    except ImageError:
        raise
    except UnidentifiedImageError as error:
        kind = NotDecodedError if path.suffix.lower() in ('.jp2', '.tif', '.tiff') else ImageError
        raise kind(
            name, f'not an image of an accepted format ({", ".join(IMAGE_FORMATS)})'
        ) from error
    except (
        Exception
    ) as error:  # Pillow's decoders raise OSError, SyntaxError, struct.error and others
        raise ImageError(name, f'damaged: {error or type(error).__name__}') from error


def _file_problem(path: Path) -> str | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        link = path.is_symlink() and str(path.readlink())
        return f'a link to {link!r}, which does not exist' if link else 'there is no such file'
    except (OSError, ValueError) as error:
        return getattr(error, 'strerror', None) or str(error)
    if not stat.S_ISREG(status.st_mode):
        return 'a folder, not a file' if stat.S_ISDIR(status.st_mode) else 'not a regular file'
    if not status.st_size:
        return 'the file is empty'
    return None if os.access(path, os.R_OK) else 'permission denied'


@contextmanager
def _fixed_pillow_settings() -> Iterator[None]:
    """Disable Pillow's size limit and its tolerance of truncated files, whatever the process has
    set.
    """
    global _readers
    with _pillow_lock:
        _readers += 1
        if _readers == 1:
            _restore_pillow.enter_context(warnings.catch_warnings())
            warnings.simplefilter('ignore')
            for module, name, value in (
                (Image, 'MAX_IMAGE_PIXELS', None),
                (ImageFile, 'LOAD_TRUNCATED_IMAGES', False),
            ):
                _restore_pillow.callback(setattr, module, name, getattr(module, name))
                setattr(module, name, value)
    try:
        yield
    finally:
        with _pillow_lock:
            _readers -= 1
            if not _readers:
                _restore_pillow.close()


def image_size(source: ImageInput) -> tuple[int, int] | None:
    """(width, height) px of an image by its header, before EXIF's rotation.

    ``None`` if that cannot be read.
    """
    try:
        if isinstance(source, np.ndarray) or _file_problem(path := _local_path(source)):
            return (
                source.shape[1::-1] if isinstance(source, np.ndarray) and source.ndim > 1 else None
            )
        with _fixed_pillow_settings(), Image.open(path, formats=IMAGE_FORMATS) as image:
            return image.size
    except Exception:  # as in read_image, which says why
        return None


def _from_pillow(image: Image.Image, name: str) -> np.ndarray:
    # Pillow opens 16-bit grey PGMs (older versions: PNGs too) as 32 bits.
    sixteen = image.mode.startswith('I;16') or (
        image.mode == 'I' and image.format in ('PNG', 'PPM')
    )
    if image.mode in ('I', 'F') and not sixteen:
        raise ImageError(
            name,
            f'32 bits a channel (mode {image.mode!r}) have no agreed range; 8 and 16 are accepted',
        )
    width, height = image.size
    result = np.empty((height, width, 3), np.uint8)
    rows = max(1, _BAND_PIXELS // width)
    for top in range(0, height, rows):
        band = image.crop((0, top, width, min(top + rows, height)))
        if sixteen:
            result[top : top + rows] = to_8_bits(np.asarray(band))[..., None]
        else:
            # Through RGBA: straight to RGB, Pillow replaces a transparent entry of the palette.
            rgb = np.asarray(
                (band.convert('RGBA') if band.mode in ('P', 'PA') else band).convert('RGB')
            )
            result[top : top + rows] = rgb[..., ::-1]
    return result


def _from_array(array: np.ndarray, name: str) -> np.ndarray:
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        raise ImageError(
            name, f'shapes (H, W) and (H, W, 1 or 3 or 4) are accepted, got {array.shape}'
        )
    if not array.size:
        raise ImageError(name, f'no pixels: the shape is {array.shape}')
    if array.dtype.kind != 'u' or array.dtype.itemsize > 2:
        nan = ' with NaN in it' if array.dtype.kind == 'f' and np.isnan(array).any() else ''
        raise ImageError(name, f'uint8 and uint16 are accepted, got {array.dtype}{nan}')
    if array.dtype.itemsize == 2:
        array = to_8_bits(array)
    array = np.atleast_3d(array)
    return np.repeat(array, 3, axis=2) if array.shape[2] == 1 else array[..., :3]


def to_8_bits(array: np.ndarray) -> np.ndarray:
    """Convert uint16 to uint8: 65535 becomes 255; rounded."""
    return ((array.astype(np.uint32) + 128) // 257).astype(np.uint8)


def file_stamp(source: ImageInput) -> list[int] | None:
    """(size, mtime_ns) of a file; ``None`` for an array or a missing file."""
    try:
        status = Path(source).stat()  # type: ignore[arg-type]
    except (OSError, TypeError, ValueError):
        return None
    return [status.st_size, status.st_mtime_ns]


def make_preview(image: np.ndarray) -> np.ndarray:
    """Copy an image to draw on, BGR to RGB, reduced to sides of at most ``MAX_PREVIEW_SIDE``."""
    image = (
        fit(image, (MAX_PREVIEW_SIDE, MAX_PREVIEW_SIDE))
        if max(image.shape) > MAX_PREVIEW_SIDE
        else image
    )
    return image[: image.shape[0], : image.shape[1]][..., ::-1].copy()


@dataclass(frozen=True)
class LoadedImage:
    """An image ready for the model."""

    index: int  # among the inputs
    name: str
    size: tuple[int, int]  # width and height in px, before scaling
    image: Any  # (h, w, 3), scaled: an array; if it has to be tiled maybe read by windows
    preview: np.ndarray | None = None  # to draw on
    stamp: list[int] | None = None  # of its file, before reading
    error: Exception | None = None  # why there is none
    file: 'WindowedFile | None' = None  # of an image read by windows
    map_path: Path | None = None  # where its class map goes

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(getattr(array, 'nbytes', 0) for array in (self.image, self.preview))

    @property
    def pixels(self) -> int:
        """Pixels of the model's input."""
        return self.image.shape[0] * self.image.shape[1]

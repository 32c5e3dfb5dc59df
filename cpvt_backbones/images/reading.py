"""Reads an image in the toolboxes' format: (H, W, 3), uint8, BGR."""

import os
import re
import stat
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import ExifTags, Image, ImageFile, ImageOps, TiffImagePlugin, UnidentifiedImageError

from cpvt_backbones.errors import InputError
from cpvt_backbones.plain import READ_LIMIT

from .raster import ValueRangeError, size_of

ImageInput = str | os.PathLike[str] | np.ndarray
"""An image: the path of a file, or an array. Arrays are (H, W), (H, W, 1), (H, W, 3) in BGR or
(H, W, 4) in BGRA, uint8 or uint16; see :func:`read_image`.
"""
# Some of Pillow's other decoders start a program.
IMAGE_FORMATS = ('BMP', 'GIF', 'JPEG', 'PNG', 'PPM', 'TIFF', 'WEBP')
DECODING_BYTES = 7  # a pixel: four in Pillow's image and three in the array
_BAND_PIXELS = 1 << 22  # number of pixels copied from Pillow's image to the array at a time


class ImageError(InputError):
    """Raised for an image that cannot be used; the message has its path or name and the reason.

    Args:
        source: Path or name of the image.
        reason: Why it cannot be used.
    """

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(f'{source}: {reason}')
        self.source, self.reason = source, reason


def local_path(source: str | os.PathLike[str]) -> Path:
    """Convert a path to ``Path``; raise ``ImageError`` for a URL."""
    # pathlib turns the two slashes of a URL into one.
    if re.match(r'[A-Za-z][A-Za-z0-9+.-]+:/', os.fspath(source)):
        reason = 'URLs are not fetched; download the file and give its path'
        raise ImageError(os.fspath(source), reason)
    return Path(source)


def file_problem(path: Path) -> str | None:
    """Return why a path is not a readable file; ``None`` for a readable file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        if path.is_symlink():
            return f'a link to {str(path.readlink())!r}, which does not exist'
        return 'there is no such file'
    except (OSError, ValueError) as error:
        return getattr(error, 'strerror', None) or str(error)
    if stat.S_ISDIR(status.st_mode):
        return 'a folder, not a file'
    if not stat.S_ISREG(status.st_mode):
        return 'not a regular file'
    if not status.st_size:
        return 'the file is empty'
    return None if os.access(path, os.R_OK) else 'permission denied'


def read_image(
    source: ImageInput, *, name: str | None = None, read_limit: int | None = READ_LIMIT
) -> np.ndarray:
    """Read one image in the toolboxes' format: (H, W, 3), uint8, BGR.

    The EXIF rotation is applied. A file with several frames or pages gives its first one. CMYK and
    palettes are converted to RGB. Transparent pixels are blended on white. 16 bits are scaled to 8,
    so that 65535 becomes 255.

    Args:
        source: Image file, or an array (H, W), (H, W, 1), (H, W, 3: BGR) or (H, W, 4: BGRA), uint8
            or uint16. An array in the toolboxes' format is returned unchanged.
        name: Name for error messages; ``None`` for the path, or ``'array'``.
        read_limit: Maximum number of pixels of a file, instead of Pillow's own limit; ``None`` for
            no limit.

    Raises:
        ImageError: The file is not an image, or it is damaged, truncated, too large or unsupported.

    Examples:
        >>> from PIL import Image
        >>> from cpvt_backbones.inference import read_image
        >>> Image.new('RGB', (90, 60), 'red').save('photo.png')
        >>> image = read_image('photo.png')
        >>> image.shape, image[0, 0].tolist()  # BGR
        ((60, 90, 3), [0, 0, 255])
    """
    if isinstance(source, np.ndarray):
        return _from_array(source, name or 'array')
    if not isinstance(source, (str, os.PathLike)):
        raise ImageError(name or repr(source), _no_image(source))
    path = local_path(source)
    name = name or str(path)
    if reason := file_problem(path):
        raise ImageError(name, reason)
    try:
        with _open(path) as image:
            pixels = image.width * image.height
            if read_limit is not None and pixels > read_limit:
                limit = f'{pixels} pixels, more than read_limit={read_limit}'
                memory = f'decoding takes {pixels * DECODING_BYTES / 1e9:.2g} GB of memory'
                raise ImageError(name, f'{image.width} x {image.height} is {limit}; {memory}')
            if reason := misread(image):
                raise ImageError(name, reason)
            image.load()
            ImageOps.exif_transpose(image, in_place=True)
            return _from_pillow(image, name)
    except ImageError:
        raise
    except UnidentifiedImageError as error:
        formats = ', '.join((*IMAGE_FORMATS, 'JPEG 2000'))
        raise ImageError(name, f'not an image of an accepted format ({formats})') from error
    # Pillow's decoders raise OSError, SyntaxError, struct.error and others.
    except Exception as error:
        raise ImageError(name, f'damaged: {error or type(error).__name__}') from error


def _no_image(source: object) -> str:
    """Return why an object is not an image, and how to convert a PIL image."""
    reason = f'a path or a numpy array is accepted, got {type(source).__name__}'
    if isinstance(source, Image.Image):
        reason += "; np.asarray(image.convert('RGB'))[..., ::-1] is the array, in BGR"
    return reason


class Header(NamedTuple):
    """Header of an image file."""

    width: int  # px, before the EXIF rotation
    height: int
    turned: bool  # the EXIF orientation is not 1
    misread: str | None  # reason why only rasterio decodes the right values


def read_header(path: Path) -> Header | None:
    """Read the header of an image file; ``None`` if it is damaged or unknown to Pillow."""
    try:
        with _open(path) as image:
            tags = getattr(image, 'tag_v2', {})  # of a TIFF
            turned = tags.get(ExifTags.Base.Orientation, 1) != 1
            return Header(image.width, image.height, turned, _misread_planes(image))
    except Exception:  # which read_image reports
        return None


def image_size(source: ImageInput) -> tuple[int, int] | None:
    """Read (width, height) of an image in px from its header, before the EXIF rotation.

    Args:
        source: Image file or array.

    Returns:
        The size; ``None`` if the header cannot be read.
    """
    if isinstance(source, np.ndarray):
        return source.shape[1::-1] if source.ndim > 1 else None
    try:
        path = local_path(source)
    except (ImageError, TypeError):
        return None
    if file_problem(path):
        return None
    if header := read_header(path):
        return header.width, header.height
    with suppress(ValueRangeError, ImportError):
        return size_of(path)  # of a NumPy array, or of a TIFF that Pillow does not know
    return None


@contextmanager
def _open(path: Path) -> Iterator[Image.Image]:
    # Not opened by name, because Pillow then memory-maps the image and transposes it wrongly.
    with (
        path.open('rb') as file,
        _PillowSettings(),
        Image.open(file, formats=IMAGE_FORMATS) as image,
    ):
        yield image


class _PillowSettings:
    """Disables Pillow's size limit and its tolerance of truncated files.

    These settings are global. The first reading thread sets them, and the last one restores them.
    """

    _lock = threading.Lock()
    _readers = 0
    _restore = ExitStack()

    def __enter__(self) -> None:
        cls = _PillowSettings
        with cls._lock:
            cls._readers += 1
            if cls._readers > 1:
                return
            cls._restore.enter_context(warnings.catch_warnings())
            warnings.simplefilter('ignore')
            cls._set(Image, 'MAX_IMAGE_PIXELS', None)
            cls._set(ImageFile, 'LOAD_TRUNCATED_IMAGES', False)

    @classmethod
    def _set(cls, module: object, name: str, value: object) -> None:
        cls._restore.callback(setattr, module, name, getattr(module, name))
        setattr(module, name, value)

    def __exit__(self, *_: object) -> None:
        cls = _PillowSettings
        with cls._lock:
            cls._readers -= 1
            if not cls._readers:
                cls._restore.close()


def _misread_planes(image: Image.Image) -> str | None:
    """Return why Pillow fails on a TIFF stored in planes; ``None`` if it decodes the TIFF."""
    tags = getattr(image, 'tag_v2', {})
    bits = tags.get(TiffImagePlugin.BITSPERSAMPLE, (1,))
    is_packed = tags.get(TiffImagePlugin.COMPRESSION, 1) != 1
    if tags.get(TiffImagePlugin.PLANAR_CONFIGURATION, 1) == 1 or max(bits) <= 8 or is_packed:
        return None
    fault = '16 bits, not compressed, in planes'
    return f'{fault}: Pillow does not read it; write it by gdal_translate -co INTERLEAVE=PIXEL'


def misread(image: Image.Image) -> str | None:
    """Return why Pillow silently decodes a TIFF to wrong values; ``None`` if it does not."""
    tags = getattr(image, 'tag_v2', {})
    if _is_sixteen(image) and tags.get(TiffImagePlugin.PHOTOMETRIC_INTERPRETATION) == 0:
        return '16 bits in which 0 is white (WhiteIsZero) are not accepted; save it as BlackIsZero'
    if 2 in tags.get(TiffImagePlugin.SAMPLEFORMAT, ()):
        return 'signed values have no agreed range; 8 and 16 bits from 0 are accepted'
    return _misread_planes(image)


def _from_pillow(image: Image.Image, name: str) -> np.ndarray:
    sixteen = _is_sixteen(image)
    if image.mode in ('I', 'F') and not sixteen:
        accepted = 'have no agreed range; 8 and 16 are accepted'
        raise ImageError(name, f'32 bits per channel (mode {image.mode!r}) {accepted}')
    width, height = image.size
    result = np.empty((height, width, 3), np.uint8)
    rows = max(1, _BAND_PIXELS // width)
    for top in range(0, height, rows):
        whole = rows >= height
        band = image if whole else image.crop((0, top, width, min(top + rows, height)))
        if sixteen:
            result[top : top + rows] = to_8_bits(np.asarray(band))[..., None]
        elif image.has_transparency_data:
            rgba = np.asarray(band.convert('RGBA'))
            result[top : top + rows] = blend_on_white(rgba[..., 2::-1], rgba[..., 3:])
        else:
            bgr = (band if band.mode == 'RGB' else band.convert('RGB')).tobytes('raw', 'BGR')
            result[top : top + rows] = np.frombuffer(bgr, np.uint8).reshape(-1, width, 3)
    return result


def _is_sixteen(image: Image.Image) -> bool:
    # Pillow opens 16-bit grey PGMs (older versions: PNGs too) as 32 bits.
    wide = image.mode == 'I' and image.format in ('PNG', 'PPM')
    return wide or image.mode.startswith('I;16')


def keeps_to_twelve_bits(source: ImageInput, pixels: np.ndarray) -> bool:
    """``True`` for a 16-bit image without values above 4095, which is nearly black at full range.

    Args:
        source: Image file or array.
        pixels: The image from :func:`read_image`.
    """
    if not 0 < pixels.max() <= to_8_bits(np.asarray(4095)):
        return False
    if isinstance(source, np.ndarray):
        return source.dtype.itemsize == 2
    with _open(local_path(source)) as image:
        # Pillow decodes 16-bit colours to 8 bits; only its tiles show the original depth.
        return _is_sixteen(image) or ';16' in str(getattr(image, 'tile', ''))


def _from_array(array: np.ndarray, name: str) -> np.ndarray:
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        accepted = 'shapes (H, W) and (H, W, 1 or 3 or 4) are accepted'
        raise ImageError(name, f'{accepted}, got {array.shape}')
    if not array.size:
        raise ImageError(name, f'no pixels: the shape is {array.shape}')
    if array.dtype.kind != 'u' or array.dtype.itemsize > 2:
        fault, advice = '', ''
        if array.dtype.kind == 'f':
            fault = ' with NaN in it' if np.isnan(array).any() else ''
            advice = '; (255 * array).round().astype(np.uint8) converts values from 0 to 1'
        raise ImageError(name, f'uint8 and uint16 are accepted, got {array.dtype}{fault}{advice}')
    if array.dtype.itemsize == 2:
        array = to_8_bits(array)
    array = np.atleast_3d(np.asarray(array))  # np.matrix always has two axes
    if array.shape[2] == 1:
        return np.repeat(array, 3, axis=2)
    return array if array.shape[2] == 3 else blend_on_white(array[..., :3], array[..., 3:])


def blend_on_white(colours: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Blend colours (..., 3) on white by ``alpha`` (..., 1), all uint8, with rounding."""
    opacity = alpha.astype(np.uint16)
    return ((colours * opacity + 255 * (255 - opacity) + 127) // 255).astype(np.uint8)


def to_8_bits(array: np.ndarray) -> np.ndarray:
    """Scale uint16 to uint8 with rounding, so that 65535 becomes 255."""
    return ((array.astype(np.uint32) + 128) // 257).astype(np.uint8)

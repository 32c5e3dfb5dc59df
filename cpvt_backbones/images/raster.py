"""Image files as arrays of bands: NumPy, TIFF, JPEG 2000 and formats that OpenCV reads."""

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from cpvt_backbones.errors import InputError

# Other drivers of GDAL may open further files or addresses.
DRIVERS = {'.tif': 'GTiff', '.tiff': 'GTiff', '.jp2': 'JP2OpenJPEG'}
OTHER_COLOURS = {'palette', 'white', 'cmyk', 'cyan', 'cielab', 'icclab', 'itulab'}
ARRAY_SUFFIX = '.npy'
FORMATS = ('BMP', 'JPEG', 'PNG', 'PPM', 'TIFF', 'WEBP', 'JPEG2000')  # of Pillow


class ValueRangeError(InputError):
    """Raised for unsupported bands or values in a file, whose name is not in the message."""


@dataclass(frozen=True)
class Raster:
    """An open file of bands, as :func:`open_raster` yields it.

    Args:
        width: Width of the image in px.
        height: Height of the image in px.
        count: Number of bands.
        dtype: Type of the values.
        nodata: Value of pixels without data; ``None`` if the file does not define one.
        source: rasterio's file, or an array (H, W, bands).
        masked: Pixels without data in the mask of a TIFF, bool (H, W); ``None`` without a mask.
    """

    width: int
    height: int
    count: int
    dtype: str
    nodata: float | None
    source: Any
    masked: np.ndarray | None = None

    def missing(self, values: np.ndarray) -> np.ndarray:
        """Mark values of :meth:`read` without data, bool (H, W, bands)."""
        return is_missing(values, self.nodata, self.masked)

    def read(self, bands: Sequence[int]) -> np.ndarray:
        """Read bands, counted from 1, as (H, W, len(bands)); ``ValueRangeError`` if damaged."""
        if isinstance(self.source, np.ndarray):
            return self.source[..., [band - 1 for band in bands]]
        try:
            return np.moveaxis(self.source.read([*bands]), 0, 2)
        except Exception as error:  # rasterio's, and those of its drivers
            raise ValueRangeError(f'damaged: {error}') from error


def is_missing(
    pixels: np.ndarray, nodata: float | None, masked: np.ndarray | None = None
) -> np.ndarray:
    """Mark values (H, W, bands) equal to ``nodata``, which may be NaN, or in ``masked`` (H, W)."""
    if nodata is None:
        missing = np.zeros(pixels.shape, bool)
    else:
        missing = np.isnan(pixels) if np.isnan(nodata) else pixels == nodata
    return missing if masked is None else missing | masked[..., None]


def file_mask(file: Any, window: Any = None) -> np.ndarray | None:
    """Return the pixels without data in the mask of rasterio's file, bool (H, W), or ``None``.

    A transparency band does not count as a mask, because GDAL also takes a band of the scene for
    one.

    Raises:
        ValueRangeError: The file is damaged.
    """
    kinds = {kind.name for kind in file.mask_flag_enums[0]}
    if 'per_dataset' not in kinds or 'alpha' in kinds:
        return None
    try:
        return file.read_masks(1, window=window) == 0
    except Exception as error:  # rasterio's, and those of its drivers
        raise ValueRangeError(f'damaged: {error}') from error


@contextmanager
def open_raster(path: Path) -> Iterator[Raster]:
    """Open a NumPy file, a TIFF or JPEG 2000 (by rasterio), or another image (by OpenCV).

    Raises:
        ValueRangeError: The file is damaged, of another kind, or rotated by EXIF.
        ImportError: rasterio is not installed.
    """
    suffix = path.suffix.lower()
    if suffix == ARRAY_SUFFIX:
        yield raster_of(_read_array(path))
        return
    if orientation_of(path) != 1:
        raise ValueRangeError(f'rotated by EXIF (orientation {orientation_of(path)})')
    if suffix not in DRIVERS:
        yield raster_of(_decode(path))
        return
    with open_tiff(path) as file:
        if odd := other_colours(file):
            raise ValueRangeError(f'grey or RGB is accepted, got {", ".join(odd)}')
        size = file.width, file.height
        yield Raster(*size, file.count, file.dtypes[0], file.nodata, file, file_mask(file))


def raster_of(array: np.ndarray) -> Raster:
    """Wrap an array (H, W) or (H, W, bands); ``ValueRangeError`` for other shapes."""
    if array.ndim not in (2, 3) or not array.size:
        raise ValueRangeError(f'(H, W) or (H, W, bands) is accepted, got {array.shape}')
    if array.ndim == 3 and 4 < array.shape[2] > array.shape[0] < array.shape[1]:
        advice = 'move the axis of the bands to the end'
        raise ValueRangeError(f'(H, W, bands) is accepted, got {array.shape}: {advice}')
    pixels = np.atleast_3d(array)
    height, width, count = pixels.shape
    return Raster(width, height, count, pixels.dtype.name, None, pixels)


def size_of(path: Path) -> tuple[int, int]:
    """Return width and height of a file in px, without decoding it if the format allows that.

    The errors are those of :func:`open_raster`.
    """
    suffix = path.suffix.lower()
    if suffix == ARRAY_SUFFIX:
        raster = raster_of(_read_array(path))
        return raster.width, raster.height
    if suffix in DRIVERS:
        with open_tiff(path) as file:
            return file.width, file.height
    return _read_header(path)[0]


def _read_header(path: Path) -> tuple[tuple[int, int], int]:
    """Return width and height in px, and the number of bands that Pillow finds."""
    from PIL import Image

    try:
        with path.open('rb') as stream, Image.open(stream, formats=FORMATS) as image:
            return image.size, len(image.getbands())
    except Exception as error:  # Pillow raises OSError, SyntaxError, struct.error and others
        raise ValueRangeError(f'not an image, or damaged: {error}') from error


def orientation_of(path: Path) -> int:
    """Return the EXIF orientation, 1 to 8; 1 means upright or unknown."""
    from PIL import ExifTags, Image

    with suppress(Exception), path.open('rb') as stream:  # reading reports the error
        with Image.open(stream, formats=FORMATS) as image:
            return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    return 1


def other_colours(file: Any) -> list[str]:
    """Return rasterio's names of a file's colours, unless they are grey or RGB."""
    kinds = {kind.name for kind in (file.photometric, file.colorinterp[0]) if kind}
    return sorted(kinds & OTHER_COLOURS)


def _read_array(path: Path) -> np.ndarray:
    try:
        array = np.load(path, mmap_mode='r', allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueRangeError(f'not an array of numbers, or damaged: {error}') from error
    if not isinstance(array, np.ndarray):  # an archive of several
        raise ValueRangeError(f'an array is accepted, got {type(array).__name__}')
    return array


def open_tiff(path: Path) -> Any:
    """Open a TIFF or JPEG 2000 by rasterio; the errors are those of :func:`open_raster`."""
    # MB of decoded blocks; by default 5 % of the memory
    os.environ.setdefault('GDAL_CACHEMAX', '256')
    try:
        import rasterio
    except ImportError:
        needs = 'reading by windows, a range or bands needs rasterio: pip install rasterio'
        raise ImportError(needs) from None
    driver = DRIVERS[path.suffix.lower()]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', rasterio.errors.NotGeoreferencedWarning)
            return rasterio.open(path.absolute(), driver=driver)
    except rasterio.errors.RasterioIOError as error:
        raise ValueRangeError(f'not a file of the kind {driver}, or damaged: {error}') from error


def _decode(path: Path) -> np.ndarray:
    """Decode an image file to pixels (H, W) or (H, W, RGB or RGBA) of its own type."""
    _, count = _read_header(path)  # refuses formats whose decoders are not used
    try:
        pixels = cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_UNCHANGED)
    except (OSError, cv2.error) as error:
        raise ValueRangeError(f'damaged: {error}') from error
    if pixels is None:
        raise ValueRangeError('not an image that OpenCV reads, or damaged')
    found = 1 if pixels.ndim == 2 else pixels.shape[2]
    if found != count:  # a palette, or grey with transparency
        raise ValueRangeError(
            f'OpenCV reads {found} bands, the file has {count}: save it as grey, RGB or RGBA'
        )
    if found > 1:
        pixels[..., :3] = pixels[..., 2::-1]
    return pixels

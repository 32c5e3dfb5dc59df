"""Images whose values are not 8 bits: a range of values becomes 0 to 255.

Training (:class:`.engine.LoadRange`) and prediction (:mod:`.inference`) read by it, so that a model
sees the same pixels in both.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

# GDAL has other drivers, some of which open further files or addresses.
DRIVERS = {'.tif': 'GTiff', '.tiff': 'GTiff', '.jp2': 'JP2OpenJPEG'}
OTHER_COLOURS = {'palette', 'white', 'cmyk', 'cyan', 'cielab', 'icclab', 'itulab'}
ARRAY_SUFFIX = '.npy'
FORMATS = ('PNG', 'PPM', 'TIFF', 'JPEG2000')  # of Pillow, with more than 8 bits
STRIP_PIXELS = 1 << 20  # that are scaled at a time, to save memory
DTYPES = ('uint16', 'int16', 'uint32', 'int32', 'float32', 'float64')


class ValueRangeError(ValueError):
    """A file that cannot be read by its range of values; the message does not name the file."""


@dataclass(frozen=True)
class Raster:
    """Pixels of a file in their own type.

    Args:
        pixels: Grey (H, W, 1) or BGR (H, W, 3).
        nodata: The value of pixels without data, of a TIFF that names one.
    """

    pixels: np.ndarray
    nodata: float | None = None


@dataclass(frozen=True, kw_only=True)
class ValueRange:
    """How the values of a grey or RGB file become an image of 8 bits.

    Args:
        low: The value that becomes 0. Smaller ones become 0, too, and ``nodata`` of a TIFF.
        high: The value that becomes 255. Greater ones become 255, too.
        dtype: Type of the values, one of ``DTYPES``. Files of another type are refused.

    Raises:
        ValueError: An argument is not accepted.
    """

    low: float
    high: float
    dtype: str

    def __post_init__(self) -> None:
        numbers = (self.low, self.high)
        are_numbers = all(isinstance(one, (int, float)) for one in numbers)
        if not are_numbers or not np.isfinite(numbers).all() or not self.low < self.high:
            accepted = 'two finite numbers, LOW below HIGH'
            raise ValueError(f'range must be {accepted}, got {self.low!r} and {self.high!r}')
        if self.dtype not in DTYPES:
            raise ValueError(f'dtype must be one of {", ".join(DTYPES)}, got {self.dtype!r}')

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments, as plain data."""
        return asdict(self)

    def read(self, path: str | os.PathLike[str]) -> np.ndarray:
        """Read a file as (H, W, 3), uint8, BGR.

        ``ValueRangeError`` for a file that is damaged, or has other bands or values.
        """
        raster = read_raster(Path(path))
        return self.convert(raster.pixels, raster.nodata)

    def check(self, count: int, dtype: str) -> None:
        """Raise ``ValueRangeError`` unless a file of ``count`` bands of this type is accepted."""
        if count not in (1, 3):
            raise ValueRangeError(f'1 band (grey) or 3 (RGB) are accepted, got {count}')
        if dtype != self.dtype:
            raise ValueRangeError(f'values of {dtype}; the other images have {self.dtype}')

    def convert(self, pixels: np.ndarray, nodata: float | None = None) -> np.ndarray:
        """Scale (H, W), (H, W, 1) or (H, W, 3) to the image (H, W, 3), uint8.

        ``ValueRangeError`` for NaN and infinite values, but those that are ``nodata``.
        """
        if pixels.ndim not in (2, 3) or not pixels.size:
            raise ValueRangeError(f'(H, W) or (H, W, 1 or 3) is accepted, got {pixels.shape}')
        pixels = np.atleast_3d(pixels)
        self.check(pixels.shape[2], pixels.dtype.name)
        image = np.empty((*pixels.shape[:2], 3), np.uint8)
        rows = max(1, STRIP_PIXELS // pixels.shape[1])
        for top in range(0, len(pixels), rows):
            image[top : top + rows] = self._scale(pixels[top : top + rows], nodata)
        return image

    def _scale(self, pixels: np.ndarray, nodata: float | None) -> np.ndarray:
        # Integers of 32 bits become float64, in which all of them exist.
        values = pixels.astype(np.result_type(pixels.dtype, np.float32))
        values[is_missing(pixels, nodata)] = self.low
        if not np.isfinite(values).all():
            raise ValueRangeError('NaN or infinite values')
        values = (np.clip(values, self.low, self.high) - self.low) / (self.high - self.low)
        return np.rint(values * 255).astype(np.uint8)


def is_missing(pixels: np.ndarray, nodata: float | None) -> np.ndarray:
    """Where values are ``nodata``, which may be NaN; of the shape of ``pixels``."""
    if nodata is None:
        return np.zeros(pixels.shape, bool)
    return np.isnan(pixels) if np.isnan(nodata) else pixels == nodata


def read_raster(path: Path) -> Raster:
    """Read a NumPy file (RGB), a TIFF or JPEG 2000 (by rasterio), or a PNG or PGM (by OpenCV).

    Raises:
        ValueRangeError: The file is damaged, of another kind, or turned by EXIF.
        ImportError: rasterio is not installed.
    """
    suffix = path.suffix.lower()
    if suffix == ARRAY_SUFFIX:
        return Raster(to_bgr(_read_array(path)))
    if orientation_of(path) != 1:
        raise ValueRangeError(f'turned by EXIF (orientation {orientation_of(path)})')
    if suffix not in DRIVERS:
        return Raster(_decode(path))
    with open_tiff(path) as file:
        if odd := other_colours(file):
            raise ValueRangeError(f'grey or RGB is accepted, got {", ".join(odd)}')
        if file.count not in (1, 3):
            raise ValueRangeError(f'1 band (grey) or 3 (RGB) are accepted, got {file.count}')
        try:
            pixels = np.moveaxis(file.read(), 0, 2)
        except Exception as error:  # rasterio's, and those of its drivers
            raise ValueRangeError(f'damaged: {error}') from error
        return Raster(to_bgr(pixels), file.nodata)


def size_of(path: Path) -> tuple[int, int]:
    """Width and height of a file, px, without decoding it where the format allows that.

    Raises as :func:`read_raster`.
    """
    suffix = path.suffix.lower()
    if suffix == ARRAY_SUFFIX:
        return _read_array(path).shape[1::-1]
    if suffix in DRIVERS:
        with open_tiff(path) as file:
            return file.width, file.height
    from PIL import Image

    try:
        with path.open('rb') as stream, Image.open(stream, formats=FORMATS) as image:
            return image.size
    except Exception as error:  # Pillow raises OSError, SyntaxError, struct.error and others
        raise ValueRangeError(f'not a PNG or PGM, or damaged: {error}') from error


def orientation_of(path: Path) -> int:
    """EXIF's orientation, 1 to 8; 1 is upright, or unknown."""
    from PIL import ExifTags, Image

    with suppress(Exception), path.open('rb') as stream:  # reading names what is wrong
        with Image.open(stream, formats=FORMATS) as image:
            return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    return 1


def other_colours(file: Any) -> list[str]:
    """What rasterio calls the colours of a file, unless they are grey or RGB."""
    kinds = {kind.name for kind in (file.photometric, file.colorinterp[0]) if kind}
    return sorted(kinds & OTHER_COLOURS)


def to_bgr(pixels: np.ndarray) -> np.ndarray:
    """RGB as BGR; other arrays unchanged."""
    is_colour = pixels.ndim == 3 and pixels.shape[2] == 3
    return np.ascontiguousarray(pixels[..., ::-1]) if is_colour else pixels


def _read_array(path: Path) -> np.ndarray:
    try:
        array = np.load(path, mmap_mode='r', allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueRangeError(f'not an array of numbers, or damaged: {error}') from error
    if not isinstance(array, np.ndarray) or array.ndim not in (2, 3) or not array.size:
        found = getattr(array, 'shape', type(array).__name__)
        raise ValueRangeError(f'(H, W) or (H, W, 1 or 3) is accepted, got {found}')
    return array


@contextmanager
def open_tiff(path: Path) -> Iterator[Any]:
    """Open a TIFF or JPEG 2000 by rasterio; raises as :func:`read_raster`."""
    # MB of decoded blocks; by default 5 % of the memory
    os.environ.setdefault('GDAL_CACHEMAX', '256')
    try:
        import rasterio
    except ImportError:
        needs = "a TIFF with a range of values needs rasterio: pip install '.[large]'"
        raise ImportError(needs) from None
    warnings.filterwarnings('ignore', category=rasterio.errors.NotGeoreferencedWarning)
    driver = DRIVERS[path.suffix.lower()]
    try:
        file = rasterio.open(path.absolute(), driver=driver)
    except rasterio.errors.RasterioIOError as error:
        raise ValueRangeError(f'not of the kind {driver}, or damaged: {error}') from error
    with file:
        yield file


def _decode(path: Path) -> np.ndarray:
    size_of(path)  # refuses formats whose decoders are not used
    try:
        pixels = cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_UNCHANGED)
    except (OSError, cv2.error) as error:
        raise ValueRangeError(f'damaged: {error}') from error
    if pixels is None:
        raise ValueRangeError('not an image that OpenCV reads, or damaged')
    return pixels

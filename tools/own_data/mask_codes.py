"""Read the pixels of masks as numbers."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image, ImageOps

from .images import count_frames
from .report import Fault

IGNORE = 255  # class index of pixels without class
COLOUR = 0x1000000  # added to a colour, to tell it from a class index
GREY = 0x10101  # the colour of a grey of 1
INDICES = 1 << 16  # class indices are below
NODATA = INDICES  # code of pixels without data, whose value is no class index
# Of Pillow: one number a pixel.
INDEX_MODES = ('1', 'L', 'P', 'I', 'I;16', 'I;16B', 'I;16L', 'F')
COLOUR_MODES = ('RGB', 'RGBA', 'PA')
BITS_TAG, FORMAT_TAG = 258, 339  # of TIFF
NODATA_TAG = 42113  # GDAL's, a number as text


class Mask(NamedTuple):
    """A mask as it is stored.

    Args:
        codes: As of :func:`read_codes`.
        nodata: The index that the file declares as ``nodata``, if any.
        colours: RGB colours of the indices, of a file with a palette whose indices are read.
    """

    codes: np.ndarray
    nodata: int | None
    colours: list[tuple[int, ...]]


def read_codes(path: Path, *, palette: bool = False) -> np.ndarray:
    """Read a mask, upright: (H, W) int32, class indices, or ``COLOUR`` plus the colour as one
    number.

    Of a file with a palette, the indices are read, or with ``palette`` the colours. Floats are
    indices if they are whole; NaN, and ``nodata`` that is no index, become ``NODATA``.
    ``Fault`` for a file that is no mask.
    """
    return read_mask(path, palette=palette).codes


def read_mask(path: Path, *, palette: bool = False) -> Mask:
    """As :func:`read_codes`, with what else the file says of its values."""
    try:
        with Image.open(path) as file:
            if file.format in ('JPEG', 'MPO'):
                raise Fault('refused', 'masks as JPEG, which changes their values: use PNG')
            pages = count_frames(file)
            if pages > 1:
                raise Fault('refused', 'masks of several pages: one is accepted', f'{pages} pages')
            mask = ImageOps.exif_transpose(file)
            if mask.mode == 'LA':
                mask = mask.convert('L')
            if palette and mask.mode == 'P':
                mask = mask.convert('RGB')
            if mask.mode in INDEX_MODES:
                found = _as_codes(_values_of(mask, file), _nodata_of(file))
                return Mask(*found, _colours_of(mask))
            if mask.mode not in COLOUR_MODES:
                reason = 'masks that are neither class indices nor colours of 8 bits'
                raise Fault('refused', reason, f'mode {mask.mode}')
            red, green, blue = np.asarray(mask.convert('RGB')).astype(np.int32).transpose(2, 0, 1)
    except Fault:
        raise
    except Exception as error:  # Pillow raises OSError, SyntaxError, struct.error and others
        other = _read_other_tiff(path)
        if other is None:
            reason = 'masks that cannot be read (PNG and TIFF are accepted)'
            raise Fault('refused', reason, str(error)) from None
        return Mask(*_as_codes(*other), [])
    return Mask(COLOUR + (red << 16) + (green << 8) + blue, None, [])


def _colours_of(mask: Image.Image) -> list[tuple[int, ...]]:
    palette = mask.getpalette() if mask.mode == 'P' else None
    return [*zip(*[iter(palette or ())] * 3, strict=True)]


def _read_other_tiff(path: Path) -> tuple[np.ndarray, float | None] | None:
    """Values and ``nodata`` of a TIFF that Pillow does not read, such as float64."""
    from cpvt_backbones.value_range import DRIVERS, ValueRangeError, open_raster

    if path.suffix.lower() in DRIVERS:
        with suppress(ImportError, OSError, ValueRangeError), open_raster(path) as raster:
            if raster.count == 1:
                return raster.read([1])[..., 0], raster.nodata
    return None


def _values_of(mask: Image.Image, file: Image.Image) -> np.ndarray:
    """The numbers of a mask, as they are stored."""
    values = np.asarray(mask)
    tags = getattr(file, 'tag_v2', {})
    bits, is_signed = tags.get(BITS_TAG, (8,))[0], tags.get(FORMAT_TAG, (1,))[0] == 2
    if mask.mode == 'L' and bits in (2, 4):  # which Pillow scales to 0 to 255
        return values.astype(np.int32) // (255 // (2**bits - 1))
    if mask.mode == 'L' and is_signed:
        return values.view(np.int8).astype(np.int32)
    if mask.mode == 'I' and tags and bits == 32 and not is_signed:
        return values.view(np.uint32).astype(np.int64)
    return values if mask.mode == 'F' else values.astype(np.int32)


def _nodata_of(file: Image.Image) -> float | None:
    """The value of pixels without data that a GeoTIFF declares."""
    text = getattr(file, 'tag_v2', {}).get(NODATA_TAG)
    try:
        return None if text is None else float(str(text).strip('\0 '))
    except ValueError:
        return None


def _is_index(value: float) -> bool:
    return 0 <= value < INDICES and value == int(value)


def _as_codes(values: np.ndarray, nodata: float | None) -> tuple[np.ndarray, int | None]:
    """Class indices, ``NODATA`` where a value is NaN, or ``nodata`` and no index; and ``nodata`` if
    it is an index.
    """
    missing = np.isnan(values)
    if nodata is not None and not _is_index(nodata):
        missing |= values == nodata
    found = values[~missing]
    if found.dtype.kind == 'f' and not (found == np.round(found)).all():
        fraction = found[found != np.round(found)][0]
        raise Fault('refused', 'masks with values that are no whole numbers', f'{fraction:g}')
    if found.size and not (found.min() >= 0 and found.max() < INDICES):
        raise Fault(
            'refused',
            f'masks with values outside 0 to {INDICES - 1}, which they do not declare as nodata',
            f'{found.min():g} to {found.max():g}',
        )
    codes = np.full(values.shape, NODATA, np.int32)
    codes[~missing] = found
    return codes, int(nodata) if nodata is not None and _is_index(nodata) else None


def count_codes(codes: np.ndarray) -> dict[int, int]:
    """Number of pixels of each value."""
    if codes.max() <= NODATA:
        counts = np.bincount(codes.ravel())
        return {value: int(counts[value]) for value in np.flatnonzero(counts).tolist()}
    values, counts = np.unique(codes, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def translate(codes: np.ndarray, table: Mapping[int, int]) -> np.ndarray:
    """Class of each pixel, uint8; ``IGNORE`` for values that are not in the table."""
    if codes.max() <= NODATA:
        classes = np.full(NODATA + 1, IGNORE, np.uint8)
        for value, index in table.items():
            if value < INDICES:
                classes[value] = index
        return classes[codes]
    values, inverse = np.unique(codes, return_inverse=True)
    classes = np.array([table.get(value, IGNORE) for value in values.tolist()], np.uint8)
    return classes[inverse].reshape(codes.shape)


def rgb_of(code: int) -> tuple[int, int, int]:
    """Red, green and blue of a colour."""
    return code >> 16 & 0xFF, code >> 8 & 0xFF, code & 0xFF


def in_one_piece(where: np.ndarray) -> bool:
    """True if nine tenths of the pixels of a mask, bool (H, W), are connected."""
    _, _, stats, _ = cv2.connectedComponentsWithStats(where.astype(np.uint8))
    return bool(stats[1:, cv2.CC_STAT_AREA].max() >= 0.9 * where.sum())

"""Read the pixels of masks as numbers."""

from collections.abc import Mapping
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, ImageOps

from .report import Fault

IGNORE = 255  # class index of pixels without class
COLOUR = 0x1000000  # added to a colour, to tell it from a class index
GREY = 0x10101  # the colour of a grey of 1
INDICES = 1 << 16  # class indices are below
INDEX_MODES = ('1', 'L', 'P', 'I', 'I;16', 'I;16B', 'I;16L')  # of Pillow: one integer a pixel
COLOUR_MODES = ('RGB', 'RGBA', 'PA')


def read_codes(path: Path, *, palette: bool = False) -> np.ndarray:
    """Read a mask, upright: (H, W) int32, class indices, or ``COLOUR`` plus the colour as one
    number.

    Of a file with a palette, the indices are read, or with ``palette`` the colours. ``Fault`` for a
    file that is no mask.
    """
    try:
        with Image.open(path) as file:
            if file.format in ('JPEG', 'MPO'):
                raise Fault('refused', 'masks as JPEG, which changes their values: use PNG')
            mask = ImageOps.exif_transpose(file)
            if mask.mode == 'LA':
                mask = mask.convert('L')
            if palette and mask.mode == 'P':
                mask = mask.convert('RGB')
            if mask.mode in INDEX_MODES:
                return _check_indices(np.asarray(mask).astype(np.int32))
            if mask.mode not in COLOUR_MODES:
                reason = 'masks that are neither class indices nor colours of 8 bits'
                raise Fault('refused', reason, f'mode {mask.mode}')
            red, green, blue = np.asarray(mask.convert('RGB')).astype(np.int32).transpose(2, 0, 1)
    except Fault:
        raise
    except Exception as error:  # Pillow raises OSError, SyntaxError, struct.error and others
        raise Fault('refused', 'masks that cannot be read', str(error)) from None
    return COLOUR + (red << 16) + (green << 8) + blue


def _check_indices(codes: np.ndarray) -> np.ndarray:
    if codes.size and not (codes.min() >= 0 and codes.max() < INDICES):
        raise Fault(
            'refused',
            f'masks with values outside 0 to {INDICES - 1}',
            f'{codes.min()} to {codes.max()}',
        )
    return codes


def count_codes(codes: np.ndarray) -> dict[int, int]:
    """Number of pixels of each value."""
    if codes.max() < INDICES:
        counts = np.bincount(codes.ravel())
        return {value: int(counts[value]) for value in np.flatnonzero(counts).tolist()}
    values, counts = np.unique(codes, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def translate(codes: np.ndarray, table: Mapping[int, int]) -> np.ndarray:
    """Class of each pixel, uint8; ``IGNORE`` for values that are not in the table."""
    if codes.max() < INDICES:
        classes = np.full(INDICES, IGNORE, np.uint8)
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

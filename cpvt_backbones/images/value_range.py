"""Conversion of a range of values, or of chosen bands, to an 8-bit image.

Training (:class:`.engine.LoadRange`) and prediction (:mod:`.inference`) both use it, so that a
model sees the same pixels.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cpvt_backbones.errors import InputError

from .raster import Raster, ValueRangeError, is_missing, open_raster, raster_of

STRIP_PIXELS = 1 << 20  # scaled at a time, to save memory
DTYPES = ('uint8', 'uint16', 'int16', 'uint32', 'int32', 'float32', 'float64')
MOST_BANDS = 128  # channels that OpenCV resizes


@dataclass(unsafe_hash=True, kw_only=True)
class ValueRange:
    """Conversion of the bands and values of a file to an 8-bit image.

    :class:`LoadRange` uses it in a data pipeline. :class:`Inferencer` and :class:`ExportedModel`
    have the same one as ``value_range``.

    Args:
        low: Value that becomes 0. Smaller values and pixels without data become 0 too.
        high: Value that becomes 255. Larger values become 255 too.
        dtype: Type of the values: uint8, uint16, int16, uint32, int32, float32 or float64. Files of
            another type are refused.
        bands: Bands of the file, counted from 1, that become the channels of the image. Three bands
            are red, green and blue; the image is BGR. ``None``: a file is grey, which is repeated
            to three channels, or RGB.

    Raises:
        ValueError: An argument is not accepted.

    Examples:
        >>> import numpy as np
        >>> from cpvt_backbones.inference import ValueRange
        >>> twelve_bits = ValueRange(low=0, high=4095, dtype='uint16')
        >>> grey = np.array([[0, 2048, 4095, 5000]], np.uint16)
        >>> twelve_bits.read_array(grey)[..., 0].tolist()
        [[0, 128, 255, 255]]
    """

    low: float
    high: float
    dtype: str
    bands: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        numbers = (self.low, self.high)
        are_numbers = all(isinstance(one, (int, float)) for one in numbers)
        if not are_numbers or not np.isfinite(numbers).all() or not self.low < self.high:
            accepted = 'two finite numbers, LOW below HIGH'
            raise InputError(f'range must be {accepted}, got {self.low!r} and {self.high!r}')
        if self.dtype not in DTYPES:
            raise InputError(f'dtype must be one of {", ".join(DTYPES)}, got {self.dtype!r}')
        if self.bands is not None:
            self.bands = _checked_bands(self.bands)

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments as plain data; ``bands`` is left out if it is ``None``."""
        settings = asdict(self)
        bands = settings.pop('bands')
        return settings if bands is None else dict(settings, bands=[*bands])

    @property
    def channels(self) -> int:
        """Number of channels of the image."""
        return 3 if self.bands is None else len(self.bands)

    def read(self, path: str | os.PathLike[str]) -> np.ndarray:
        """Read a file as an image (H, W, channels), uint8; three channels are BGR.

        Raises:
            ValueRangeError: The file is damaged, lacks a band, or has values of another type.
        """
        with open_raster(Path(path)) as raster:
            return self.convert(self.select(raster), raster.nodata, raster.masked)

    def read_array(self, array: np.ndarray) -> np.ndarray:
        """Convert an array to an image, like :meth:`ValueRange.read` for a file.

        Args:
            array: (H, W), (H, W, 1) or (H, W, 3: BGR). With ``bands``, all bands of a file.

        Raises:
            ValueRangeError: The array has another shape or type, or lacks a band.
        """
        raster = raster_of(array)
        if self.bands is not None:
            return self.convert(self.select(raster))
        self.check(raster.count, raster.dtype)
        return self.convert(raster.source)

    def numbers(self, count: int) -> list[int]:
        """Return the bands that become the channels, for a file of ``count`` bands."""
        if self.bands is None:
            return [1, 1, 1] if count == 1 else [3, 2, 1]
        return [*self.bands[::-1]] if len(self.bands) == 3 else [*self.bands]

    def select(self, raster: Raster) -> np.ndarray:
        """Read the values of the channels (H, W, channels), or of a grey file (H, W, 1).

        The errors are those of :meth:`read`.
        """
        self.check(raster.count, raster.dtype)
        grey = self.bands is None and raster.count == 1
        return raster.read([1] if grey else self.numbers(raster.count))

    def check(self, count: int, dtype: str) -> None:
        """Raise ``ValueRangeError`` unless a file of ``count`` bands of this type is accepted."""
        if self.bands is None and count not in (1, 3):
            raise ValueRangeError(
                f'1 band (grey) or 3 (RGB) are accepted, got {count}; --bands of cpvt make-config'
                ' chooses others'
            )
        if self.bands is not None and max(self.bands) > count:
            raise ValueRangeError(f'band {max(self.bands)} is missing: the file has {count}')
        if dtype != self.dtype:
            raise ValueRangeError(f'values of {dtype}; the other images have {self.dtype}')

    def convert(
        self,
        values: np.ndarray,
        nodata: float | None = None,
        masked: np.ndarray | None = None,
    ) -> np.ndarray:
        """Scale (H, W, channels or 1) to an image (H, W, channels), uint8.

        Args:
            values: The values.
            nodata: Value of pixels without data; ``None`` if there is none.
            masked: Further pixels without data, bool (H, W).

        Raises:
            ValueRangeError: A pixel with data is NaN or infinite.
        """
        image = np.empty((*values.shape[:2], self.channels), np.uint8)
        rows = max(1, STRIP_PIXELS // values.shape[1])
        for top in range(0, len(values), rows):
            pixels = values[top : top + rows]
            outside = None if masked is None else masked[top : top + rows]
            image[top : top + rows] = self._scale(pixels, is_missing(pixels, nodata, outside))
        return image

    def _scale(self, pixels: np.ndarray, missing: np.ndarray) -> np.ndarray:
        # 32-bit integers become float64, which represents all of them.
        values = pixels.astype(np.result_type(pixels.dtype, np.float32))
        values[missing] = self.low
        if not np.isfinite(values).all():
            raise ValueRangeError('NaN or infinite values')
        values = (np.clip(values, self.low, self.high) - self.low) / (self.high - self.low)
        return np.rint(values * 255).astype(np.uint8)


def _checked_bands(bands: Sequence[int]) -> tuple[int, ...]:
    are_numbers = all(type(band) is int and band >= 1 for band in bands)
    if not are_numbers or not 1 <= len(bands) <= MOST_BANDS or len({*bands}) < len(bands):
        accepted = f'1 to {MOST_BANDS} different numbers, counted from 1'
        raise InputError(f'bands must be {accepted}, got {[*bands]}')
    return tuple(bands)

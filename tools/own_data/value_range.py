"""The bands and the range of values of images that are not RGB of 8 bits."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.progress import track

from .coco import Part
from .images import ImageFacts
from .report import Report

if TYPE_CHECKING:
    from cpvt_backbones.value_range import ValueRange

OF_8_BITS = (0, 255)
SAMPLE = 500  # training images that mean and standard deviation are taken from


def choose_range(
    part: Part, limits: Sequence[float] | None, bands: Sequence[int] | None
) -> 'ValueRange':
    """The options ``--range`` and ``--bands``, for files of the type of the first image.

    Args:
        part: The training data.
        limits: Of ``--range``; by default 0 and 255, of images of 8 bits.
        bands: Of ``--bands``.

    ``ValueError`` if an option is not accepted or missing, or the first image cannot be read.
    """
    from cpvt_backbones.value_range import DTYPES, ValueRange, ValueRangeError, open_raster

    low, high = limits or OF_8_BITS
    chosen = tuple(bands) if bands else None
    ValueRange(low=low, high=high, dtype=DTYPES[0], bands=chosen)  # the options before the file
    names = [image['file_name'] for image in part.coco['images'] if image.get('file_name')]
    if not names:
        raise ValueError(f'data: {part.source} has no images')
    path = part.root / names[0]
    try:
        with open_raster(path) as raster:
            dtype = raster.dtype
    except (OSError, ValueRangeError) as error:
        raise ValueError(f'data: {path}: {error}') from error
    if dtype not in DTYPES:
        raise ValueError(f'data: {path} has values of {dtype}; accepted are {", ".join(DTYPES)}')
    if limits is None and dtype != 'uint8':
        raise ValueError(f'--bands: {path} has values of {dtype}: give --range LOW HIGH, too')
    return ValueRange(low=low, high=high, dtype=dtype, bands=chosen)


def note_range(facts: Mapping[Path, ImageFacts], value_range: 'ValueRange', report: Report) -> None:
    """Note images with values outside, and a range much wider than the values.

    Images that are nearly black beside others count as altered, such as 8 bits among 12.
    ``ValueError`` if no value is in the range.
    """
    known = {path: one.range for path, one in facts.items() if one.range}
    if not known:
        return
    low = min(least for least, _ in known.values())
    high = max(most for _, most in known.values())
    given = f'--range {value_range.low:g} {value_range.high:g}'
    if low >= value_range.high or high <= value_range.low:
        raise ValueError(f'{given}: all values are outside, they are {low:g} to {high:g}')
    for path, (least, most) in known.items():
        if least < value_range.low or most > value_range.high:
            reason = f'values outside of {given} are clipped'
            report.add('note', reason, f'{path} ({least:g} to {most:g})')
    darkest = value_range.low + (value_range.high - value_range.low) / 16
    dark = [path for path, (_, most) in known.items() if most <= darkest]
    for path in dark if len(dark) < len(known) else ():
        reason = f'images within a sixteenth of {given}, nearly black: have they fewer bits?'
        report.add('altered', reason, f'{path} ({known[path][0]:g} to {known[path][1]:g})')
    if (high - low) * 4 < value_range.high - value_range.low:
        reason = f'values of {low:g} to {high:g} only: give a smaller range than {given}'
        for path in known:
            report.add('note', reason, str(path))


def mean_and_std(part: Part, value_range: 'ValueRange') -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each band, of at most ``SAMPLE`` images, evenly chosen.

    In the order of ``value_range.bands``, which must not be ``None``. Values are scaled to 0 to
    255; pixels without data do not count. ``ValueError`` for a band of one value only.
    """
    from cpvt_backbones.value_range import open_raster

    def counts(path: Path) -> np.ndarray:
        """Number of pixels of each value of each band, (bands, 256)."""
        with open_raster(path) as raster:
            values = value_range.select(raster)
            image = value_range.convert(values, raster.nodata, raster.masked)
            valid = ~raster.missing(values)
        bands = range(value_range.channels)
        levels = [image[..., band][valid[..., band]] for band in bands]
        return np.stack([np.bincount(level, minlength=256) for level in levels])

    images = part.coco['images']
    sample = images[:: -(-len(images) // SAMPLE)]
    paths = [part.root / image['file_name'] for image in sample]
    with ThreadPoolExecutor(2) as pool:
        parts = track(pool.map(counts, paths), description='mean and std', total=len(paths))
        total = np.sum([*parts], axis=0)
    if value_range.channels == 3:  # BGR
        total = total[::-1]
    levels = np.arange(256)
    share = total / np.maximum(total.sum(axis=1, keepdims=True), 1)
    mean = share @ levels
    std = np.sqrt(np.maximum(share @ levels**2 - mean**2, 0))
    for band, deviation in zip(value_range.bands or (), std, strict=True):
        if deviation < 1e-3:
            raise ValueError(
                f'--bands: band {band} has one value in the training images; leave it out'
            )
    return np.round(mean, 3).tolist(), np.round(std, 3).tolist()

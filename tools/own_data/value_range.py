"""The range of values of images that are not of 8 bits."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .coco import Part
from .images import ImageFacts
from .report import Report

if TYPE_CHECKING:
    from cpvt_backbones.value_range import ValueRange


def choose_range(part: Part, limits: Sequence[float]) -> 'ValueRange':
    """The range of the option ``--range``, for files of the type of the first image.

    ``ValueError`` if the option is not accepted, or the first image cannot be read.
    """
    from cpvt_backbones.value_range import DTYPES, ValueRange, ValueRangeError, read_raster

    low, high = limits
    ValueRange(low=low, high=high, dtype=DTYPES[0])  # the option before the file
    names = [image['file_name'] for image in part.coco['images'] if image.get('file_name')]
    if not names:
        raise ValueError(f'data: {part.source} has no images')
    path = part.root / names[0]
    try:
        dtype = read_raster(path).pixels.dtype.name
    except (OSError, ValueRangeError) as error:
        raise ValueError(f'data: {path}: {error}') from error
    if dtype not in DTYPES:
        raise ValueError(f'--range is for {", ".join(DTYPES)}; {path} has {dtype}')
    return ValueRange(low=low, high=high, dtype=dtype)


def note_range(facts: Mapping[Path, ImageFacts], value_range: 'ValueRange', report: Report) -> None:
    """Note images with values outside, and a range much wider than the values.

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
    if (high - low) * 4 < value_range.high - value_range.low:
        reason = f'values of {low:g} to {high:g} only: give a smaller range than {given}'
        for path in known:
            report.add('note', reason, str(path))

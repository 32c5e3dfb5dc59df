"""Rules for images: size, place on the ground, range of values, and resemblance."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cpvt_backbones.errors import InputError
from cpvt_backbones.images.value_range import ValueRange
from cpvt_backbones.images.windows import open_scene

from ..dataset import Coco
from ..read.images import ImageFacts, Size
from ..report import Fault, Report
from ..shapes import ROUNDING, extent, is_number, is_rle

TOLERANCE = 0.5  # px that the corners of a mask may be off those of its image


def check_size(
    image: Coco, facts: ImageFacts, objects: Sequence[Coco], report: Report, where: str
) -> None:
    """Set ``width`` and ``height`` to the upright size of the file, or raise a :class:`.Fault`.

    Args:
        image: Entry of COCO's ``images``; its size may be missing.
        facts: Of the file.
        objects: Annotations of the image.
        report: Gets what is altered.
        where: Name of the image.
    """
    declared = _declared(image)
    upright, stored = facts.size, facts.stored
    fits_upright = _fit(objects, upright)
    if upright != stored:
        _check_turned(declared, stored, fits_upright, _fit(objects, stored), bool(objects))
    if declared is None:
        report.add('note', 'width and height are filled in', where)
    elif declared not in (upright, stored):
        detail = f'{declared[0]} x {declared[1]}, the file has {upright[0]} x {upright[1]} px'
        raise Fault('refused', 'width and height are not those of the file', detail)
    elif declared != upright:
        report.add('altered', 'width and height are turned as EXIF turns the image', where)
    image['width'], image['height'] = upright


def check_mask_size(image: Coco, facts: ImageFacts) -> None:
    """Set ``width`` and ``height`` to the upright size of the file.

    ``Fault`` if the mask has another size.

    Args:
        image: Has ``mask_size``, width and height, or ``None`` for a mask that cannot be read; or
            no mask.
        facts: Of the file.
    """
    image['width'], image['height'] = facts.size
    size = image.get('mask_size')
    if size is None or size == facts.size:
        return
    detail = f'{size[0]} x {size[1]}, not {facts.size[0]} x {facts.size[1]}'
    if size == facts.stored:
        reason = 'masks of the image before its EXIF rotation: draw them on the upright image'
        raise Fault('refused', reason, f'mask {image["mask"]}: {detail}')
    raise Fault(
        'refused', 'masks of another size than their image', f'mask {image["mask"]}: {detail}'
    )


def _check_turned(
    declared: Size | None, stored: Size, fits_upright: bool, fits_stored: bool, any_object: bool
) -> None:
    """Refuse labels of the image before EXIF's rotation, and labels of which that cannot be
    told.
    """
    if not any_object:
        return
    if fits_stored and not fits_upright:
        advice = (
            'labels that fit the image only before its EXIF rotation: draw them on the upright'
            ' image'
        )
        raise Fault('refused', advice)
    if declared == stored and fits_stored:
        advice = (
            'width and height before the EXIF rotation, with labels that fit both ways: correct'
            ' them'
        )
        raise Fault('refused', advice)


def _declared(image: Coco) -> Size | None:
    """Width and height in COCO; ``None`` if one is missing, or 0, as some tools write."""
    width, height = image.get('width'), image.get('height')
    if not width or not height:
        return None
    if not (is_number(width) and is_number(height)):
        detail = f'{width!r} and {height!r}'
        raise Fault('refused', 'width and height that are no numbers', detail)
    return width, height


def _fit(objects: Sequence[Coco], size: Size) -> bool:
    """True if no object lies outside of an image of this size."""
    for one in objects:
        found = extent(one)
        if found is not None and (found[2] > size[0] + ROUNDING or found[3] > size[1] + ROUNDING):
            return False
        outline: Any = one.get('segmentation')
        if is_rle(outline) and [*outline['size']] != [size[1], size[0]]:
            return False
    return True


def check_place(image: Path, mask: Path) -> None:
    """``Fault`` if an image and its mask, of one size, lie in different places.

    Files without a place, or that rasterio does not read, are taken as they are.
    """
    scene, other = open_scene(image), open_scene(mask)
    if scene is None or other is None:
        return
    transforms = scene.file.transform, other.file.transform
    if any(one.is_identity or one.is_degenerate for one in transforms):
        return
    reason = 'masks of another place than their image: warp them to its grid'
    systems = scene.file.crs, other.file.crs
    if all(systems) and systems[0] != systems[1]:
        detail = f'{systems[1].to_string()}, not {systems[0].to_string()}'
        raise Fault('refused', reason, f'mask {mask}: {detail}')
    off = _distance(scene.file, other.file)
    if off >= TOLERANCE:
        raise Fault('refused', reason, f'mask {mask}: its corners are {off:.4g} px away')


def _distance(image: Any, mask: Any) -> float:
    """How far the corners of a mask are from those of the image, at most, in px of the image."""
    width, height = image.width, image.height
    columns, rows = np.array([0, width, 0, width]), np.array([0, 0, height, height])
    found = _apply(~image.transform, *_apply(mask.transform, columns, rows))
    return float(np.abs(np.array(found) - (columns, rows)).max())


def _apply(transform: Any, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    a, b, c, d, e, f = transform[:6]
    return a * x + b * y + c, d * x + e * y + f


def note_range(facts: Mapping[Path, ImageFacts], value_range: ValueRange, report: Report) -> None:
    """Note images with values outside, and a range much wider than the values.

    Images that are nearly black beside others count as altered, such as 8 bits among 12.
    ``InputError`` if no value is in the range.
    """
    known = {path: one.range for path, one in facts.items() if one.range}
    if not known:
        return
    low = min(least for least, _ in known.values())
    high = max(most for _, most in known.values())
    given = f'--range {value_range.low:g} {value_range.high:g}'
    if low >= value_range.high or high <= value_range.low:
        raise InputError(f'{given}: all values are outside, they are {low:g} to {high:g}')
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

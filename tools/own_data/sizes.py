"""Rules for sizes: upright everywhere, and labels that fit only the image before EXIF's rotation
are refused.
"""

from collections.abc import Sequence
from typing import Any

from .boxes import ROUNDING, extent
from .coco import Coco
from .images import ImageFacts, Size
from .outlines import is_number, is_rle
from .report import Fault, Report


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

"""Rules for objects, which have a box, an outline, or both."""

import json
from typing import Any

from .box_doubts import BoxDoubts
from .boxes import clip_box, read_box, rotation_of, turn_box
from .coco import Coco, Part
from .outlines import (
    Box,
    area_of_outline,
    box_of_outline,
    can_be_decoded,
    is_number,
    is_polygon,
    is_rle,
)
from .report import Fault, Report


def check_objects(part: Part, report: Report) -> None:
    """Complete and check all objects of images that are used."""
    images = {image['id']: image for image in part.coco['images']}
    kept = []
    ids = set()
    seen = set()
    doubts = BoxDoubts()
    for number, one in enumerate(part.coco['annotations'], 1):
        image = images[one['image_id']]
        key = one.get('id')
        where = (
            f'{part.root / image["file_name"]}: annotation'
            f' {key if "id" in one else f"number {number}"}'
        )
        try:
            checked = _check_object(one, image, report, where, doubts)
            content = _content(checked)
            if content in seen:
                raise Fault('skipped', 'objects that are listed twice')
        except Fault as fault:
            report.add_fault(fault, where)
            continue
        seen.add(content)
        if isinstance(key, bool) or not isinstance(key, int) or key in ids:
            report.add(
                'altered',
                'annotation ids that are missing, not integers or used twice are replaced',
                where,
            )
        ids.add(key if isinstance(key, (int, str)) else None)
        kept.append(checked)
    for number, one in enumerate(kept, 1):
        one['id'] = number
    part.coco['annotations'] = kept
    doubts.report(report)


def _content(one: Coco) -> tuple[Any, ...]:
    """What two annotations of one object have in common."""
    outline = json.dumps(one['segmentation']) if 'segmentation' in one else ''
    return one['image_id'], one['category_id'], one['iscrowd'], *one['bbox'], outline


def _check_object(one: Coco, image: Coco, report: Report, where: str, doubts: BoxDoubts) -> Coco:
    """An annotation with box, area and ``iscrowd``, clipped to its image."""
    box = read_box(one)
    outline = _check_outline(one, image, box is not None, report, where)
    if box is None:
        if outline is None:
            raise Fault('refused', 'objects with neither bbox nor outline')
        box = box_of_outline(outline)
        report.add('altered', 'bbox is derived from the outline', where)
    doubts.add(box, image, None if one.get('iscrowd') else outline, where)
    if outline is None and rotation_of(one):
        box = turn_box(box, rotation_of(one))
        one = {**one, 'attributes': {**one['attributes'], 'rotation': 0.0}}
        report.add('altered', 'turned boxes become the upright box around them', where)
    box = clip_box(box, image['width'], image['height'])
    iscrowd = _is_ignored(one, report, where)
    checked = {**one, 'bbox': box, 'iscrowd': iscrowd, 'area': _area_of(one, box, outline)}
    checked.pop('segmentation', None)
    checked.pop('ignore', None)
    if outline is not None:
        checked['segmentation'] = outline
    return checked


def _is_ignored(one: Coco, report: Report, where: str) -> int:
    """``iscrowd`` of an annotation: 1 also for ``ignore``, whose objects mmdet trains on as
    background and counts in the evaluation.
    """
    for key in ('iscrowd', 'ignore'):
        value = one.get(key) or 0
        if value not in (0, 1):
            raise Fault('refused', f'{key} is neither 0 nor 1', repr(value))
        if value and key == 'ignore' and not one.get('iscrowd'):
            reason = 'objects to ignore are ignored in training and evaluation (iscrowd)'
            report.add('note', reason, where)
        if value:
            return 1
    return 0


def _check_outline(one: Coco, image: Coco, has_box: bool, report: Report, where: str) -> Any:
    """``segmentation`` of an annotation as polygons or RLE; ``None`` if there is none."""
    outline = one.get('segmentation')
    if not outline:
        return None
    if is_rle(outline):
        size = [image['height'], image['width']]
        if outline['size'] != size:
            raise Fault(
                'refused', 'RLE of another size than its image', f'{outline["size"]}, not {size}'
            )
        if not _adds_up(outline, size[0] * size[1]):
            raise Fault('refused', 'RLE whose counts do not add up to the pixels of its image')
        return outline
    polygons = outline if isinstance(outline, list) else []
    good = [points for points in polygons if is_polygon(points)]
    if len(good) < len(polygons) or not good:
        if not good and not has_box:
            return None
        reason = 'polygons of fewer than three points, or of no finite numbers, are left out'
        report.add('altered', reason, where)
    return good or None


def _adds_up(outline: Coco, pixels: int) -> bool:
    counts = outline['counts']
    if isinstance(counts, str):
        return can_be_decoded(outline)
    if not isinstance(counts, list) or not all(
        isinstance(count, int) and count >= 0 for count in counts
    ):
        return False
    return sum(counts) == pixels


def _area_of(one: Coco, box: Box, outline: Any) -> float:
    """Area in px: as given, or that of the outline, or of the box."""
    given = one.get('area')
    if given is not None and is_number(given) and given > 0:
        return given
    area = 0.0 if outline is None else area_of_outline(outline)
    return area or box[2] * box[3]


def require_outlines(part: Part, report: Report) -> None:
    """Refuse objects without outline; regions to ignore (``iscrowd``) without one are skipped."""
    kept = []
    for one in part.coco['annotations']:
        if 'segmentation' in one:
            kept.append(one)
            continue
        where = f'{part.source}: annotation {one["id"]}'
        if one['iscrowd']:
            report.add('skipped', 'regions to ignore without an outline', where)
        else:
            report.add('refused', 'objects without an outline, which form instances needs', where)
    part.coco['annotations'] = kept

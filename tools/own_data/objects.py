"""Rules for boxes and outlines."""

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .coco import Coco, Part
from .report import Fault, Report

Box = list[float]  # left, top, width, height, px
ROUNDING = 1.0  # px that a box may lie outside without a word
SMALLEST = 1.0  # px; mmdet leaves out what is narrower or lower


def link_objects(part: Part, report: Report) -> None:
    """Give each object the integer id of its image, and check its category; others are left out."""
    report.read['objects'] += len(part.coco['annotations'])
    images = part.coco['images']
    new_ids = {image['id']: image['id'] for image in images}
    if not all(isinstance(image['id'], int) for image in images):
        report.add('altered', 'image ids that are no integers are replaced', part.source)
        new_ids = {image['id']: number for number, image in enumerate(images, 1)}
    by_text = {str(old): new for old, new in new_ids.items()}
    categories = {category['id']: category['id'] for category in part.coco['categories']}
    category_texts = {str(key): key for key in categories}
    kept = []
    for number, one in enumerate(part.coco['annotations'], 1):
        where = f'{part.source}: annotation {one.get("id", f"number {number}")}'
        try:
            one['image_id'] = _find(one, 'image_id', new_ids, by_text, report, where)
            one['category_id'] = _find(
                one, 'category_id', categories, category_texts, report, where
            )
        except Fault as fault:
            report.add_fault(fault, where)
            continue
        kept.append(one)
    for image in images:
        image['id'] = new_ids[image['id']]
    part.coco['annotations'] = kept


def _find(
    one: Coco,
    key: str,
    known: dict[int | str, int],
    by_text: dict[str, int],
    report: Report,
    where: str,
) -> int:
    """The id that an annotation refers to by ``image_id`` or ``category_id``."""
    value = one.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise Fault('refused', f'annotations without {key}')
    if value in known:
        return known[value]
    if str(value) in by_text:
        report.add('altered', f'{key} as text where a number is meant, or the reverse', where)
        return by_text[str(value)]
    if key == 'image_id':
        raise Fault('skipped', 'annotations of images that are not listed', f'image_id {value!r}')
    raise Fault(
        'refused', 'annotations of categories that are not listed', f'category_id {value!r}'
    )


def check_objects(part: Part, report: Report) -> None:
    """Complete and check all objects of images that are used."""
    images = {image['id']: image for image in part.coco['images']}
    kept = []
    ids = set()
    seen = set()
    for number, one in enumerate(part.coco['annotations'], 1):
        image = images[one['image_id']]
        key = one.get('id')
        where = (
            f'{part.root / image["file_name"]}: annotation'
            f' {key if "id" in one else f"number {number}"}'
        )
        try:
            checked = _check_object(one, image, report, where)
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


def _content(one: Coco) -> tuple[Any, ...]:
    """What two annotations of one object have in common."""
    outline = json.dumps(one['segmentation']) if 'segmentation' in one else ''
    return one['image_id'], one['category_id'], one['iscrowd'], *one['bbox'], outline


def _check_object(one: Coco, image: Coco, report: Report, where: str) -> Coco:
    """An annotation with box, area and ``iscrowd``, clipped to its image."""
    box = read_box(one)
    outline = _check_outline(one, image, box is not None, report, where)
    if box is None:
        if outline is None:
            raise Fault('refused', 'objects with neither bbox nor outline')
        box = box_of_outline(outline)
        report.add('altered', 'bbox is derived from the outline', where)
    box = clip_box(box, image['width'], image['height'], report, where)
    iscrowd = one.get('iscrowd') or 0
    if iscrowd not in (0, 1):
        raise Fault('refused', 'iscrowd is neither 0 nor 1', repr(iscrowd))
    checked = {**one, 'bbox': box, 'iscrowd': int(iscrowd), 'area': _area(one, box, outline)}
    checked.pop('segmentation', None)
    if outline is not None:
        checked['segmentation'] = outline
    return checked


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def read_box(one: Coco) -> Box | None:
    """``bbox`` of an annotation; ``None`` if it is missing or empty."""
    box = one.get('bbox')
    if box is None or box == []:
        return None
    if not isinstance(box, list) or len(box) != 4 or not all(_is_number(value) for value in box):
        raise Fault('refused', 'bbox is not four finite numbers', repr(box))
    return box


def clip_box(box: Box, width: int, height: int, report: Report, where: str) -> Box:
    """A box within its image, of at least 1 px; else a :class:`.Fault`."""
    if box[2] < 0 or box[3] < 0:
        raise Fault('refused', 'boxes of negative width or height', repr(box))
    if box[2] == 0 or box[3] == 0:
        raise Fault('skipped', 'boxes of no width or height', repr(box))
    left, top = max(box[0], 0), max(box[1], 0)
    right, bottom = min(box[0] + box[2], width), min(box[1] + box[3], height)
    if left >= right or top >= bottom:
        raise Fault('skipped', 'boxes outside their image', f'{box} in {width} x {height}')
    over = max(-box[0], -box[1], box[0] + box[2] - width, box[1] + box[3] - height)
    if right - left < SMALLEST or bottom - top < SMALLEST:
        raise Fault(
            'skipped', 'boxes narrower or lower than 1 px, which mmdet leaves out', repr(box)
        )
    if over > ROUNDING:
        report.add(
            'altered', 'boxes are clipped to their image', f'{where} ({box} in {width} x {height})'
        )
    return box if over <= 0 else [left, top, right - left, bottom - top]


def is_rle(outline: Any) -> bool:
    """True for COCO's run-length encoding, compressed or not."""
    return (
        isinstance(outline, dict) and isinstance(outline.get('size'), list) and 'counts' in outline
    )


def _covers(counts: Any, pixels: int) -> bool:
    if not isinstance(counts, list) or not all(
        isinstance(count, int) and count >= 0 for count in counts
    ):
        return False
    return sum(counts) == pixels


def _is_polygon(points: Any) -> bool:
    if not isinstance(points, list) or len(points) < 6 or len(points) % 2:
        return False
    return all(_is_number(value) for value in points)


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
        counts = outline['counts']
        if not isinstance(counts, str) and not _covers(counts, size[0] * size[1]):
            raise Fault('refused', 'RLE whose counts do not add up to the pixels of its image')
        return outline
    polygons = outline if isinstance(outline, list) else []
    good = [points for points in polygons if _is_polygon(points)]
    if len(good) < len(polygons) or not good:
        if not good and not has_box:
            return None
        reason = 'polygons of fewer than three points, or of no finite numbers, are left out'
        report.add('altered', reason, where)
    return good or None


def _encoded(outline: Coco) -> Any:
    """RLE as pycocotools takes it."""
    from pycocotools import mask

    if isinstance(outline['counts'], list):
        return mask.frPyObjects(outline, *outline['size'])
    return outline


def mask_of(outline: Any, size: tuple[int, int]) -> np.ndarray:
    """Polygons or RLE as a mask, bool (H, W), of an image of this width and height."""
    from pycocotools import mask

    if is_rle(outline):
        return mask.decode(_encoded(outline)).astype(bool)
    return mask.decode(mask.merge(mask.frPyObjects(outline, size[1], size[0]))).astype(bool)


def rle_of(where: np.ndarray) -> Coco:
    """A mask, bool (H, W), as RLE that JSON can hold."""
    from pycocotools import mask

    found = mask.encode(np.asfortranarray(where.astype(np.uint8)))
    return dict(size=[*where.shape], counts=found['counts'].decode())


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


def box_of_outline(outline: Any) -> Box:
    """The box around polygons or RLE."""
    if is_rle(outline):
        from pycocotools import mask

        return mask.toBbox(_encoded(outline)).tolist()
    return box_of_polygons(outline)


def box_of_polygons(polygons: Sequence[Sequence[float]]) -> Box:
    """The box around polygons of x, y, x, y, ..."""
    points = np.concatenate([np.reshape(polygon, (-1, 2)) for polygon in polygons])
    left, top = points.min(axis=0).tolist()
    right, bottom = points.max(axis=0).tolist()
    return [left, top, right - left, bottom - top]


def _area(one: Coco, box: Box, outline: Any) -> float:
    """Area in px: as given, or that of the outline, or of the box."""
    given = one.get('area')
    if given is not None and _is_number(given) and given > 0:
        return given
    if is_rle(outline):
        from pycocotools import mask

        return float(mask.area(_encoded(outline)))
    if outline is not None:
        area = sum(_polygon_area(np.reshape(polygon, (-1, 2))) for polygon in outline)
        return area or box[2] * box[3]
    return box[2] * box[3]


def _polygon_area(points: np.ndarray) -> float:
    x, y = points.T
    return float(abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2)


def extent(one: Coco) -> tuple[float, float, float, float] | None:
    """Left, top, right, bottom of an annotation's box or polygons.

    ``None`` if it has none that can be read.
    """
    try:
        box = read_box(one)
    except Fault:
        return None
    outline = one.get('segmentation')
    if box is None and isinstance(outline, list) and outline and all(map(_is_polygon, outline)):
        box = box_of_polygons(outline)
    return None if box is None else (box[0], box[1], box[0] + box[2], box[1] + box[3])

"""Rules for objects, which have a box, an outline or both, and for their ids."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..dataset import Coco, Crowd, Fault, Report, Split, read_id
from ..shapes import (
    FAR,
    ROUNDING,
    Box,
    area_of_outline,
    box_of_outline,
    can_be_decoded,
    clip_box,
    fills_hole,
    is_far,
    is_number,
    is_polygon,
    is_rle,
    overhang,
    read_box,
    rotation_of,
    turn_box,
)

MANY = 0.1  # of all boxes
FEWEST = 3  # boxes that reach out of their image, to be many
SLACK = 3.0  # px between a side of a box and its outline, or SLACK_SHARE of the longer side
SLACK_SHARE = 0.05


READING = (
    '; COCO has left, top, width, height: are these corners, or centres, or of other or resized'
    ' images? If they are meant, correct them in the file'
)


@dataclass(frozen=True)
class _Case:
    where: str
    box: Box
    size: tuple[int, int]  # of the image
    extent: Box | None  # of the outline


@dataclass
class BoxWarnings:
    """Boxes that reach out of their image, or differ from their outlines.

    Args:
        count: Number of boxes.
        with_outline: Number of boxes of objects with an outline.
    """

    count: int = 0
    with_outline: int = 0
    outside: list[_Case] = field(default_factory=list)
    misfits: list[_Case] = field(default_factory=list)

    def add(self, box: Box, image: Coco, outline: Any, where: str) -> None:
        """Compare a box as given with its image, and with its outline unless that is ``None``."""
        self.count += 1
        size = image['width'], image['height']
        extent = box_of_outline(outline) if outline is not None else None
        case = _Case(where, box, size, extent)
        if overhang(box, *size) > ROUNDING:
            self.outside.append(case)
        if extent is not None:
            self.with_outline += 1
            if not _fits_outline(box, case):
                self.misfits.append(case)

    def report(self, report: Report) -> None:
        """Refuse the boxes if a tenth are wrong; report or clip fewer."""
        misread = self._report_misfits(report)
        many = not misread and len(self.outside) >= max(FEWEST, MANY * self.count)
        reason = 'boxes are clipped to their image'
        if many:
            reason = f'boxes that reach out of their image, a tenth of all or more{READING}'
        for case in self.outside:
            if not many and not _reaches_in(case):  # skipped, which is reported elsewhere
                continue
            detail = f'{case.box} in {case.size[0]} x {case.size[1]}'
            report.add('refused' if many else 'altered', reason, f'{case.where} ({detail})')

    def _report_misfits(self, report: Report) -> bool:
        many = bool(self.misfits) and len(self.misfits) >= MANY * self.with_outline
        reason = 'boxes that differ from their outlines: the box counts'
        if many:
            reason = f'boxes that differ from their outlines, a tenth of all or more{READING}'
        for case in self.misfits:
            extent = [round(side, 1) for side in case.extent or []]
            detail = f'box {case.box}, its outline is in {extent}'
            report.add('refused' if many else 'note', reason, f'{case.where} ({detail})')
        return many


def _fits_outline(box: Box, case: _Case) -> bool:
    """``True`` if box and outline have the same sides after clipping to the image."""
    if case.extent is None:
        return False
    slack = max(SLACK, SLACK_SHARE * max(case.extent[2:]))
    pairs = zip(_sides(box, case.size), _sides(case.extent, case.size), strict=True)
    return all(abs(one - other) <= slack for one, other in pairs)


def _sides(box: Box, size: tuple[int, int]) -> list[float]:
    """Return left, top, right and bottom within the image."""
    sides = [box[0], box[1], box[0] + box[2], box[1] + box[3]]
    return [min(max(side, 0.0), float(size[i % 2])) for i, side in enumerate(sides)]


def _reaches_in(case: _Case) -> bool:
    left, top, right, bottom = _sides(case.box, case.size)
    return right > left and bottom > top


def link_objects(split: Split, report: Report) -> None:
    """Set the integer image id of each object, and check its category; leave out others."""
    report.read['objects'] += len(split.coco['annotations'])
    images = split.coco['images']
    new_ids = {image['id']: image['id'] for image in images}
    if not all(isinstance(image['id'], int) for image in images):
        report.add('altered', 'image ids that are not integers are replaced', split.source)
        new_ids = {image['id']: number for number, image in enumerate(images, 1)}
    by_text = {str(old): new for old, new in new_ids.items()}
    categories = {category['id']: category['id'] for category in split.coco['categories']}
    category_texts = {str(key): key for key in categories}
    kept = []
    for number, one in enumerate(split.coco['annotations'], 1):
        where = f'{split.source}: annotation {one.get("id", f"number {number}")}'
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
    split.coco['annotations'] = kept


def _find(
    one: Coco,
    key: str,
    known: dict[int | str, int],
    by_text: dict[str, int],
    report: Report,
    where: str,
) -> int:
    """Find the id to which an annotation refers by ``image_id`` or ``category_id``."""
    value = read_id(one, key, 'annotations')
    if value in known:
        return known[value]
    if str(value) in by_text:
        report.add('altered', f'{key} as text instead of a number, or the reverse', where)
        return by_text[str(value)]
    if key == 'image_id':
        raise Fault('skipped', 'annotations of images that are not listed', f'image_id {value!r}')
    raise Fault(
        'refused', 'annotations of categories that are not listed', f'category_id {value!r}'
    )


def check_objects(split: Split, report: Report, *, crowd: Crowd | None = None) -> None:
    """Complete and check all objects of used images.

    ``crowd`` is the meaning of ``iscrowd``; see :func:`.checks.check`.
    """
    images = {image['id']: image for image in split.coco['images']}
    kept = []
    ids = set()
    seen = set()
    warnings = BoxWarnings()
    for number, one in enumerate(split.coco['annotations'], 1):
        image = images[one['image_id']]
        key = one.get('id')
        where = (
            f'{split.root / image["file_name"]}: annotation'
            f' {key if "id" in one else f"number {number}"}'
        )
        try:
            checked = _check_object(one, image, report, where, warnings, crowd)
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
    split.coco['annotations'] = kept
    warnings.report(report)


CROWDS = (
    'annotations with iscrowd are regions to ignore, in training and evaluation; CVAT writes'
    ' iscrowd for each brush mask: --crowd objects takes them as objects'
)


HOLES = (
    'polygons within another of the same object: COCO fills them; a hole is kept in RLE, or in a'
    ' polygon that goes around it'
)


def _content(one: Coco) -> tuple[Any, ...]:
    """Return the values that duplicate annotations of an object share."""
    outline = json.dumps(one['segmentation']) if 'segmentation' in one else ''
    return one['image_id'], one['category_id'], one['iscrowd'], *one['bbox'], outline


def _check_object(
    one: Coco, image: Coco, report: Report, where: str, warnings: BoxWarnings, crowd: Crowd | None
) -> Coco:
    """Return an annotation with box, area and ``iscrowd``, clipped to its image."""
    box = read_box(one)
    outline = _check_outline(one, image, box is not None, report, where)
    iscrowd = _is_ignored(one, crowd, report, where)
    if box is None:
        if outline is None:
            raise Fault('refused', 'objects with neither bbox nor outline')
        box = box_of_outline(outline)
        report.add('altered', 'bbox is derived from the outline', where)
    warnings.add(box, image, None if iscrowd else outline, where)
    if outline is None and rotation_of(one):
        box = turn_box(box, rotation_of(one))
        one = {**one, 'attributes': {**one['attributes'], 'rotation': 0.0}}
        report.add('altered', 'rotated boxes become the upright box around them', where)
    size = image['width'], image['height']
    box = clip_box(box, *size)
    if isinstance(outline, list) and fills_hole(outline, size):
        report.add('note', HOLES, where)
    checked = {**one, 'bbox': box, 'iscrowd': iscrowd, 'area': _area_of(one, box, outline, size)}
    checked.pop('segmentation', None)
    checked.pop('ignore', None)
    if outline is not None:
        checked['segmentation'] = outline
    return checked


def _is_ignored(one: Coco, crowd: Crowd | None, report: Report, where: str) -> int:
    """Return ``iscrowd`` of an annotation: 1 for a region to ignore.

    Some files write ``ignore`` instead, which mmdet's evaluation does not read.
    """
    for key in ('iscrowd', 'ignore'):
        if (one.get(key) or 0) not in (0, 1):
            raise Fault('refused', f'{key} is neither 0 nor 1', repr(one[key]))
    if one.get('iscrowd') and crowd == 'objects':
        report.add('altered', 'annotations with iscrowd are taken as objects', where)
    elif one.get('iscrowd'):
        if crowd is None:
            report.add('note', CROWDS, where)
        return 1
    if one.get('ignore'):
        reason = 'objects to ignore are ignored in training and evaluation (iscrowd)'
        report.add('note', reason, where)
        return 1
    return 0


def refuse_classes_of_crowds(splits: Sequence[Split], report: Report) -> None:
    """Refuse classes whose annotations are all regions to ignore, which must be a mistake."""
    ignored: dict[int, bool] = {}
    for split in splits:
        for one in split.coco['annotations']:
            known = ignored.get(one['category_id'], True)
            ignored[one['category_id']] = known and bool(one['iscrowd'])
    for category in splits[0].coco['categories']:
        if ignored.get(category['id']):
            reason = (
                'classes whose annotations all have iscrowd: --crowd objects takes them as objects,'
                ' --crowd ignore as regions to ignore'
            )
            report.add('refused', reason, category['name'])


def _check_outline(one: Coco, image: Coco, has_box: bool, report: Report, where: str) -> Any:
    """Return ``segmentation`` of an annotation as polygons or RLE; ``None`` without one."""
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
    for points in good:
        if is_far(points, (image['width'], image['height'])):
            raise Fault('refused', f'polygons of points more than {FAR} image sides away')
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


def _area_of(one: Coco, box: Box, outline: Any, size: tuple[int, int]) -> float:
    """Return the area in px: as given, or of the outline, or of the box."""
    given = one.get('area')
    if given is not None and is_number(given) and given > 0:
        return given
    area = 0.0 if outline is None else area_of_outline(outline, size)
    return area or box[2] * box[3]


def check_outlines(split: Split, report: Report, *, required: bool) -> None:
    """Refuse objects without outline if ``required``; otherwise report that they are left out.

    Regions to ignore (``iscrowd``) without outline are skipped.
    """
    kept = []
    for one in split.coco['annotations']:
        where = f'{split.source}: annotation {one["id"]}'
        if not required:
            if 'segmentation' in one:
                reason = 'outlines are left out; the format instances trains on them'
                report.add('note', reason, where)
        elif 'segmentation' in one:
            kept.append(one)
        elif one['iscrowd']:
            report.add('skipped', 'regions to ignore without an outline', where)
        else:
            report.add(
                'refused', 'objects without an outline, which the format instances needs', where
            )
    if required:
        split.coco['annotations'] = kept

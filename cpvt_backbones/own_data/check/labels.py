"""Rules for labels: classes, and objects with a box, an outline or both."""

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from cpvt_backbones.text import Spellings, plain

from ..dataset import (
    ROUNDING,
    SMALLEST,
    Box,
    Coco,
    Crowd,
    Fault,
    Report,
    Split,
    area_of_outline,
    box_of_outline,
    can_be_decoded,
    check_names,
    fills_hole,
    is_number,
    is_polygon,
    is_rle,
    read_box,
    read_id,
)
from ..read.files import equal_files

MANY = 0.1  # of all boxes
FEWEST = 3  # boxes that reach out of their image, to be many
SLACK = 3.0  # px between a side of a box and its outline, or SLACK_SHARE of the longer side
SLACK_SHARE = 0.05
FAR = 10  # sides of an image
READING = (
    '; COCO has left, top, width, height: are these corners, or centres, or of other or resized'
    ' images? If they are meant, correct them in the file'
)
CROWDS = (
    'annotations with iscrowd are regions to ignore, in training and evaluation; CVAT writes'
    ' iscrowd for each brush mask: --crowd objects takes them as objects'
)
HOLES = (
    'polygons within another of the same object: COCO fills them; a hole is kept in RLE, or in a'
    ' polygon that goes around it'
)


def check_categories(split: Split, report: Report) -> None:
    """Sort categories by id, and check that their names differ.

    Ids that are not integers are replaced.
    """
    categories: list[Coco] = []
    for number, category in enumerate(split.coco['categories'], 1):
        try:
            categories.append(_check_category(category, categories))
        except Fault as fault:
            report.add_fault(
                fault, f'{split.source}: {category.get("name") or f"category {number}"}'
            )
    report.extend(check_names([category['name'] for category in categories], split.source))
    if not all(isinstance(category['id'], int) for category in categories):
        report.add('altered', 'category ids that are not integers are replaced', split.source)
        _renumber(split, categories)
    elif categories != sorted(categories, key=itemgetter('id')):
        report.add('note', 'categories are sorted by their ids', split.source)
    split.coco['categories'] = sorted(categories, key=itemgetter('id'))


def _check_category(category: Coco, others: Sequence[Coco]) -> Coco:
    """Check that a category has an id and a name that no other has."""
    key, name = read_id(category, 'id', 'categories'), category.get('name')
    if is_number(name):  # such as the classes of digits
        name = str(name)
    if not isinstance(name, str) or not name.strip():
        raise Fault('refused', 'categories without name')
    # Normalise accented letters, which programs write as one or two characters.
    name = unicodedata.normalize('NFC', name.strip())
    if any(str(key) == str(other['id']) for other in others):
        raise Fault('refused', 'categories with the id of another', f'id {key!r}')
    if any(name == other['name'] for other in others):
        raise Fault('refused', 'categories with the name of another')
    return {**category, 'id': key, 'name': name}


def _renumber(split: Split, categories: Sequence[Coco]) -> None:
    new = {str(category['id']): number for number, category in enumerate(categories, 1)}
    for category in categories:
        category['id'] = new[str(category['id'])]
    for one in split.coco['annotations']:
        one['category_id'] = new.get(str(one.get('category_id')), one.get('category_id'))


def _used(split: Split) -> set[int]:
    return {one['category_id'] for one in split.coco['annotations']}


def drop_parents(splits: Sequence[Split], report: Report) -> None:
    """Leave out categories without objects that are not classes.

    These are the ``supercategory`` of another, as in Roboflow's exports, and LabelMe's
    ``_background_``.
    """
    annotated = set()
    parents = {'_background_'}
    for split in splits:
        used = _used(split)
        for category in split.coco['categories']:
            if category['id'] in used:
                annotated.add(category['name'])
            if category.get('supercategory') != category['name']:
                parents.add(category.get('supercategory'))
    for split in splits:
        kept = []
        for category in split.coco['categories']:
            if category['name'] in parents - annotated:
                reason = 'parent and background categories without objects are left out'
                report.add('altered', reason, f'{split.source}: {category["name"]}')
            else:
                kept.append(category)
        split.coco['categories'] = kept


def match_categories(splits: Sequence[Split], report: Report) -> None:
    """Give the categories of all splits the ids of the first split, by name."""
    categories = splits[0].coco['categories']
    ids = {category['name']: category['id'] for category in categories}
    spellings = Spellings(ids)
    for split in splits[1:]:
        used = _used(split)
        new = {}
        for category in split.coco['categories']:
            where = f'{split.source}: {category["name"]}'
            if category['name'] in ids:
                new[category['id']] = ids[category['name']]
            elif category['id'] in used:
                alike = spellings.find(category['name'])
                where += f' (training has {alike})' if alike in ids else ''
                report.add('refused', 'categories with objects that training lacks', where)
            else:
                report.add('skipped', 'categories without objects that training lacks', where)
        if any(old != matched for old, matched in new.items()):
            report.add('note', 'categories are matched by name', split.source)
        for one in split.coco['annotations']:
            one['category_id'] = new.get(one['category_id'], one['category_id'])
        split.coco['categories'] = [*categories]


def note_empty(train: Split, report: Report) -> None:
    """Report classes that the model cannot learn."""
    used = _used(train)
    for category in train.coco['categories']:
        if category['id'] not in used:
            report.add('note', 'classes without a training object', category['name'])


def list_classes(splits: Sequence[Split], report: Report) -> None:
    """Report the number of objects or images of each class, and similar names."""
    unit = 'objects' if 'annotations' in splits[0].coco else 'images'
    counts = [_count(split) for split in splits]
    total: Counter[str] = Counter()
    for found in counts:
        total.update(found)
    names = [category['name'] for category in splits[0].coco.get('categories', ())] or sorted(total)
    for index, name in enumerate(names):
        numbers = []
        for kind, found in zip(('training', 'validation'), counts, strict=False):
            numbers.append(f'{found[name]} {kind} {unit}')
        report.classes.append(f'{index:7} {name}: {", ".join(numbers)}')
    for name, other in _names_alike(names):
        where = f'{name} ({total[name]} {unit}), {other} ({total[other]} {unit})'
        report.add('note', 'class names that differ only in case, spaces and signs', where)


def _count(split: Split) -> Counter[str]:
    if 'annotations' not in split.coco:
        return Counter(image['label'] for image in split.coco['images'])
    names = {category['id']: category['name'] for category in split.coco['categories']}
    # Missing categories are refused.
    objects = [one for one in split.coco['annotations'] if not one.get('iscrowd')]
    return Counter(names.get(one['category_id'], '') for one in objects)


def _names_alike(names: Sequence[str]) -> list[tuple[str, str]]:
    """Find pairs of names that differ only in case, spaces and signs: ``Cat`` and ``cat``."""
    first: dict[str, str] = {}
    pairs = []
    for name in names:
        letters = re.sub(r'[\W_]', '', plain(name))
        if letters and letters in first:
            pairs.append((first[letters], name))
        first.setdefault(letters, name)
    return pairs


def note_contradictions(splits: Sequence[Split], report: Report) -> None:
    """Report identical files in several class folders."""
    labels = {}
    for split in splits:
        for image in split.coco['images']:
            labels[split.root / image['file_name']] = image['label']
    for same in equal_files(labels):
        if len({labels[path] for path in same}) > 1:
            reason = 'one image in several class folders, so its labels contradict each other'
            report.add('note', reason, ' = '.join(map(str, same)))


def classes_of(splits: Sequence[Split]) -> list[str]:
    """Return the sorted class names of images in class folders."""
    return sorted({image['label'] for split in splits for image in split.coco['images']})


def check_labels(splits: Sequence[Split], report: Report) -> None:
    """Refuse classes without training images; report those without validation images."""
    report.extend(check_names(classes_of(splits), str(splits[0].root)))
    train, val = ({image['label'] for image in split.coco['images']} for split in splits)
    for label in sorted(val - train):
        report.add('refused', 'classes without a training image', label)
    for label in sorted(train - val):
        report.add('note', 'classes without a validation image', label)
    if len(train | val) < 2:
        found = ', '.join(sorted(train | val)) or 'none'
        report.add(
            'refused',
            'fewer than two classes: images must be in <class>/ or <split>/<class>/',
            found,
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
            # What duplicate annotations of an object share.
            content = (
                checked['image_id'],
                checked['category_id'],
                checked['iscrowd'],
                *checked['bbox'],
                json.dumps(checked.get('segmentation')),
            )
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


def overhang(box: Box, width: int, height: int) -> float:
    """Return by how many px a box reaches out of its image; negative if inside."""
    return max(-box[0], -box[1], box[0] + box[2] - width, box[1] + box[3] - height)


def clip_box(box: Box, width: int, height: int) -> Box:
    """Clip a box to its image; raise :class:`.Fault` if less than 1 px is left."""
    if box[2] < 0 or box[3] < 0:
        raise Fault('refused', 'boxes of negative width or height', repr(box))
    if box[2] == 0 or box[3] == 0:
        raise Fault('skipped', 'boxes of no width or height', repr(box))
    left, top = max(box[0], 0), max(box[1], 0)
    right, bottom = min(box[0] + box[2], width), min(box[1] + box[3], height)
    if left >= right or top >= bottom:
        raise Fault('skipped', 'boxes outside their image', f'{box} in {width} x {height}')
    if right - left < SMALLEST or bottom - top < SMALLEST:
        raise Fault(
            'skipped', 'boxes narrower or lower than 1 px, which mmdet leaves out', repr(box)
        )
    if overhang(box, width, height) <= 0:
        return box
    return [left, top, right - left, bottom - top]


def rotation_of(one: Coco) -> float:
    """Return the rotation of an annotation's box in degrees, as CVAT writes it."""
    attributes = one.get('attributes')
    found = attributes.get('rotation') if isinstance(attributes, dict) else None
    return float(found) if found is not None and is_number(found) else 0.0


def turn_box(box: Box, degrees: float) -> Box:
    """Return the upright box around a box that is rotated about its centre."""
    x, y, width, height = box
    angle = math.radians(degrees)
    cos, sin = abs(math.cos(angle)), abs(math.sin(angle))
    wide, high = width * cos + height * sin, width * sin + height * cos
    return [x + (width - wide) / 2, y + (height - high) / 2, wide, high]


def is_far(numbers: Iterable[float], size: tuple[int, int]) -> bool:
    """``True`` for an outline with coordinates ``FAR`` image sides away or more.

    The memory for drawing grows with the length of an outline, not with the size of the image.
    """
    limit = FAR * max(size)
    return any(abs(number) > limit for number in numbers)

"""Applies all rules to a user's data, in order; rules for images.

Rules for labels are in :mod:`.labels`.
"""

import os
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from cpvt_backbones.errors import InputError
from cpvt_backbones.images.value_range import ValueRange
from cpvt_backbones.images.windows import open_scene

from ..dataset import (
    ROUNDING,
    Coco,
    Crowd,
    Fault,
    Report,
    Split,
    extent,
    is_number,
    is_rle,
    join,
    read_id,
    subset,
)
from ..read.files import (
    ImageFacts,
    Size,
    equal_files,
    find_split,
    inspect_images,
    path_problem,
)
from .labels import (
    check_categories,
    check_labels,
    check_objects,
    check_outlines,
    drop_parents,
    link_objects,
    list_classes,
    match_categories,
    note_contradictions,
    note_empty,
    refuse_classes_of_crowds,
)

Facts = Mapping[Path, ImageFacts]
TOLERANCE = 0.5  # px by which corners of a mask may differ from those of its image
HALF_RANGE = 1 << 15  # of 16 bits
# Name of a clip and number of a frame, such as clip0_frame_0003.
FRAME = re.compile(r'(.*(?:frame|(?:frame|clip|video|seq)\w*?[_\-. ]))f?\d+', re.IGNORECASE)


def check(
    splits: Sequence[Split],
    report: Report,
    *,
    decode: bool = True,
    outlines: bool = False,
    added: Split | None = None,
    value_range: ValueRange | None = None,
    skip_damaged: bool = False,
    crowd: Crowd | None = None,
) -> list[Split]:
    """Check data as read, and split them.

    Args:
        splits: Training and validation data, or one to be split.
        report: Receives every image and label that is skipped, altered or refused.
        decode: Decode every image; otherwise only headers are read.
        outlines: Refuse objects without polygons or RLE.
        added: Further training data.
        value_range: Conversion of images of more than 8 bits.
        skip_damaged: Leave out images that cannot be read, with their labels; otherwise they are
            refused.
        crowd: Meaning of annotations with ``iscrowd``: ``'ignore'``, regions to ignore, or
            ``'objects'``. ``None`` takes them as regions with a note, and refuses classes without
            other annotations.

    Returns:
        Training and validation data. Sizes are upright, image ids are integers, and boxes lie in
        their image. Categories are sorted by id and equal in both.
    """
    given = [*splits, added] if added else splits
    checked, facts = check_splits(
        given,
        report,
        decode=decode,
        value_range=value_range,
        skip_damaged=skip_damaged,
        crowd=crowd,
    )
    if 'annotations' in checked[0].coco:
        if crowd is None:
            refuse_classes_of_crowds(checked, report)
        for split in checked:
            check_outlines(split, report, required=outlines)
    extra = checked.pop() if added else None
    if len(checked) == 1 and len(checked[0].coco['images']) > 1:
        images = checked[0].coco['images']
        labels = {image['file_name']: image['label'] for image in images if 'label' in image}
        names = split_names([image['file_name'] for image in images], report, labels=labels)
        checked = [subset(checked[0], chosen) for chosen in names]
    if extra:
        checked[0] = join(checked[0], extra)
    note_files(facts, report)
    if value_range:
        note_range(facts, value_range, report)
    else:
        note_deep(facts, report)
    if len(checked) == 2:
        note_duplicates(checked, report)
        note_siblings(checked, report)
    _count_used(checked, report)
    _check_classes(checked, report)
    objects = checked[0].coco.get('annotations')
    if len(checked) < 2 or not all(split.coco['images'] for split in checked):
        found = [len(split.coco['images']) for split in checked]
        reason = (
            'data sets without images for both splits: at least one image is needed for training,'
            ' and another for validation'
        )
        report.add('refused', reason, f'{splits[0].source} ({sum(found)} can be used)')
    elif objects is not None and all(one['iscrowd'] for one in objects):
        reason = 'training images without any object, from which nothing is learned'
        report.add('refused', reason, checked[0].source)
    return checked


def check_splits(
    splits: Sequence[Split],
    report: Report,
    *,
    decode: bool = True,
    value_range: ValueRange | None = None,
    skip_damaged: bool = False,
    crowd: Crowd | None = None,
) -> tuple[list[Split], Facts]:
    """Apply the rules of :func:`check`, without splitting or finishing the report.

    Args:
        splits: Data whose categories are matched by name to those of the first.
        report: Receives every image and label that is skipped, altered or refused.
        decode: Decode every image; otherwise only headers are read.
        value_range: See :func:`check`.
        skip_damaged: See :func:`check`.
        crowd: See :func:`check`.

    Returns:
        The checked splits without skipped or refused data, and the facts of their images.
    """
    checked = [check_entries(split, report) for split in splits]
    paths = {
        split.root / image['file_name']: None for split in checked for image in split.coco['images']
    }
    facts = inspect_images([*paths], decode=decode, value_range=value_range)
    outcome = 'skipped' if skip_damaged else 'refused'
    has_objects = all('annotations' in split.coco for split in checked)
    for split in checked:
        if has_objects:
            check_categories(split, report)
            link_objects(split, report)
        check_files(split, facts, report, unread=outcome)
        if has_objects:
            check_objects(split, report, crowd=crowd)
    if has_objects:
        drop_parents(checked, report)
        match_categories(checked, report)
    return checked, facts


def split_names(
    names: Iterable[str], report: Report, *, labels: Mapping[str, str] | None = None
) -> tuple[list[str], list[str]]:
    """Split names into training and validation.

    Names are split by folders named train or training, and val, valid, validation or test.
    Otherwise every fifth is for validation, of each class with ``labels``. Names in other folders
    beside those two are skipped.

    Raises:
        InputError: A split would be empty.
    """
    names = sorted(names)
    first = {name: name.partition('/')[0].lower() for name in names}
    folders = find_split(first.values())
    if folders is not None:
        training, validation = folders
        for name in names:
            if first[name] not in folders:
                report.add('skipped', f'images outside {training}/ and {validation}/', name)
        train = [name for name in names if first[name] == training]
        return train, [name for name in names if first[name] == validation]
    if len(names) < 2:
        raise InputError(
            f'data: at least 2 images are needed, for training and validation, got {len(names)}'
        )
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(original_of(name), []).append(name)
    groups: dict[str, list[str]] = {}
    for family, members in families.items():
        groups.setdefault(labels[members[0]] if labels else '', []).append(family)
        if len(members) > 1:
            reason = 'copies of one image, by the same name before .rf., stay on one side'
            report.add('note', reason, ', '.join(members))
    chosen: set[str] = set()
    for group in groups.values():
        chosen |= {*group[4::5]} or {*group[2:][-1:]}  # of three or four, the last
    chosen = chosen or {[*families][-1]}
    held_out = sorted(name for family in chosen for name in families[family])
    return [name for name in names if original_of(name) not in chosen], held_out


def _count_used(splits: Sequence[Split], report: Report) -> None:
    for name, split in zip(('training', 'validation'), splits, strict=False):
        report.used[f'{name} images'] += len(split.coco['images'])
        if 'annotations' in split.coco:
            with_objects = {one['image_id'] for one in split.coco['annotations']}
            empty = len(split.coco['images']) - len(with_objects)
            ignored = sum(one['iscrowd'] for one in split.coco['annotations'])
            report.used[f'{name} images without objects'] += empty
            report.used[f'{name} objects'] += len(split.coco['annotations']) - ignored
            report.used[f'{name} regions to ignore'] += ignored
            if name == 'validation' and ignored == len(split.coco['annotations']):
                reason = 'validation images without any object: a training prints no score'
                report.add('note', reason, split.source)


def _check_classes(splits: Sequence[Split], report: Report) -> None:
    """List the classes of objects or images, and check that each can be learned."""
    images = splits[0].coco['images']
    if 'annotations' in splits[0].coco:
        note_empty(splits[0], report)
    elif not images or 'label' not in images[0]:
        return
    elif len(splits) == 2:
        check_labels(splits, report)
        note_contradictions(splits, report)
    list_classes(splits, report)


def check_entries(split: Split, report: Report) -> Split:
    """Keep images whose name and id no other image has."""
    report.read['images'] += len(split.coco['images'])
    images = []
    owners: dict[str, str] = {}  # of the real path of each file
    ids: set[int | str] = set()
    for number, image in enumerate(split.coco['images'], 1):
        try:
            file = _check_entry(image, split.root, owners, ids)
            if 'annotations' not in split.coco:
                _check_listed(image['file_name'])
        except Fault as fault:
            name = image.get('file_name') or f'image {number}'
            report.add_fault(fault, f'{split.source}: {name}')
            continue
        owners[file] = image['file_name']
        ids.add(image['id'])
        images.append(image)
    return Split({**split.coco, 'images': images}, split.root, split.source)


def _check_entry(
    image: Coco, root: Path, owners: Mapping[str, str], ids: Container[int | str]
) -> str:
    """Return the real path of an image; raise ``Fault`` if another entry has its path or id."""
    name = image.get('file_name')
    if not isinstance(name, str) or not name:
        raise Fault('refused', 'images without file_name')
    if problem := path_problem(name):
        raise Fault('refused', 'file names that are not paths', problem)
    key = image['id'] = read_id(image, 'id', 'images')
    # In class folders, links to one file are reported elsewhere.
    path = os.path.abspath(root / name) if 'label' in image else os.path.realpath(root / name)
    if path in owners:
        other = owners[path]
        raise Fault('refused', 'images that are listed twice', '' if other == name else other)
    if key in ids:
        raise Fault('refused', 'images with the id of another', f'id {key!r}')
    return path


def _check_listed(name: str) -> None:
    """Raise ``Fault`` for a name that the toolboxes' lists, with one name per line, cannot hold."""
    is_text = name.encode(errors='replace').decode() == name
    if not is_text or name.splitlines() != [name.strip()]:
        reason = (
            'file names that begin or end with a space, have a line break, or are not UTF-8:'
            ' rename them'
        )
        raise Fault('refused', reason, repr(name))


def check_files(split: Split, facts: Facts, report: Report, *, unread: str) -> None:
    """Leave out images that cannot be read or have a wrong size, with their objects."""
    objects: dict[int | str, list[Coco]] = {image['id']: [] for image in split.coco['images']}
    for one in split.coco.get('annotations', ()):
        objects[one['image_id']].append(one)
    kept = []
    for image in split.coco['images']:
        path = split.root / image['file_name']
        try:
            if facts[path].fault:
                reason = 'images that cannot be read'
                if unread == 'refused':
                    reason += ' (--skip-damaged leaves them out, with their labels)'
                raise Fault(unread, reason, facts[path].fault)
            if 'annotations' in split.coco and 'mask' not in image:
                _check_size(image, facts[path], objects[image['id']], report, str(path))
            else:
                _check_mask_size(image, facts[path])
                if image.get('mask_size'):
                    _check_place(path, Path(image['mask']))
        except Fault as fault:
            report.add_fault(fault, str(path))
            continue
        kept.append(image)
    names = {image['file_name'] for image in kept}
    split.coco = subset(split, names).coco


def _check_size(
    image: Coco, facts: ImageFacts, objects: Sequence[Coco], report: Report, where: str
) -> None:
    """Set ``width`` and ``height`` to the upright size of the file, or raise a :class:`.Fault`.

    Args:
        image: Entry of COCO's ``images``; its size may be missing.
        facts: Facts of the file.
        objects: Annotations of the image.
        report: Receives alterations.
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
        report.add('altered', 'width and height are swapped as in the EXIF rotation', where)
    image['width'], image['height'] = upright


def _check_mask_size(image: Coco, facts: ImageFacts) -> None:
    """Set ``width`` and ``height`` to the upright size of the file.

    Args:
        image: Entry with ``mask_size`` (width and height, or ``None`` for an unreadable mask), or
            without a mask.
        facts: Facts of the file.

    Raises:
        Fault: The mask has another size.
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
    """Raise ``Fault`` for labels that fit only the image before its EXIF rotation, or fit both."""
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
    """Return width and height in COCO; ``None`` if one is missing or 0, which some tools write."""
    width, height = image.get('width'), image.get('height')
    if not width or not height:
        return None
    if not (is_number(width) and is_number(height)):
        detail = f'{width!r} and {height!r}'
        raise Fault('refused', 'width and height that are not numbers', detail)
    return width, height


def _fit(objects: Sequence[Coco], size: Size) -> bool:
    """``True`` if all objects lie in an image of this size."""
    for one in objects:
        found = extent(one)
        if found is not None and (found[2] > size[0] + ROUNDING or found[3] > size[1] + ROUNDING):
            return False
        outline: Any = one.get('segmentation')
        if is_rle(outline) and [*outline['size']] != [size[1], size[0]]:
            return False
    return True


def _check_place(image: Path, mask: Path) -> None:
    """Raise ``Fault`` if an image and its mask have different georeferences.

    Files without a georeference, or that rasterio does not read, are accepted.
    """
    scene, other = open_scene(image), open_scene(mask)
    if scene is None or other is None:
        return
    transforms = scene.file.transform, other.file.transform
    if any(one.is_identity or one.is_degenerate for one in transforms):
        return
    reason = 'masks with another georeference than their image: warp them to its grid'
    systems = scene.file.crs, other.file.crs
    if all(systems) and systems[0] != systems[1]:
        detail = f'{systems[1].to_string()}, not {systems[0].to_string()}'
        raise Fault('refused', reason, f'mask {mask}: {detail}')
    off = _distance(scene.file, other.file)
    if off >= TOLERANCE:
        raise Fault('refused', reason, f'mask {mask}: its corners are {off:.4g} px away')


def _distance(image: Any, mask: Any) -> float:
    """Return the maximum distance between corners of mask and image, in px of the image."""
    width, height = image.width, image.height
    columns, rows = np.array([0, width, 0, width]), np.array([0, 0, height, height])
    found = _apply(~image.transform, *_apply(mask.transform, columns, rows))
    return float(np.abs(np.array(found) - (columns, rows)).max())


def _apply(transform: Any, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    a, b, c, d, e, f = transform[:6]
    return a * x + b * y + c, d * x + e * y + f


def note_files(facts: Facts, report: Report) -> None:
    """Report images that are rotated by EXIF, have several frames, or are transparent."""
    for path, known in facts.items():
        if known.orientation != 1:
            report.add(
                'note',
                'images rotated by EXIF: labels are taken as drawn on the upright image',
                str(path),
            )
        if known.frames > 1:
            reason = 'files of several images, such as TIFF stacks: the first is used'
            report.add('note', reason, f'{path} ({known.frames})')
        if known.alpha:
            report.add(
                'note',
                'images with transparent pixels: training sees their colour, prediction white;'
                ' --bands 1 2 3'
                ' takes the colour in both, --bands 1 2 3 4 a fourth band that is not transparency',
                str(path),
            )


def note_deep(facts: Facts, report: Report) -> None:
    """Report 16-bit images of which training would see only a few grey levels.

    Each image is judged without its brightest pixels, which may be sensor faults. A few such images
    among brighter ones count as dark photographs.
    """
    deep = {path: known for path, known in facts.items() if known.range}
    dark = {path: known for path, known in deep.items() if known.bright < HALF_RANGE}
    if not dark or 2 * len(dark) < len(deep):
        return
    low = min(known.range[0] for known in dark.values() if known.range)
    high = max(known.bright for known in dark.values())
    seen = f'training sees {int(low) >> 8} to {int(high) >> 8} of 255'
    reason = (
        f'images of 16 bits with values of {low:g} to {high:g} only, {seen}: give --range LOW HIGH'
    )
    for path in dark:
        report.add('altered', reason, str(path))


def note_range(facts: Facts, value_range: ValueRange, report: Report) -> None:
    """Report images with values outside the range, and a range much wider than the values.

    Images that are nearly black beside others count as altered, such as 8 bits among 12 bits.

    Raises:
        InputError: No value is in the range.
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


def original_of(name: str) -> str:
    """Return the name of the original of a copy: the part before Roboflow's ``.rf.``."""
    return name.partition('.rf.')[0]


def note_duplicates(splits: Sequence[Split], report: Report) -> None:
    """Report images in both splits, and validation images that are copies of training images."""
    owners: dict[Path, set[str]] = {}
    for name, split in zip(('training', 'validation'), splits, strict=True):
        for image in split.coco['images']:
            file = (split.root / image['file_name']).resolve()
            owners.setdefault(file, set()).add(name)
    reason = 'images in both training and validation: their scores say nothing of other images'
    for file in sorted(file for file, found in owners.items() if len(found) > 1):
        report.add('note', reason, str(file))
    for same in equal_files(sorted(owners)):
        train = [file for file in same if 'training' in owners[file]]
        for file in same:
            if train and owners[file] == {'validation'}:
                reason = 'validation images that are copies of a training image'
                report.add('note', reason, f'{file} = {train[0]}')


def note_siblings(splits: Sequence[Split], report: Report) -> None:
    """Report copies of one image, and frames of one clip, in training and validation."""
    copies = 'copies of one image, by the same name before .rf., in training and validation'
    frames = (
        'frames of one clip in training and validation: their scores say little of other clips;'
        ' make folders train and val'
    )
    train, val = splits
    originals: dict[str, str] = {}
    clips: dict[str, str] = {}
    for image in train.coco['images']:
        name = image['file_name']
        if '.rf.' in name:
            originals[original_of(name)] = name
        if clip := _clip_of(name):
            clips[clip] = name
    noted = set()
    for image in val.coco['images']:
        name = image['file_name']
        if '.rf.' in name and original_of(name) in originals:
            report.add('note', copies, f'{name} = {originals[original_of(name)]}')
        clip = _clip_of(name)
        if clip in clips and clip not in noted:
            noted.add(clip)
            report.add('note', frames, f'{name}, {clips[clip]}')


def _clip_of(name: str) -> str:
    """Return the name of a frame without its number; ``''`` for other names."""
    found = FRAME.fullmatch(PurePosixPath(name).stem)
    return f'{PurePosixPath(name).parent}/{found[1]}' if found else ''

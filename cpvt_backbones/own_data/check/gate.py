"""The one gate between a user's data and a config: what is used, skipped, altered or refused."""

import os
import re
from collections.abc import Container, Mapping, Sequence
from pathlib import Path, PurePosixPath

from cpvt_backbones.images.value_range import ValueRange

from ..dataset import Coco, Crowd, Part, join, part_of, read_id
from ..files import equal_files, original_of, path_problem, split
from ..read.images import ImageFacts, inspect_images
from ..report import Fault, Report
from .classes import (
    check_categories,
    check_labels,
    drop_parents,
    list_classes,
    match_categories,
    note_contradictions,
    note_empty,
)
from .images import check_mask_size, check_place, check_size, note_range
from .objects import (
    check_objects,
    link_objects,
    refuse_classes_of_crowds,
    require_outlines,
)

Facts = Mapping[Path, ImageFacts]
HALF_RANGE = 1 << 15  # of 16 bits
# Name of a clip, and the number of a frame, such as clip0_frame_0003.
FRAME = re.compile(r'(.*(?:frame|(?:frame|clip|video|seq)\w*?[_\-. ]))f?\d+', re.IGNORECASE)


def check(
    parts: Sequence[Part],
    report: Report,
    *,
    decode: bool = True,
    outlines: bool = False,
    added: Part | None = None,
    value_range: ValueRange | None = None,
    skip_damaged: bool = False,
    crowd: Crowd | None = None,
) -> list[Part]:
    """Check data as read, and split them.

    Args:
        parts: Training and validation data, or one part that is split here.
        report: Gets every image and label that is skipped, altered or refused.
        decode: Decode every image; else only headers are read.
        outlines: Refuse objects without polygons or RLE.
        added: More training data.
        value_range: How images of more than 8 bits are read.
        skip_damaged: Leave out images that cannot be read, with their labels; else they are
            refused.
        crowd: What annotations with ``iscrowd`` are: ``'ignore'``, regions to ignore, or
            ``'objects'``. ``None`` takes them as regions with a note, and refuses a class that has
            no others.

    Returns:
        Training and validation data. Sizes are upright, image ids are integers, boxes lie in their
        image, categories are sorted by id and the same in both.
    """
    given = [*parts, added] if added else parts
    checked, facts = check_parts(
        given,
        report,
        decode=decode,
        value_range=value_range,
        skip_damaged=skip_damaged,
        crowd=crowd,
    )
    if crowd is None and 'annotations' in checked[0].coco:
        refuse_classes_of_crowds(checked, report)
    for part in checked:
        _check_outlines(part, report, required=outlines)
    extra = checked.pop() if added else None
    if len(checked) == 1 and len(checked[0].coco['images']) > 1:
        images = checked[0].coco['images']
        labels = {image['file_name']: image['label'] for image in images if 'label' in image}
        names = split([image['file_name'] for image in images], report, labels=labels)
        checked = [part_of(checked[0], chosen) for chosen in names]
    if extra:
        checked[0] = join(checked[0], extra)
    _note_files(facts, report)
    if value_range:
        note_range(facts, value_range, report)
    else:
        _note_deep(facts, report)
    _note_duplicates(checked, report)
    _note_siblings(checked, report)
    _count_used(checked, report)
    _check_classes(checked, report)
    if len(checked) < 2 or not all(part.coco['images'] for part in checked):
        found = [len(part.coco['images']) for part in checked]
        reason = (
            'data without images for both parts: at least one image is needed for training, and'
            ' another for validation'
        )
        report.add('refused', reason, f'{parts[0].source} ({sum(found)} can be used)')
    elif 'annotations' in checked[0].coco and not _has_objects(checked[0]):
        reason = 'training images without any object, from which nothing is learnt'
        report.add('refused', reason, checked[0].source)
    return checked


def _has_objects(part: Part) -> bool:
    return any(not one['iscrowd'] for one in part.coco['annotations'])


def _check_outlines(part: Part, report: Report, *, required: bool) -> None:
    if required:
        require_outlines(part, report)
        return
    for one in part.coco.get('annotations', ()):
        if 'segmentation' in one:
            reason = 'outlines are left out; form instances trains on them'
            report.add('note', reason, f'{part.source}: annotation {one["id"]}')


def _check_classes(parts: Sequence[Part], report: Report) -> None:
    """List the classes of objects or images, and check that each can be learnt."""
    images = parts[0].coco['images']
    if 'annotations' in parts[0].coco:
        note_empty(parts[0], report)
    elif not images or 'label' not in images[0]:
        return
    elif len(parts) == 2:
        check_labels(parts, report)
        note_contradictions(parts, report)
    list_classes(parts, report)


def check_parts(
    parts: Sequence[Part],
    report: Report,
    *,
    decode: bool = True,
    value_range: ValueRange | None = None,
    skip_damaged: bool = False,
    crowd: Crowd | None = None,
) -> tuple[list[Part], Facts]:
    """The rules of :func:`check` alone: no split, and the report is not finished.

    Args:
        parts: Data whose categories are matched by name to those of the first.
        report: Gets every image and label that is skipped, altered or refused.
        decode: Decode every image; else only headers are read.
        value_range: See :func:`check`.
        skip_damaged: See :func:`check`.
        crowd: See :func:`check`.

    Returns:
        The checked parts, without what is skipped or refused, and the facts of their images.
    """
    checked = [_check_entries(part, report) for part in parts]
    paths = {
        part.root / image['file_name']: None for part in checked for image in part.coco['images']
    }
    facts = inspect_images([*paths], decode=decode, value_range=value_range)
    outcome = 'skipped' if skip_damaged else 'refused'
    has_objects = all('annotations' in part.coco for part in checked)
    for part in checked:
        if has_objects:
            check_categories(part, report)
            link_objects(part, report)
        _check_files(part, facts, report, unread=outcome)
        if has_objects:
            check_objects(part, report, crowd=crowd)
    if has_objects:
        drop_parents(checked, report)
        match_categories(checked, report)
    return checked, facts


def _check_entries(part: Part, report: Report) -> Part:
    """Images with a name and an id of their own."""
    report.read['images'] += len(part.coco['images'])
    images = []
    owners: dict[str, str] = {}  # of the real path of each file
    ids: set[int | str] = set()
    for number, image in enumerate(part.coco['images'], 1):
        try:
            file = _check_entry(image, part.root, owners, ids)
            if 'annotations' not in part.coco:
                _check_listed(image['file_name'])
        except Fault as fault:
            report.add_fault(fault, f'{part.source}: {image.get("file_name") or f"image {number}"}')
            continue
        owners[file] = image['file_name']
        ids.add(image['id'])
        images.append(image)
    return Part({**part.coco, 'images': images}, part.root, part.source)


def _check_entry(
    image: Coco, root: Path, owners: Mapping[str, str], ids: Container[int | str]
) -> str:
    """The real path of an image, which no other entry has; ids are not those of ``ids``."""
    name = image.get('file_name')
    if not isinstance(name, str) or not name:
        raise Fault('refused', 'images without file_name')
    if problem := path_problem(name):
        raise Fault('refused', 'file names that are no paths', problem)
    key = image['id'] = read_id(image, 'id', 'images')
    # In class folders, links to one file are noted elsewhere.
    path = os.path.abspath(root / name) if 'label' in image else os.path.realpath(root / name)
    if path in owners:
        other = owners[path]
        raise Fault('refused', 'images that are listed twice', '' if other == name else other)
    if key in ids:
        raise Fault('refused', 'images with the id of another', f'id {key!r}')
    return path


def _check_listed(name: str) -> None:
    """Refuse a name that a list of the toolboxes, one name a line, cannot hold."""
    is_text = name.encode(errors='replace').decode() == name
    if not is_text or name.splitlines() != [name.strip()]:
        reason = (
            'file names that begin or end with a space, have a line break, or are not UTF-8:'
            ' rename them'
        )
        raise Fault('refused', reason, repr(name))


def _check_files(part: Part, facts: Facts, report: Report, *, unread: str) -> None:
    """Leave out images that cannot be read or whose size is wrong, with their objects."""
    objects: dict[int | str, list[Coco]] = {image['id']: [] for image in part.coco['images']}
    for one in part.coco.get('annotations', ()):
        objects[one['image_id']].append(one)
    kept = []
    for image in part.coco['images']:
        path = part.root / image['file_name']
        try:
            if facts[path].fault:
                reason = 'images that cannot be read'
                if unread == 'refused':
                    reason += ' (--skip-damaged leaves them out, with their labels)'
                raise Fault(unread, reason, facts[path].fault)
            if 'annotations' in part.coco and 'mask' not in image:
                check_size(image, facts[path], objects[image['id']], report, str(path))
            else:
                check_mask_size(image, facts[path])
                if image.get('mask_size'):
                    check_place(path, Path(image['mask']))
        except Fault as fault:
            report.add_fault(fault, str(path))
            continue
        kept.append(image)
    names = {image['file_name'] for image in kept}
    part.coco = part_of(part, names).coco


def _note_files(facts: Facts, report: Report) -> None:
    """Note images that are turned by EXIF, files of several, and transparent ones."""
    for path, known in facts.items():
        if known.orientation != 1:
            report.add(
                'note',
                'images turned by EXIF: labels are taken as drawn on the upright image',
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
                ' takes the colour in both, --bands 1 2 3 4 a fourth band that is no transparency',
                str(path),
            )


def _note_deep(facts: Facts, report: Report) -> None:
    """Report 16-bit images of which training would see a small part of the grey levels.

    They are judged one by one, without their brightest pixels, which may be faults of a sensor. A
    few of them among brighter ones are dark photographs.
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


def _note_duplicates(parts: Sequence[Part], report: Report) -> None:
    """Note images of both parts, and validation images that are copies of a training image."""
    if len(parts) < 2:
        return
    owners: dict[Path, set[str]] = {}
    for name, part in zip(('training', 'validation'), parts, strict=True):
        for image in part.coco['images']:
            file = (part.root / image['file_name']).resolve()
            owners.setdefault(file, set()).add(name)
    reason = 'images of training and validation at once: their scores say nothing of other images'
    for file in sorted(file for file, found in owners.items() if len(found) > 1):
        report.add('note', reason, str(file))
    for same in equal_files(sorted(owners)):
        train = [file for file in same if 'training' in owners[file]]
        for file in same:
            if train and owners[file] == {'validation'}:
                reason = 'validation images that are copies of a training image'
                report.add('note', reason, f'{file} = {train[0]}')


def _note_siblings(parts: Sequence[Part], report: Report) -> None:
    """Note copies of one image, and frames of one clip, in training and validation."""
    if len(parts) < 2:
        return
    train, val = ([image['file_name'] for image in part.coco['images']] for part in parts)
    copies = 'copies of one image, by the same name before .rf., in training and validation'
    frames = (
        'frames of one clip in training and validation: their scores say little of other clips;'
        ' make folders train and val'
    )
    originals = {original_of(name): name for name in train if '.rf.' in name}
    clips = {clip: name for name in train if (clip := clip_of(name))}
    noted = set()
    for name in val:
        if '.rf.' in name and original_of(name) in originals:
            report.add('note', copies, f'{name} = {originals[original_of(name)]}')
        clip = clip_of(name)
        if clip in clips and clip not in noted:
            noted.add(clip)
            report.add('note', frames, f'{name}, {clips[clip]}')


def clip_of(name: str) -> str:
    """The name of a frame without its number; '' if it is not called a frame."""
    found = FRAME.fullmatch(PurePosixPath(name).stem)
    return f'{PurePosixPath(name).parent}/{found[1]}' if found else ''


def _count_used(parts: Sequence[Part], report: Report) -> None:
    for name, part in zip(('training', 'validation'), parts, strict=False):
        report.used[f'{name} images'] += len(part.coco['images'])
        if 'annotations' in part.coco:
            with_objects = {one['image_id'] for one in part.coco['annotations']}
            empty = len(part.coco['images']) - len(with_objects)
            ignored = sum(one['iscrowd'] for one in part.coco['annotations'])
            report.used[f'{name} images without objects'] += empty
            report.used[f'{name} objects'] += len(part.coco['annotations']) - ignored
            report.used[f'{name} regions to ignore'] += ignored
            if name == 'validation' and ignored == len(part.coco['annotations']):
                reason = 'validation images without any object: a training prints no score'
                report.add('note', reason, part.source)

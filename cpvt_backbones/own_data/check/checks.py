"""Applies all rules to a user's data, in order."""

from collections.abc import Iterable, Mapping, Sequence

from cpvt_backbones.errors import InputError
from cpvt_backbones.images.value_range import ValueRange

from ..dataset import Crowd, Report, Split, join, subset
from ..files import TRAIN, VALIDATION
from ..read.images import inspect_images
from .classes import (
    check_categories,
    check_labels,
    drop_parents,
    list_classes,
    match_categories,
    note_contradictions,
    note_empty,
)
from .images import (
    Facts,
    check_entries,
    check_files,
    note_deep,
    note_duplicates,
    note_files,
    note_range,
    note_siblings,
    original_of,
)
from .objects import (
    check_objects,
    check_outlines,
    link_objects,
    refuse_classes_of_crowds,
)


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
            'data without images for both splits: at least one image is needed for training, and'
            ' another for validation'
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

    Names are split by folders named train and val, valid, validation or test. Otherwise every fifth
    is for validation, of each class with ``labels``. Names in other folders beside train and val
    are skipped.

    Raises:
        InputError: A split would be empty.
    """
    names = sorted(names)
    first = {name: name.partition('/')[0].lower() for name in names}
    for other in VALIDATION:
        if {TRAIN, other} <= {*first.values()}:
            for name in names:
                if first[name] not in (TRAIN, other):
                    report.add('skipped', f'images in neither {TRAIN}/ nor {other}/', name)
            train = [name for name in names if first[name] == TRAIN]
            return train, [name for name in names if first[name] == other]
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

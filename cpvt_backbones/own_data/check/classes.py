"""Rules for classes and their names."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import itemgetter

from cpvt_backbones.text import plain

from ..dataset import Coco, Fault, Report, Split, read_id
from ..shapes import is_number
from .images import equal_files

LONGEST_NAME = 200
NO_TEXT = ('Cc', 'Cs', 'Zl', 'Zp')  # control characters, surrogates, separators of lines


def check_name(name: str) -> None:
    """Raise ``Fault`` for a class name that configs, lists or pictures cannot contain."""
    if '{{' in name:
        reason = 'class names with {{, which mmengine substitutes in configs: rename them'
    elif len(name) > LONGEST_NAME:
        reason = f'class names of more than {LONGEST_NAME} characters'
    elif any(unicodedata.category(letter) in NO_TEXT for letter in name):
        reason = 'class names with line breaks, control characters or invalid Unicode'
    else:
        return
    raise Fault('refused', reason, f'{name[:60]!r}')


def refuse_names(names: Iterable[str], report: Report, where: str) -> None:
    """Report the names that :func:`check_name` does not accept."""
    for name in names:
        try:
            check_name(name)
        except Fault as fault:
            report.add_fault(fault, where)


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
    refuse_names([category['name'] for category in categories], report, split.source)
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
    for split in splits[1:]:
        _match(split, splits[0].coco['categories'], report)


def _match(split: Split, categories: Sequence[Coco], report: Report) -> None:
    ids = {category['name']: category['id'] for category in categories}
    used = _used(split)
    new = {}
    for category in split.coco['categories']:
        where = f'{split.source}: {category["name"]}'
        if category['name'] in ids:
            new[category['id']] = ids[category['name']]
        elif category['id'] in used:
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
    refuse_names(classes_of(splits), report, str(splits[0].root))
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

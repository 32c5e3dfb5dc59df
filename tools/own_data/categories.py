"""Rules for the classes of objects."""

import unicodedata
from collections.abc import Sequence

from .coco import Coco, Part
from .links import read_id
from .outlines import is_number
from .report import Fault, Report


def check_categories(part: Part, report: Report) -> None:
    """Sort categories by id, each with a name of its own.

    Ids that are not integers are replaced.
    """
    categories: list[Coco] = []
    for number, category in enumerate(part.coco['categories'], 1):
        try:
            categories.append(_check_category(category, categories))
        except Fault as fault:
            report.add_fault(
                fault, f'{part.source}: {category.get("name") or f"category {number}"}'
            )
    if not all(isinstance(category['id'], int) for category in categories):
        report.add('altered', 'category ids that are no integers are replaced', part.source)
        _renumber(part, categories)
    elif categories != sorted(categories, key=_id):
        report.add('note', 'categories are sorted by their ids', part.source)
    part.coco['categories'] = sorted(categories, key=_id)


def _id(category: Coco) -> int:
    return category['id']


def _check_category(category: Coco, others: Sequence[Coco]) -> Coco:
    """A category with an id and a name of its own."""
    key, name = read_id(category, 'id', 'categories'), category.get('name')
    if is_number(name):  # such as the classes of digits
        name = str(name)
    if not isinstance(name, str) or not name.strip():
        raise Fault('refused', 'categories without name')
    # One spelling of letters with accents, which programs write in one or two characters.
    name = unicodedata.normalize('NFC', name.strip())
    if any(str(key) == str(other['id']) for other in others):
        raise Fault('refused', 'categories with the id of another', f'id {key!r}')
    if any(name == other['name'] for other in others):
        raise Fault('refused', 'categories with the name of another')
    return {**category, 'id': key, 'name': name}


def _renumber(part: Part, categories: Sequence[Coco]) -> None:
    new = {str(category['id']): number for number, category in enumerate(categories, 1)}
    for category in categories:
        category['id'] = new[str(category['id'])]
    for one in part.coco['annotations']:
        one['category_id'] = new.get(str(one.get('category_id')), one.get('category_id'))


def _used(part: Part) -> set[int]:
    return {one['category_id'] for one in part.coco['annotations']}


def drop_parents(parts: Sequence[Part], report: Report) -> None:
    """Leave out categories without objects that are no classes.

    The ``supercategory`` of another, as in Roboflow's exports, and LabelMe's ``_background_``.
    """
    annotated = set()
    parents = {'_background_'}
    for part in parts:
        used = _used(part)
        for category in part.coco['categories']:
            if category['id'] in used:
                annotated.add(category['name'])
            if category.get('supercategory') != category['name']:
                parents.add(category.get('supercategory'))
    for part in parts:
        kept = []
        for category in part.coco['categories']:
            if category['name'] in parents - annotated:
                reason = 'parent and background categories without objects are left out'
                report.add('altered', reason, f'{part.source}: {category["name"]}')
            else:
                kept.append(category)
        part.coco['categories'] = kept


def match_categories(parts: Sequence[Part], report: Report) -> None:
    """Give the categories of all parts the ids that the first has for their names."""
    for part in parts[1:]:
        _match(part, parts[0].coco['categories'], report)


def _match(part: Part, categories: Sequence[Coco], report: Report) -> None:
    ids = {category['name']: category['id'] for category in categories}
    used = _used(part)
    new = {}
    for category in part.coco['categories']:
        where = f'{part.source}: {category["name"]}'
        if category['name'] in ids:
            new[category['id']] = ids[category['name']]
        elif category['id'] in used:
            report.add('refused', 'categories with objects that training lacks', where)
        else:
            report.add('skipped', 'categories without objects that training lacks', where)
    if any(old != matched for old, matched in new.items()):
        report.add('note', 'categories are matched by name', part.source)
    for one in part.coco['annotations']:
        one['category_id'] = new.get(one['category_id'], one['category_id'])
    part.coco['categories'] = [*categories]


def note_empty(train: Part, report: Report) -> None:
    """Note classes that the model cannot learn."""
    used = _used(train)
    for category in train.coco['categories']:
        if category['id'] not in used:
            report.add('note', 'classes without a training object', category['name'])

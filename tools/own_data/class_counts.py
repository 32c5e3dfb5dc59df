"""How much there is of each class, and names that may be one class."""

import difflib
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations

from .coco import Part
from .report import Report

RARE = 0.1  # of the objects of a class: a class of fewer with nearly its name is noted
LONG = 6  # letters, of which one other is noted for any number of objects
ALIKE = 0.85  # of the letters, by difflib
MOST_NAMES = 200  # that are compared with each other


def list_classes(parts: Sequence[Part], report: Report) -> None:
    """Give the report the number of objects or images of each class, and note similar names."""
    unit = 'objects' if 'annotations' in parts[0].coco else 'images'
    counts = [_count(part) for part in parts]
    total: Counter[str] = Counter()
    for found in counts:
        total.update(found)
    names = [category['name'] for category in parts[0].coco.get('categories', ())] or sorted(total)
    for index, name in enumerate(names):
        numbers = []
        for kind, found in zip(('training', 'validation'), counts, strict=False):
            numbers.append(f'{found[name]} {kind} {unit}')
        report.classes.append(f'{index:7} {name}: {", ".join(numbers)}')
    for name, other in similar_names({name: total[name] for name in names}):
        where = f'{name} ({total[name]} {unit}), {other} ({total[other]} {unit})'
        report.add('note', 'classes with nearly equal names: are they one?', where)


def _count(part: Part) -> Counter[str]:
    if 'annotations' not in part.coco:
        return Counter(image['label'] for image in part.coco['images'])
    names = {category['id']: category['name'] for category in part.coco['categories']}
    # A category that is not there is refused.
    return Counter(names.get(one['category_id'], '') for one in part.coco['annotations'])


def similar_names(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    """Pairs of names that differ in case, spaces and signs, or in a letter or two.

    Of pairs that differ in letters, one is long or rare beside the other. The rarer is first.
    """
    if len(counts) > MOST_NAMES:
        return []
    pairs = []
    for pair in combinations(counts, 2):
        rare, common = sorted(pair, key=lambda name: counts[name])
        one, other = (_letters(name) for name in (rare, common))
        if one == other:
            pairs.append((rare, common))
        elif _is_near(one, other):
            is_rare = counts[rare] <= RARE * counts[common]
            if is_rare or (min(len(one), len(other)) >= LONG and _differ_by_one(one, other)):
                pairs.append((rare, common))
    return pairs


def _letters(name: str) -> str:
    """A name without case, spaces and signs, each letter with its accent as one character."""
    return re.sub(r'[\W_]', '', unicodedata.normalize('NFC', name).casefold())


def _is_near(one: str, other: str) -> bool:
    """True for words that are nearly equal; numbers must be equal.

    Of three letters, as WBC and RBC, one other makes another word.
    """
    if re.sub(r'\D', '', one) != re.sub(r'\D', '', other) or min(len(one), len(other)) < 4:
        return False
    ratio = difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()
    return ratio >= ALIKE or _differ_by_one(one, other)


def _differ_by_one(one: str, other: str) -> bool:
    """True if one letter is another, missing or too many."""
    blocks = difflib.SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks()
    longer = max(len(one), len(other))
    return longer - sum(block.size for block in blocks) <= 1

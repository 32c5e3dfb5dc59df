"""Rules for the ids by which objects refer to images and categories."""

from .coco import Coco, Part
from .report import Fault, Report


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


def read_id(entry: Coco, key: str, entries: str) -> int | str:
    """An id of a COCO entry; 1.0, as pandas writes it, is 1.

    ``Fault`` if there is none.

    Args:
        entry: Image, annotation or category.
        key: ``id``, ``image_id`` or ``category_id``.
        entries: Of what, for the message.
    """
    value = entry.get(key)
    if value is None:
        raise Fault('refused', f'{entries} without {key}')
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        reason = f'{entries} whose {key} is neither a whole number nor text'
        raise Fault('refused', reason, repr(value))
    return value


def _find(
    one: Coco,
    key: str,
    known: dict[int | str, int],
    by_text: dict[str, int],
    report: Report,
    where: str,
) -> int:
    """The id that an annotation refers to by ``image_id`` or ``category_id``."""
    value = read_id(one, key, 'annotations')
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

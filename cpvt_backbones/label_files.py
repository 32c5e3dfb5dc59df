"""Class names stored beside label files, which contain only numbers.

Labels in lists and class maps are numbers. ``classes.json`` in the same folder has the names, in
the order of the numbers, and digests of the lists. A training compares its own classes with them,
so that labels of one config are not trained with the names of another.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cpvt_backbones.errors import InputError

CLASSES = 'classes.json'


def describe_labels(classes: Sequence[str], lists: Iterable[Path] = ()) -> dict[str, Any]:
    """Return the content of the ``classes.json`` of a folder.

    Args:
        classes: Names of the labels 0, 1, 2, ...
        lists: Files of the folder whose content belongs to these names.
    """
    digests = {path.name: _digest(path) for path in lists}
    return dict(classes=[*classes], lists=digests)


def read_classes(labels: Path) -> list[str] | None:
    """Return the class names of a list, or of a folder of class maps.

    Args:
        labels: The list or the folder.

    Returns:
        The names; ``None`` without ``classes.json``, as for labels of other programs.

    Raises:
        InputError: The list has changed since its ``classes.json`` was written, or that file is
            damaged.
    """
    file = labels / CLASSES if labels.is_dir() else labels.with_name(CLASSES)
    if not file.is_file():
        return None
    try:
        content = json.loads(file.read_bytes())
        classes, lists = [*map(str, content['classes'])], content['lists']
        known = labels.is_dir() or labels.name in lists
        same = labels.is_dir() or not known or lists[labels.name] == _digest(labels)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InputError(f'{file} is damaged ({error!r:.200}): write the config again') from None
    if not same:
        raise InputError(
            f'{labels} was changed after {file} was written: write the config again, or delete'
            f' {CLASSES} if the numbers are still those of its classes'
        )
    return classes if known else None


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

"""Names of the classes that weights were trained for, and comparison with those of a config.

An index of a class means nothing without its name: a checkpoint of (a, b, c) under a config of (c,
a, b) has the right shapes and is scored on the wrong classes. Names in another order are refused,
not permuted: how the rows of a layer depend on the class is a head's own business (anchors,
background, boxes of each class), and a wrong guess is silent.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from cpvt_backbones.weights import FOLDER, shipped_weights

# What to do about other names, or another order.
SAME_CLASSES = (
    "give metainfo.classes of the config's data sets the checkpoint's names, in its order"
)
_SHOWN = 12


def stored_meta(content: Mapping[str, Any], checkpoint: str | PathLike[str]) -> dict[str, Any]:
    """``meta`` of a checkpoint; of shipped weights, by name or file, the entry of the index."""
    meta = content.get('meta')
    if isinstance(meta, dict) and meta:
        return meta
    for shipped in shipped_weights().values():
        own = Path(FOLDER, f'{shipped.name}.safetensors')
        if shipped.dataset_meta and (str(checkpoint) == shipped.name or Path(checkpoint) == own):
            return dict(dataset_meta=shipped.dataset_meta)
    return {}


def classes_of(meta: Any) -> list[str] | None:
    """Names of the classes that a checkpoint or a data set has.

    Args:
        meta: ``meta`` of a checkpoint, or ``metainfo`` of a data set.

    Returns:
        The names in the order of their labels; ``None`` if there are none.

    Examples:
        >>> from cpvt_backbones.checkpoints import classes_of
        >>> meta = dict(dataset_meta=dict(classes=('cat', 'dog')), epoch=3)
        >>> classes_of(meta), classes_of({})
        (['cat', 'dog'], None)
    """
    if not isinstance(meta, Mapping):
        return None
    for source in (meta.get('dataset_meta'), meta):
        for key in ('classes', 'CLASSES'):
            names = source.get(key) if isinstance(source, Mapping) else None
            if isinstance(names, Sequence) and names:
                return [str(name) for name in names]
    return None


def class_difference(theirs: list[str] | None, ours: list[str] | None) -> str:
    """A sentence with both lists if the names or their order differ.

    '' if not, or if either is unknown.
    """
    if theirs is None or ours is None or theirs == ours:
        return ''
    kind = 'other classes'
    if sorted(theirs) == sorted(ours):
        kind = 'the same classes in another order'
    return f'it has {kind}: {_shown(theirs)}, the config has {_shown(ours)}'


def _shown(names: list[str]) -> str:
    more = f', ... ({len(names)} in all)' if len(names) > _SHOWN else ''
    return f'({", ".join(names[:_SHOWN])}{more})'

"""Class names of weights, and their comparison with those of a config.

A class index means nothing without its name: a checkpoint for (a, b, c) fits a config for (c, a, b)
by its shapes, but is scored on the wrong classes. Names in another order are refused, not permuted.
Only a training that starts from weights keeps rows by name, in layers whose rows are known
(:func:`keep_rows`).
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from cpvt_backbones.weights import FOLDER, shipped_weights

# What to do about other names, or another order.
SAME_CLASSES = (
    "give metainfo.classes of the config's data sets the checkpoint's names, in its order"
)
_SHOWN = 12


def stored_meta(content: Mapping[str, Any], checkpoint: str | PathLike[str]) -> dict[str, Any]:
    """Return ``meta`` of a checkpoint, or the index entry of shipped weights (name or file)."""
    meta = content.get('meta')
    if isinstance(meta, dict) and meta:
        return meta
    for shipped in shipped_weights().values():
        own = Path(FOLDER, f'{shipped.name}.safetensors')
        if shipped.dataset_meta and (str(checkpoint) == shipped.name or Path(checkpoint) == own):
            return dict(dataset_meta=shipped.dataset_meta)
    return {}


def classes_of(meta: Any) -> list[str] | None:
    """Return the class names of a checkpoint or a data set.

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
    """Describe both lists if the names or their order differ; ``''`` if not, or if unknown."""
    if theirs is None or ours is None or theirs == ours:
        return ''
    kind = 'other classes'
    if sorted(theirs) == sorted(ours):
        kind = 'the same classes in another order'
    return f'it has {kind}: {_shown(theirs)}, the config has {_shown(ours)}'


def _shown(names: list[str]) -> str:
    more = f', ... ({len(names)} in all)' if len(names) > _SHOWN else ''
    return f'({", ".join(names[:_SHOWN])}{more})'


def keep_rows(
    key: str, own: Tensor, stored: Tensor, ours: Sequence[str], theirs: Sequence[str]
) -> list[str]:
    """Copy the rows of classes with the same name into the last layer of a model.

    Args:
        key: Name of the weight or bias.
        own: The model's tensor (rows, ...), or (1, rows, C) for Segmenter; changed in place.
        stored: The checkpoint's tensor.
        ours: The model's classes.
        theirs: The checkpoint's classes.

    Returns:
        Names of the classes that keep their rows; empty if the layout of the layer is unknown.
    """
    layer = key.rpartition('.')[0].rpartition('.')[2]
    own, stored = class_rows(key, own), class_rows(key, stored)
    new, old = (_rows(layer, len(own), len(ours)), _rows(layer, len(stored), len(theirs)))
    if not new or not old or len(new[0]) != len(old[0]):
        return []
    index_of = {name: index for index, name in enumerate(theirs)}
    kept = [name for name in ours if name in index_of]
    for index, name in enumerate(ours):
        if name in index_of:
            own[new[index]] = stored[old[index_of[name]]].to(own)
    has_background = len(own) == len(ours) + 1 and len(stored) == len(theirs) + 1
    if has_background:
        own[-1] = stored[-1].to(own)
    return kept


def class_rows(key: str, value: Tensor) -> Tensor:
    """Return a view of a class layer with rows first; Segmenter's tokens are (1, rows, C)."""
    return value[0] if key.endswith('cls_emb') else value


def _rows(layer: str, rows: int, classes: int) -> list[list[int]]:
    """Find the rows of each class in a layer of a toolbox's head; empty if unknown."""
    if 'reg' in layer:  # four offsets for each class
        known = rows == 4 * classes
        return [list(range(4 * c, 4 * c + 4)) for c in range(classes)] if known else []
    if rows in (classes, classes + 1):  # the background is the last
        return [[c] for c in range(classes)]
    if 'cls' in layer and rows % classes == 0:  # the classes of each anchor
        return [list(range(c, rows, classes)) for c in range(classes)]
    return []

"""``_base_ = 'cpvt_backbones::retinanet/...'``: this package's configs, named from somebody else's."""

from collections.abc import Iterator
from typing import Any, TypeVar

from mmengine.config import utils

SCOPE = 'cpvt_backbones'
Tree = TypeVar('Tree')


def register_configs() -> None:
    """Let mmengine find the configs installed with this package under ``cpvt_backbones::``."""
    utils.MODULE2PACKAGE[SCOPE] = SCOPE


def without_own_scope(cfg: Tree) -> Tree:
    """Remove, in place, the scope that mmengine writes into what it read through ``cpvt_backbones::``.

    The scope says in which toolbox's registry a type is looked up. This package's configs name the types of mmdet,
    mmseg and mmpretrain, so the scope to use is the config's ``default_scope``.

    Args:
        cfg: A config.

    Returns:
        The same config.
    """
    for node in _dicts(cfg):
        if node.get('_scope_') == SCOPE:
            del node['_scope_']
    return cfg


def _dicts(node: Any) -> Iterator[dict[str, Any]]:
    if hasattr(node, '_cfg_dict'):
        node = node._cfg_dict
    if isinstance(node, dict):
        yield node
        # `.values()` of a ConfigDict would build lazy objects anew; the plain ones are the nodes themselves.
        for value in dict.values(node):
            yield from _dicts(value)
    elif isinstance(node, (list, tuple)):
        for value in node:
            yield from _dicts(value)

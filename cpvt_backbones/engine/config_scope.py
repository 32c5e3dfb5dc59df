"""Names in a user's config: ``_base_ = 'cpvt_backbones::retinanet/...'``, and modules under their old names."""

import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from typing import Any, TypeVar

from mmengine.config import utils

SCOPE = 'cpvt_backbones'
Tree = TypeVar('Tree')


def register_configs() -> None:
    """Let mmengine find the configs installed with this package under ``cpvt_backbones::``."""
    utils.MODULE2PACKAGE[SCOPE] = SCOPE


def module_moved(old: str, new: str) -> None:
    """Let the old name of a module mean the new one, with a ``DeprecationWarning``."""
    warnings.warn(f'{old} is now {new}', DeprecationWarning, stacklevel=3)
    sys.modules[old] = import_module(new)


def without_own_scope(cfg: Tree) -> Tree:
    """Remove, in place, the ``_scope_`` that mmengine adds to configs read through ``cpvt_backbones::``.

    It would name the registry for their types, which are those of the config's ``default_scope``.
    """
    for node in dicts_of(cfg):
        if node.get('_scope_') == SCOPE:
            del node['_scope_']
    return cfg


def dicts_of(node: Any) -> Iterator[dict[str, Any]]:
    """All dicts of a config, outer ones first."""
    node = getattr(node, '_cfg_dict', node)
    children: Any = node if isinstance(node, (list, tuple)) else ()
    if isinstance(node, dict):
        yield node
        children = dict.values(node)  # the nodes; ConfigDict.values() builds lazy objects
    for child in children:
        yield from dicts_of(child)

"""The dicts of a config, and modules under their old names."""

import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from typing import Any


def module_moved(old: str, new: str) -> None:
    """Let the old name of a module mean the new one, with a ``DeprecationWarning``."""
    warnings.warn(f'{old} is now {new}', DeprecationWarning, stacklevel=3)
    sys.modules[old] = import_module(new)


def dicts_of(node: Any) -> Iterator[dict[str, Any]]:
    """All dicts of a config, outer ones first."""
    node = getattr(node, '_cfg_dict', node)
    children: Any = node if isinstance(node, (list, tuple)) else ()
    if isinstance(node, dict):
        yield node
        children = dict.values(node)  # the nodes; ConfigDict.values() builds lazy objects
    for child in children:
        yield from dicts_of(child)

"""The dicts of a config."""

from collections.abc import Iterator
from typing import Any


def dicts_of(node: Any) -> Iterator[dict[str, Any]]:
    """All dicts of a config, outer ones first."""
    node = getattr(node, '_cfg_dict', node)
    children: Any = node if isinstance(node, (list, tuple)) else ()
    if isinstance(node, dict):
        yield node
        children = dict.values(node)  # the nodes; ConfigDict.values() builds lazy objects
    for child in children:
        yield from dicts_of(child)

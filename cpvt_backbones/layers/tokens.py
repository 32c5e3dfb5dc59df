"""Layouts of a feature map, padding, and grouping by shape."""

from collections.abc import Hashable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

Grid = tuple[int, int]
"""Height and width of a map, in tokens."""


def tokens_to_map(tokens: Tensor, grid: Grid) -> Tensor:
    """(B, H * W, C) tokens to a (B, C, H, W) map.

    A view, already ``channels_last`` when the tokens are contiguous.
    """
    # Not transpose(1, 2).unflatten(2, grid): for one image its strides are not those of
    # channels_last, and a convolution copies the map twice.
    return tokens.unflatten(1, grid).permute(0, 3, 1, 2)


def map_to_tokens(feature_map: Tensor) -> Tensor:
    """(B, C, H, W) map to (B, H * W, C) tokens.

    A view, contiguous when the map is ``channels_last``.
    """
    return feature_map.permute(0, 2, 3, 1).flatten(1, 2)


def prepend_tokens(prefix_tokens: Tensor | None, tokens: Tensor) -> Tensor:
    """(B, P, C) or ``None``, and (B, N, C), to (B, [P +] N, C)."""
    return tokens if prefix_tokens is None else torch.cat((prefix_tokens, tokens), dim=1)


def ceil_div(size: int, parts: int) -> int:
    """``ceil(size / parts)`` for a size >= 0.

    Not ``-(-size // parts)``: ONNX rounds a negative quotient towards 0.
    """
    return (size + parts - 1) // parts


def is_exporting() -> bool:
    """``True`` while one graph for every size is recorded: no branch may depend on a size."""
    # torch < 2.7 does not tell exporting from compiling.
    return getattr(torch.compiler, 'is_exporting', torch.compiler.is_compiling)()


def is_padded(padding: tuple[int, int]) -> bool:
    """``True`` if there is anything to pad, and always when compiling: each branch would be one
    more compilation.
    """
    return torch.compiler.is_compiling() or any(padding)


def pad_to_multiple(feature_map: Tensor, multiple: int, *, value: float = 0.0) -> Tensor:
    """(B, C, H, W) padded on the right and at the bottom until ``multiple`` divides both sides."""
    height, width = feature_map.shape[2:]
    padding = (
        ceil_div(height, multiple) * multiple - height,
        ceil_div(width, multiple) * multiple - width,
    )
    if is_padded(padding):
        feature_map = F.pad(feature_map, (0, padding[1], 0, padding[0]), value=value)
    return feature_map


def group_by_shape(shapes: Iterable[Hashable]) -> list[list[int]]:
    """Indices of equal shapes, in order of first appearance."""
    groups: dict[Hashable, list[int]] = {}
    for index, shape in enumerate(shapes):
        groups.setdefault(shape, []).append(index)
    return list(groups.values())

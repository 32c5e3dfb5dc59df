"""The two layouts of a feature map, and the free way between them."""

from torch import Tensor

Grid = tuple[int, int]
"""Height and width of a map, in tokens."""


def tokens_to_map(tokens: Tensor, grid: Grid) -> Tensor:
    """(B, H * W, C) tokens to a (B, C, H, W) map; a view, already ``channels_last`` when the tokens are contiguous."""
    return tokens.transpose(1, 2).unflatten(2, grid)


def map_to_tokens(feature_map: Tensor) -> Tensor:
    """(B, C, H, W) map to (B, H * W, C) tokens; a view, contiguous when the map is ``channels_last``."""
    return feature_map.flatten(2).transpose(1, 2)

"""Attention weights of one layer of a model; all other layers keep fused attention."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from cpvt_backbones.layers import Attention, Grid, SpatialReductionAttention, WindowAttention

from .complexity import explicit_attention

_SOFTMAX = (torch.ops.aten._softmax, torch.ops.aten._safe_softmax)
_OWN = (Attention, SpatialReductionAttention)
_LARGEST_CELL = 64


@dataclass(frozen=True)
class AttentionWeights:
    """Attention weights of one layer.

    Attributes:
        weights: (B, heads, P + N, P + S): weight of each key for each query; rows sum to 1. With windows S = N, and
            keys of other windows have weight 0.
        num_prefix: P, class and distillation tokens in front of queries and keys.
        grid: (h, w) of the queries, in tokens; h * w = N.
        key_grid: (h, w) of the keys; smaller than ``grid`` with spatial reduction.
    """

    weights: Tensor
    num_prefix: int
    grid: Grid
    key_grid: Grid


def attention_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Attention layers of a model by name: this package's, and innermost modules of others named Attention or MSA."""
    named = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _OWN) or any(word in type(module).__name__ for word in ('Attention', 'MSA'))
    }
    return {
        name: module
        for name, module in named.items()
        if isinstance(module, _OWN) or not any(other.startswith(f'{name}.') for other in named)
    }


@torch.no_grad()
def attention_weights(model: nn.Module, images: Tensor, layer: str) -> AttentionWeights:
    """Run a model and record the weights of one attention layer.

    The recording takes 2 * 4 * heads * N * S bytes an image.

    Args:
        model: The model; called with the images.
        images: (B, 3, H, W), normalised.
        layer: A name from :func:`attention_layers`.

    Raises:
        ValueError: An unknown layer; or a layer of another package with windows, or without a grid of tokens.
    """
    layers = attention_layers(model)
    if layer not in layers:
        raise ValueError(f'layer must be one of {list(layers)}, got {layer!r}')
    module = layers[layer]
    with _recording(module) as record:
        model(images)
    if not record.weights:
        raise ValueError(f'layer must be one that computes a softmax, got {layer!r} ({type(module).__name__})')
    if isinstance(module, _OWN):
        grid, num_prefix = record.arguments['grid'], record.arguments['num_prefix']
        if isinstance(module, WindowAttention) and max(grid) > module.window_size:
            weights = _unfold_windows(record.weights, grid, num_prefix, module.window_size, images.shape[0])
            return AttentionWeights(weights, num_prefix, grid, grid)
        ratio = module.sr_ratio if isinstance(module, SpatialReductionAttention) else 1
        key_grid = (-(-grid[0] // ratio), -(-grid[1] // ratio))
        return AttentionWeights(record.weights[0], num_prefix, grid, key_grid)
    return _of_another_package(record.weights[0], images, f'{layer!r} ({type(module).__name__})')


def map_of_query(found: AttentionWeights, query: int) -> Tensor:
    """Attention of one query over the grid of keys, (B, heads, h, w), without the prefix tokens.

    Args:
        found: The layer's weights.
        query: Index among the queries, prefix tokens included: 0 is the class token if there is one.
    """
    return found.weights[:, :, query, -found.key_grid[0] * found.key_grid[1] :].unflatten(-1, found.key_grid)


def query_at(found: AttentionWeights, *, x: int, y: int, height: int, width: int) -> int:
    """Index of the query whose cell contains the pixel (x, y) of a ``height`` x ``width`` image.

    Raises:
        ValueError: A pixel outside the image.
    """
    if not (0 <= x < width and 0 <= y < height):
        raise ValueError(f'query must lie within {width} x {height} px, got {x}, {y}')
    cell = cell_side(found.grid, height=height, width=width)
    return found.num_prefix + (y // cell) * found.grid[1] + x // cell


def cell_side(grid: Grid, *, height: int, width: int) -> int:
    """Side in px of a cell of a map over an image; the last row and column may cover less.

    Of several possible sides, the one divisible by the largest power of two.

    Raises:
        ValueError: No square cell gives this grid.
    """
    sides = [
        side
        for side in range(1, 2 * max(height, width) + 1)
        if (-(-height // side), -(-width // side)) == tuple(grid) or (height // side, width // side) == tuple(grid)
    ]
    if not sides:
        raise ValueError(f'grid must cover the {height} x {width} px image with square cells, got {tuple(grid)}')
    return max(sides, key=lambda side: side & -side)


def mean_matrix(found: AttentionWeights, *, largest: int = 1024) -> Tensor:
    """Mean attention matrix over images and heads, patch tokens only as in the CPVT paper's figure.

    Args:
        found: The layer's weights.
        largest: Maximum side; longer sides are average-pooled.

    Returns:
        (queries, keys).
    """
    p = found.num_prefix
    matrix = found.weights[:, :, p:, p:].mean(dim=(0, 1))
    runs = [-(-side // largest) for side in matrix.shape]
    if max(runs) == 1:
        return matrix
    return F.avg_pool2d(matrix[None], runs, ceil_mode=True)[0]


class _Record(TorchDispatchMode):
    """Records softmax outputs and the layer's arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[Tensor] = []
        self.arguments: dict[str, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in _SOFTMAX:
            self.weights.append(result)
        return result


@contextmanager
def _recording(module: nn.Module) -> Iterator[_Record]:
    """Context in which the module computes attention unfused and its softmax outputs are recorded."""
    record = _Record()
    forward = module.forward

    def recorded(*args: Any, **kwargs: Any) -> Any:
        record.arguments = dict(grid=args[1], **kwargs) if isinstance(module, _OWN) else {}
        with explicit_attention(), record:
            return forward(*args, **kwargs)

    module.forward = recorded
    try:
        yield record
    finally:
        del module.forward


def _unfold_windows(seen: list[Tensor], grid: Grid, num_prefix: int, window_size: int, batch: int) -> Tensor:
    """Scatter weights of each window (B * windows, heads, h * w, P + h * w) into (B, heads, P + N, P + N).

    With prefix tokens the first recorded softmax is theirs: (B, heads, P, P + windows * h * w).
    """
    window = (min(window_size, grid[0]), min(window_size, grid[1]))
    padding = (-grid[0] % window[0], -grid[1] % window[1])
    places = torch.arange(grid[0] * grid[1], device=seen[-1].device).view(grid)
    places = F.pad(places, (0, padding[1], 0, padding[0]), value=-1)  # -1: no token
    places = places.unflatten(1, (-1, window[1])).unflatten(0, (-1, window[0])).transpose(1, 2).flatten(2).flatten(0, 1)
    weights = seen[-1].unflatten(0, (batch, -1))  # (B, windows, heads, h * w, P + h * w)
    tokens = num_prefix + grid[0] * grid[1]
    whole = weights.new_zeros(batch, weights.shape[2], tokens, tokens)
    beside = torch.arange(num_prefix, device=places.device)
    if num_prefix:
        everywhere = torch.cat((beside, num_prefix + places.flatten()))
        real = torch.cat((beside >= 0, places.flatten() >= 0))
        whole[:, :, :num_prefix, everywhere[real]] = seen[0][..., real]
    for index, place in enumerate(places):
        queries = num_prefix + place[place >= 0]
        keys = torch.cat((beside, queries))
        real = torch.cat((beside >= 0, place >= 0))
        own = weights[:, index][:, :, place >= 0][..., real]
        whole[:, :, queries[:, None], keys[None]] = own
    return whole


def _of_another_package(weights: Tensor, images: Tensor, what: str) -> AttentionWeights:
    """Infer the grids of queries and keys of a layer of another package."""
    batch, height, width = images.shape[0], images.shape[2], images.shape[3]
    if weights.dim() == 3:  # torch.nn.MultiheadAttention folds the heads into the batch
        weights = weights.unflatten(0, (batch, -1))
    if weights.dim() != 4 or weights.shape[0] != batch:
        raise ValueError(f'layer must attend over whole images, got {what} with weights {tuple(weights.shape)}')
    queries, keys = weights.shape[2:]
    for num_prefix in range(3):
        for cell in range(1, _LARGEST_CELL + 1):
            for grid in {(-(-height // cell), -(-width // cell)), (height // cell, width // cell)}:
                if grid[0] * grid[1] != queries - num_prefix:
                    continue
                for ratio in range(1, max(grid) + 1):
                    for key_grid in {
                        (-(-grid[0] // ratio), -(-grid[1] // ratio)),
                        (grid[0] // ratio, grid[1] // ratio),
                    }:
                        if key_grid[0] * key_grid[1] == keys - num_prefix:
                            return AttentionWeights(weights, num_prefix, grid, key_grid)
    raise ValueError(f'layer must have a grid of tokens, got {what} with {queries} queries and {keys} keys')

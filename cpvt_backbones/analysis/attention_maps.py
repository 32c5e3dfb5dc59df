"""Attention weights of one layer of a model; all other layers keep fused attention."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from cpvt_backbones.errors import InputError
from cpvt_backbones.layers import Attention, Grid, SpatialReductionAttention, WindowAttention
from cpvt_backbones.layers.axial_bias import whole_bias

from .complexity import explicit_attention

# `_safe_softmax` is there from torch 2.5 on.
_SOFTMAX = tuple(
    getattr(torch.ops.aten, name)
    for name in ('_softmax', '_safe_softmax')
    if hasattr(torch.ops.aten, name)
)
_OWN = (Attention, SpatialReductionAttention)
_LARGEST_CELL = 64


@dataclass(frozen=True)
class AttentionWeights:
    """Attention weights of one layer, from :func:`attention_weights`.

    With windows, S = N, and keys of other windows have weight 0. In a model of
    ``mask_window_padding=False``, the weights of padding are left out, so rows of windows with
    padding sum to less than 1.

    Attributes:
        weights: (B, heads, P + N, P + S); each row sums to 1.
        num_prefix: P, the number of class, distillation and register tokens in front of queries and
            keys.
        grid: (h, w) of the N queries.
        key_grid: (h, w) of the S keys; smaller than ``grid`` with spatial reduction.
    """

    weights: Tensor
    num_prefix: int
    grid: Grid
    key_grid: Grid


def attention_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Attention layers of a model, by name.

    These are the layers of this package, and the innermost modules of other packages with Attention
    or MSA in the name of their class.

    Examples:
        >>> from cpvt_backbones import CPVT
        >>> from cpvt_backbones.analysis.attention_maps import attention_layers
        >>> list(attention_layers(CPVT(arch='tiny')))[:2]
        ['blocks.0.attn', 'blocks.1.attn']
    """
    named = {
        name: one
        for name, one in model.named_modules()
        if re.search('Attention|MSA', type(one).__name__)
    }
    outer = {name for name in named if any(other.startswith(f'{name}.') for other in named)}
    return {name: one for name, one in named.items() if isinstance(one, _OWN) or name not in outer}


@torch.no_grad()
def attention_weights(model: nn.Module, images: Tensor, layer: str) -> AttentionWeights:
    """Run a model and record the attention weights of one layer. The other layers keep fused
    attention.

    The recording takes 8 * heads * N * S bytes for each image, with N queries and S keys.

    Args:
        model: Any model, in evaluation mode.
        images: (B, 3, H, W), normalised.
        layer: Name of the layer, see :func:`attention_layers`.

    Raises:
        ValueError: The layer is unknown; or it is a layer of another package with windows or
            without a grid of tokens.

    Examples:
        >>> import torch
        >>> from cpvt_backbones import CPVT
        >>> from cpvt_backbones.analysis.attention_maps import (
        ...     attention_layers, attention_weights, map_of_query, query_at
        ... )
        >>> model = CPVT(arch='tiny').eval()
        >>> list(attention_layers(model))[-1]
        'blocks.11.attn'
        >>> images = torch.zeros(1, 3, 64, 96)
        >>> found = attention_weights(model, images, 'blocks.11.attn')
        >>> found.grid, found.num_prefix, found.weights.shape
        ((4, 6), 1, torch.Size([1, 3, 25, 25]))
        >>> query = query_at(found, x=40, y=20, height=64, width=96)
        >>> map_of_query(found, query).shape  # where this pixel looks
        torch.Size([1, 3, 4, 6])
    """
    layers = attention_layers(model)
    if layer not in layers:
        raise InputError(f'layer must be one of {list(layers)}, got {layer!r}')
    module = layers[layer]
    with _recording(module) as record:
        model(images)
    if not record.weights:
        raise InputError(
            f'layer must be one that computes a softmax, got {layer!r} ({type(module).__name__})'
        )
    if not isinstance(module, _OWN):
        return _of_another_package(
            record.weights[0], images, f'{layer!r} ({type(module).__name__})'
        )
    grid, num_prefix = record.arguments['grid'], record.arguments['num_prefix']
    window = module.side_of(grid) if isinstance(module, WindowAttention) else None
    if window is not None:
        weights = _unfold_windows(record.weights, grid, num_prefix, window, images.shape[0])
        return AttentionWeights(weights, num_prefix, grid, grid)
    ratio = getattr(module, 'sr_ratio', 1)
    return AttentionWeights(
        record.weights[0], num_prefix, grid, (-(-grid[0] // ratio), -(-grid[1] // ratio))
    )


def map_of_query(found: AttentionWeights, query: int) -> Tensor:
    """Attention of one query over the grid of keys, (B, heads, h, w), without the prefix tokens.

    Args:
        found: From :func:`attention_weights`.
        query: Index of the query, prefix tokens included: 0 is the class token if there is one. See
            :func:`query_at` for that of a pixel.
    """
    return found.weights[:, :, query, found.num_prefix :].unflatten(-1, found.key_grid)


def query_at(found: AttentionWeights, *, x: int, y: int, height: int, width: int) -> int:
    """Index of the query whose cell has a pixel.

    Args:
        found: From :func:`attention_weights`.
        x: Column of the pixel.
        y: Row of the pixel.
        height: Of the image, in px.
        width: Of the image, in px.

    Raises:
        ValueError: The pixel is outside the image.
    """
    if not (0 <= x < width and 0 <= y < height):
        raise InputError(f'query must lie within {width} x {height} px, got {x}, {y}')
    cell = cell_side(found.grid, height=height, width=width)
    return found.num_prefix + (y // cell) * found.grid[1] + x // cell


def cell_side(grid: Grid, *, height: int, width: int) -> int:
    """Side in px of a cell of a map over an image; the last row and column may cover less.

    If several sides give the grid, it is the one divisible by the largest power of two.

    Args:
        grid: (h, w) of the map.
        height: Of the image, in px.
        width: Of the image, in px.

    Raises:
        ValueError: No square cell gives the grid.

    Examples:
        >>> from cpvt_backbones.analysis.attention_maps import cell_side
        >>> cell_side((4, 5), height=50, width=70)
        16
    """
    sides = [
        side
        for side, found in _grids(height, width, 2 * max(height, width))
        if found == tuple(grid)
    ]
    if not sides:
        raise InputError(
            f'grid must cover the {height} x {width} px image with square cells, got {tuple(grid)}'
        )
    return max(sides, key=lambda side: side & -side)


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
    """Context in which the module computes attention unfused and its softmax outputs are
    recorded.
    """
    record = _Record()
    forward = module.forward

    def recorded(*args: Any, **kwargs: Any) -> Any:
        record.arguments = dict(grid=args[1], **kwargs) if isinstance(module, _OWN) else {}
        with explicit_attention(), whole_bias(), record:
            return forward(*args, **kwargs)

    module.forward = recorded
    try:
        yield record
    finally:
        del module.forward


def _unfold_windows(
    seen: list[Tensor], grid: Grid, num_prefix: int, window: Grid, batch: int
) -> Tensor:
    """Scatter weights of each window (B * windows, heads, h * w, P + h * w) into (B, heads, P + N,
    P + N).

    With prefix tokens the first recorded softmax is theirs: (B, heads, P, P + windows * h * w).
    """
    count = num_prefix + grid[0] * grid[1]
    tokens = torch.arange(num_prefix, count, device=seen[-1].device).view(grid)
    # Padding gets the index behind the last token.
    tokens = F.pad(tokens, (0, -grid[1] % window[1], 0, -grid[0] % window[0]), value=count)
    tokens = (
        tokens.unflatten(1, (-1, window[1]))
        .unflatten(0, (-1, window[0]))
        .transpose(1, 2)
        .flatten(2)
        .flatten(0, 1)
    )
    prefix = torch.arange(num_prefix, device=tokens.device)
    weights = seen[-1].unflatten(0, (batch, -1))  # (B, windows, heads, h * w, P + h * w)
    whole = weights.new_zeros(batch, weights.shape[2], count + 1, count + 1)
    if num_prefix:
        whole[:, :, :num_prefix, torch.cat((prefix, tokens.flatten()))] = seen[0]
    for index, queries in enumerate(tokens):
        whole[:, :, queries[:, None], torch.cat((prefix, queries))] = weights[:, index]
    return whole[:, :, :count, :count]


def _of_another_package(weights: Tensor, images: Tensor, what: str) -> AttentionWeights:
    """Infer the grids of queries and keys of a layer of another package."""
    batch, _, height, width = images.shape
    if weights.dim() == 3:  # torch.nn.MultiheadAttention folds the heads into the batch
        weights = weights.unflatten(0, (batch, -1))
    if weights.dim() != 4 or weights.shape[0] != batch:
        raise InputError(
            f'layer must attend over whole images, got {what} with weights {tuple(weights.shape)}'
        )
    queries, keys = weights.shape[2:]
    for num_prefix in range(3):
        for _, grid in _grids(height, width, _LARGEST_CELL, cells=queries - num_prefix):
            for _, key_grid in _grids(*grid, max(grid), cells=keys - num_prefix):
                return AttentionWeights(weights, num_prefix, grid, key_grid)
    raise InputError(
        f'layer must have a grid of tokens, got {what} with {queries} queries and {keys} keys'
    )


def _grids(
    height: int, width: int, largest: int, *, cells: int | None = None
) -> Iterator[tuple[int, Grid]]:
    """Sides up to ``largest`` of square cells, and the grids that they give with padding and with
    cropping.

    Only grids with a given number of cells, if any.
    """
    for side in range(1, largest + 1):
        for grid in ((-(-height // side), -(-width // side)), (height // side, width // side)):
            if cells in (None, grid[0] * grid[1]):
                yield side, grid

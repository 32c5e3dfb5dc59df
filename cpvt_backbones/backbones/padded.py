"""Features of images that were padded to the size of their batch, computed without the padding."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cpvt_backbones.layers.checks import is_sequence
from cpvt_backbones.layers.tokens import Grid, ceil_div, group_by_shape

from .archs import resolve_size


def resolve_valid_sizes(
    valid_sizes: Any, batch: int, height: int, width: int
) -> list[tuple[int, int]]:
    """A (height, width) in pixels per image of a batch, none larger than ``height`` x ``width``."""
    if not is_sequence(valid_sizes) or len(valid_sizes) != batch:
        raise ValueError(
            f'valid_sizes must be a (height, width) for each of {batch} images, got {valid_sizes!r}'
        )
    sizes = []
    for size in valid_sizes:
        sizes.append(resolve_size('valid_sizes', tuple(size) if is_sequence(size) else None))
    for index, (h, w) in enumerate(sizes):
        if h > height or w > width:
            most = f'{height} x {width}, as the batch'
            raise ValueError(f'valid_sizes must be at most {most}, got {h} x {w} for image {index}')
    return sizes


def features_of_sizes(
    features: Callable[[Tensor], tuple[Any, ...]],
    images: Tensor,
    sizes: Sequence[Grid],
    strides: Sequence[int] | None,
) -> tuple[Any, ...]:
    """Features of padded images. Images of one size are computed together.

    ``strides`` are those of outputs that are maps, and ``None`` for vectors.
    """
    groups = group_by_shape(sizes)
    order = [image for group in groups for image in group]
    inverse = sorted(range(len(order)), key=order.__getitem__)

    def pad(feature_map: Tensor, stride: int, size: Grid) -> Tensor:
        bottom = ceil_div(images.shape[2], stride) - ceil_div(size[0], stride)
        right = ceil_div(images.shape[3], stride) - ceil_div(size[1], stride)
        return F.pad(feature_map, (0, right, 0, bottom))

    results = []
    for group in groups:
        size = sizes[group[0]]
        outputs = features(images[group, :, : size[0], : size[1]])
        if strides is not None:
            pairs = zip(outputs, strides, strict=True)
            outputs = tuple(pad(output, stride, size) for output, stride in pairs)
        results.append(outputs)

    def merge(parts: Sequence[Any]) -> Any:
        if isinstance(parts[0], tuple):  # outputs, or vectors of class and distillation token
            return tuple(merge(part) for part in zip(*parts, strict=True))
        return torch.cat(list(parts))[inverse]

    return merge(results)

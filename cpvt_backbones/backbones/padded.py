"""Features of padded images, computed without the padding."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cpvt_backbones.checks import is_int, is_sequence
from cpvt_backbones.errors import InputError
from cpvt_backbones.layers.tokens import Grid, ceil_div, group_by_shape


def resolve_valid_sizes(
    valid_sizes: Any, batch: int, height: int, width: int
) -> list[tuple[int, int]]:
    """Convert to one (height, width) in pixels per image.

    Args:
        valid_sizes: A list, an array or a tensor (B, 2).
        batch: B, the number of images.
        height: Maximum height in px.
        width: Maximum width in px.

    Raises:
        ValueError: ``valid_sizes`` does not fit the batch.
    """
    accepted = f'valid_sizes must be a (height, width) in pixels for each of {batch} images'
    given = _plain(valid_sizes)
    if not is_sequence(given) or len(given) != batch:
        raise InputError(f'{accepted}, got {given!r}')
    sizes = []
    for index, size in enumerate(given):
        pair = _plain(size)
        if not is_sequence(pair) or len(pair) != 2:
            raise InputError(f'{accepted}, got {pair!r} for image {index}')
        h, w = map(_plain, pair)
        if not all(is_int(side) and side >= 1 for side in (h, w)):
            fault = f'got {(h, w)!r} for image {index}'
            raise InputError(f'valid_sizes must be integers >= 1, {fault}')
        sizes.append((h, w))
        if h > height or w > width:
            most = f'{height} x {width}, as the batch'
            raise InputError(f'valid_sizes must be at most {most}, got {h} x {w} for image {index}')
    return sizes


def _plain(value: Any) -> Any:
    """Convert a tensor or an array to lists and numbers."""
    return value.tolist() if hasattr(value, 'tolist') else value


def features_of_sizes(
    features: Callable[[Tensor], tuple[Any, ...]],
    images: Tensor,
    sizes: Sequence[Grid],
    strides: Sequence[int] | None,
    padding_value: float = 0.0,
) -> tuple[Any, ...]:
    """Compute features of padded images; images of the same size are computed together.

    Args:
        features: Function of images without padding that returns the outputs.
        images: (B, C, H, W).
        sizes: (height, width) in px of each image.
        strides: Stride of each output that is a map, or a pair of a map and a vector; ``None`` for
            vectors.
        padding_value: Value of maps outside an image's size.
    """
    groups = group_by_shape(sizes)
    order = [image for group in groups for image in group]
    inverse = sorted(range(len(order)), key=order.__getitem__)
    whole = (images.shape[2], images.shape[3])
    results = []
    for group in groups:
        size = sizes[group[0]]
        outputs = features(images[group, :, : size[0], : size[1]])
        if strides is not None:
            pairs = zip(outputs, strides, strict=True)
            outputs = tuple(
                _pad(output, stride, size, whole, padding_value) for output, stride in pairs
            )
        results.append(outputs)
    merged: tuple[Any, ...] = _merge(results, inverse)
    return merged


# Not a nested function, because a closure that calls itself would keep the images alive.


def _pad(output: Any, stride: int, size: Grid, whole: Grid, value: float) -> Any:
    """Pad a map of images of ``size`` px, or the map of a pair, to images of ``whole`` px."""
    if isinstance(output, tuple):
        feature_map, token = output
        return _pad(feature_map, stride, size, whole, value), token
    bottom = ceil_div(whole[0], stride) - ceil_div(size[0], stride)
    right = ceil_div(whole[1], stride) - ceil_div(size[1], stride)
    return F.pad(output, (0, right, 0, bottom), value=value)


def _merge(parts: Sequence[Any], order: Sequence[int]) -> Any:
    if isinstance(parts[0], tuple):  # outputs, or vectors of class and distillation token
        return tuple(_merge(part, order) for part in zip(*parts, strict=True))
    return torch.cat(list(parts))[order]

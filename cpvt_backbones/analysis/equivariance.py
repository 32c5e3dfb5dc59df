"""Equivariance error: difference between the features of a shifted image and the shifted features
of the image.

Two crops of one image, ``shift`` px apart along the diagonal, show the same content ``shift /
stride`` cells apart.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cpvt_backbones.errors import InputError


@dataclass(frozen=True)
class EquivarianceRow:
    """Change of features under one shift, from :func:`measure_equivariance` or
    :func:`measure_invariance`.

    Attributes:
        shift: Shift in px, down and to the right.
        error: The measure, mean over the images. 0 means no change beyond the shift.
        spread: Standard deviation of the measure over the images.
    """

    shift: int
    error: float
    spread: float


@torch.no_grad()
def measure_equivariance(
    model: nn.Module, images: Tensor, *, size: int, shifts: Sequence[int], stride: int | None = None
) -> list[EquivarianceRow]:
    """Measure whether the features of a model shift with the image (translation equivariance).

    The error is the root mean square difference between the features of the shifted image and the
    shifted features, relative to the standard deviation of the map. It is 0 for equivariant
    features and about 1.4 for unrelated ones.

    The cells that both crops cover are compared. A margin of an eighth of the map's side, rounded
    up, is left out, because padding acts there. For a shift that is no multiple of the stride, the
    first map is interpolated bilinearly. The error of this interpolation is then part of the
    figure, for every encoding alike.

    Args:
        model: Model that turns images into a tuple of maps (B, C, h, w); the last one is used.
        images: (B, 3, S, S), normalised, with S at least ``size + max(shifts)``.
        size: Side of the crops in px.
        shifts: Shifts in px, each at least 0, that leave common cells.
        stride: Stride of the map in px; ``None`` for ``size`` over the map's side, which must
            divide it.

    Returns:
        One row for each shift, in their order.

    Raises:
        ValueError: The images are too small, there is no shift, one is negative or leaves no cells
            to compare, or the map is not square or does not divide the images.

    Examples:
        >>> import torch
        >>> from cpvt_backbones import CPVT
        >>> from cpvt_backbones.analysis.equivariance import (
        ...     measure_equivariance
        ... )
        >>> rows = measure_equivariance(
        ...     CPVT(arch='tiny').eval(),
        ...     torch.randn(1, 3, 144, 144),
        ...     size=128,
        ...     shifts=[0, 16],
        ... )
        >>> [row.shift for row in rows], rows[0].error
        ([0, 16], 0.0)
    """
    if not shifts or min(shifts) < 0:
        raise InputError(f'shifts must be one or more px, each at least 0, got {list(shifts)}')
    if size < 1 or min(images.shape[2:]) < size + max(shifts):
        least = f'size + the largest shift = {size} + {max(shifts)} px'
        raise InputError(f'images must be at least {least}, got {tuple(images.shape)}')
    still = model(images[:, :, :size, :size])[-1]
    cells = still.shape[-1]
    if still.shape[-2] != cells or (stride is None and size % cells):
        raise InputError(
            f'size must be a multiple of the stride, got {size} px for a map of'
            f' {tuple(still.shape[2:])}'
        )
    # Deviation from the channel means: a constant offset is trivially equivariant.
    scale = (still - still.mean(dim=(2, 3), keepdim=True)).square().mean(dim=(1, 2, 3)).sqrt()
    rows = []
    for shift in shifts:
        moved = model(images[:, :, shift : shift + size, shift : shift + size])[-1]
        expected, found = _common_region(still, moved, shift / (stride or size // cells), shift)
        difference = (found - expected).square().mean(dim=(1, 2, 3)).sqrt()
        rows.append(_row(shift, difference / scale.clamp_min(torch.finfo(scale.dtype).tiny)))
    return rows


def _row(shift: int, errors: Tensor) -> EquivarianceRow:
    return EquivarianceRow(shift, errors.mean().item(), errors.std(unbiased=False).item())


@torch.no_grad()
def measure_invariance(
    model: Callable[[Tensor], Tensor], objects: Tensor, *, size: int, shifts: Sequence[int]
) -> list[EquivarianceRow]:
    """Measure whether a vector of an image stays when an object in it moves (translation
    invariance).

    The error is ``|v(moved) - v(object)| / |v(object) - v(background)|``: the change by the shift,
    relative to the effect of the object. It is 0 for an invariant vector.

    Args:
        model: Function of images (B, 3, size, size) that returns vectors (B, K).
        objects: (B, 3, h, w), normalised. They start in the middle of an image of zeros.
        size: Side of the images in px.
        shifts: Shifts in px, down and to the right.

    Returns:
        One row for each shift, in their order.

    Raises:
        ValueError: There is no shift, or one moves the object out of the image.

    Examples:
        The mean of the pixels is invariant, and the pixels themselves are not:

        >>> import torch
        >>> from cpvt_backbones.analysis.equivariance import measure_invariance
        >>> objects = torch.ones(1, 3, 8, 8)
        >>> for model in (lambda x: x.mean(dim=(2, 3)), lambda x: x.flatten(1)):
        ...     rows = measure_invariance(model, objects, size=32, shifts=[4, 8])
        ...     print([round(row.error, 2) for row in rows])
        [0.0, 0.0]
        [1.22, 1.41]
    """
    height, width = objects.shape[2:]
    top, left = (size - height) // 2, (size - width) // 2
    if not shifts or min(shifts) < 0 or min(top, left) < max(shifts):
        raise InputError(
            f'shifts must be one or more px in [0, {min(top, left)}], got {list(shifts)}'
        )
    background = objects.new_zeros(objects.shape[0], 3, size, size)

    def seen(shift: int) -> Tensor:
        scene = background.clone()
        scene[:, :, top + shift : top + shift + height, left + shift : left + shift + width] = (
            objects
        )
        return model(scene)

    still = seen(0)
    effect = (still - model(background)).norm(dim=1)
    return [_row(shift, (seen(shift) - still).norm(dim=1) / effect) for shift in shifts]


def _common_region(still: Tensor, moved: Tensor, cells: float, shift: int) -> tuple[Tensor, Tensor]:
    """The common region of both maps, the first one interpolated at the cells of the second."""
    side = still.shape[-1]
    margin, whole, part = math.ceil(side / 8), int(cells), cells % 1
    # Cell i of the moved map is cell i + whole + part of the other; both stay `margin` from their
    # borders.
    last = side - margin - whole - (part > 0)
    if last <= margin:
        grid = f'{side} x {side} cells with a margin of {margin}'
        raise InputError(
            f'shifts must leave cells to compare: {shift} px leave none of {grid}; use a larger'
            ' size'
        )
    found = moved[:, :, margin:last, margin:last]
    for axis in (2, 3):
        near = still.narrow(axis, margin + whole, last - margin)
        if part:
            near = near.lerp(still.narrow(axis, margin + whole + 1, last - margin), part)
        still = near
    return still, found

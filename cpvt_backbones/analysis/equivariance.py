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


@dataclass(frozen=True)
class EquivarianceRow:
    """Equivariance error of one shift: root mean square difference, relative to the map's standard
    deviation.

    It is 0 for equivariant features and about 1.4 for unrelated ones.
    """

    shift: int  # px, down and to the right
    error: float  # mean over the images
    spread: float  # standard deviation over the images


@torch.no_grad()
def measure_equivariance(
    model: nn.Module, images: Tensor, *, size: int, shifts: Sequence[int], stride: int | None = None
) -> list[EquivarianceRow]:
    """Measure the equivariance error of a model for several shifts.

    The cells that both crops cover are compared, without a margin of an eighth of the map's side
    (rounded up) where padding acts. For a shift that is no multiple of the stride the first map is
    interpolated bilinearly; the interpolation error is then part of the figure, for every encoding
    alike.

    Args:
        model: Images to a tuple of maps (B, C, h, w); the last one is used.
        images: (B, 3, S, S), normalised, ``S >= size + max(shifts)``; otherwise ``ValueError``.
        size: Side of the crops in px.
        shifts: Shifts in px, each >= 0, that leave common cells; one row each in this order.
        stride: Of the map in px; by default ``size`` over the map's side, which must divide it.
    """
    if not shifts or min(shifts) < 0:
        raise ValueError(f'shifts must be one or more px, each at least 0, got {list(shifts)}')
    if size < 1 or min(images.shape[2:]) < size + max(shifts):
        least = f'size + the largest shift = {size} + {max(shifts)} px'
        raise ValueError(f'images must be at least {least}, got {tuple(images.shape)}')
    still = model(images[:, :, :size, :size])[-1]
    cells = still.shape[-1]
    if still.shape[-2] != cells or (stride is None and size % cells):
        raise ValueError(
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
    """Change of a vector when one object moves down and to the right, relative to the object's
    effect, one row a shift.

    ``|v(moved) - v(object)| / |v(object) - v(background)|``: 0 for an invariant vector. ``model``
    turns images (B, 3, size, size) into vectors (B, K); ``objects`` (B, 3, h, w), normalised, start
    in the middle, on zeros. ``ValueError`` for no shift, or one that moves the object out of the
    image.
    """
    height, width = objects.shape[2:]
    top, left = (size - height) // 2, (size - width) // 2
    if not shifts or min(shifts) < 0 or min(top, left) < max(shifts):
        raise ValueError(
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
        raise ValueError(
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

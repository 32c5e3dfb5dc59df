"""How large an image is when the model sees it."""

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from cpvt_backbones.layers.checks import check_int

Scale = tuple[int, int] | str | None


def check_scale(scale: Scale, long_side: int | None) -> Scale:
    """The one size policy that ``scale`` and ``long_side`` make: ``None``, ``'config'`` or (width, height).

    Raises:
        ValueError: ``scale`` or ``long_side`` is not accepted, or both are given.
    """
    if long_side is not None:
        if scale is not None:
            raise ValueError(f'scale and long_side are two ways to say it; got scale={scale!r}, long_side={long_side}')
        check_int('long_side', long_side)
        return long_side, long_side
    if scale is None or scale == 'config':
        return scale
    if not isinstance(scale, (tuple, list)) or len(scale) != 2 or not all(isinstance(s, int) and s >= 1 for s in scale):
        raise ValueError(f"scale must be None (the image's own), 'config' or (width, height) in px, got {scale!r}")
    return scale[0], scale[1]


def fit(image: np.ndarray, scale: Scale) -> np.ndarray:
    """``image`` (H, W, 3) as large as fits in ``scale``, its shape kept; as it is without a (width, height)."""
    if scale is None or isinstance(scale, str):
        return image
    height, width = image.shape[:2]
    factor = min(max(scale) / max(height, width), min(scale) / min(height, width))
    size = tuple(max(1, int(side * factor + 0.5)) for side in (width, height))
    return image if size == (width, height) else cv2.resize(image, size, interpolation=cv2.INTER_LINEAR)


def resize_classes(class_map: np.ndarray, *, height: int, width: int) -> np.ndarray:
    """A map of classes, uint8 or uint16, at another size: each pixel that of the nearest centre."""
    if class_map.shape == (height, width):
        return class_map
    return cv2.resize(class_map, (width, height), interpolation=cv2.INTER_NEAREST_EXACT)


def resize_logits(logits: Tensor, rows: tuple[int, int], *, height: int, width: int) -> Tensor:
    """Some rows of what bilinear interpolation makes of logits, centres at half a pixel.

    Args:
        logits: (C, h, w).
        rows: (first, stop) of the rows that are wanted, of ``height``.
        height, width: Of the whole result.

    Returns:
        (C, rows, width), float.
    """
    places = (torch.arange(*rows, device=logits.device) + 0.5) * (logits.shape[1] / height) - 0.5
    places = places.clamp(0, logits.shape[1] - 1)
    above = places.floor().long()
    below = (above + 1).clamp(max=logits.shape[1] - 1)
    share = (places - above)[:, None]
    band = logits[:, above].float() * (1 - share) + logits[:, below].float() * share
    return functional.interpolate(band[None], (band.shape[1], width), mode='bilinear', align_corners=False)[0]

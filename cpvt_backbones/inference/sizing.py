"""How large an image is when the model sees it."""

import cv2
import numpy as np

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

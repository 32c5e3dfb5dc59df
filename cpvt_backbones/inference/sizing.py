"""How large an image is when the model sees it."""

from typing import TypeVar

import numpy as np

Scale = tuple[int, int] | str | None
Item = TypeVar('Item')


def check_scale(scale: Scale, long_side: int | None) -> Scale:
    """The one size policy that ``scale`` and ``long_side`` make: ``None``, ``'config'`` or (width, height).

    Raises:
        ValueError: ``scale`` or ``long_side`` is not accepted, or both are given.
    """
    if long_side is not None:
        if scale is not None:
            raise ValueError(f'scale and long_side are two ways to say it; got scale={scale!r}, long_side={long_side}')
        if long_side < 1:
            raise ValueError(f'long_side must be at least 1, got {long_side}')
        return long_side, long_side
    if scale is None or scale == 'config' or (not isinstance(scale, str) and len(scale) == 2 and min(scale) >= 1):
        return scale
    raise ValueError(f"scale must be None (the image's own), 'config' or (width, height), got {scale!r}")


def fit(image: np.ndarray, scale: Scale) -> np.ndarray:
    """``image`` (H, W, 3) as large as fits in ``scale``, its shape kept; as it is without a (width, height)."""
    from mmcv.image import imresize, rescale_size

    if scale is None or isinstance(scale, str):
        return image
    height, width = image.shape[:2]
    size = tuple(max(1, side) for side in rescale_size((width, height), tuple(scale)))
    return image if size == (width, height) else imresize(image, size)

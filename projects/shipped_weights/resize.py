"""Resizing of images and of maps."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor


def resize(images: Tensor, size: Any) -> Tensor:
    """Images or maps (B, C, H, W) at another size, bilinear, without aliasing."""
    return F.interpolate(images, size, mode='bilinear', align_corners=False, antialias=True)

"""Patch embedding of any H x W: padded up, never cropped."""

import torch
from torch import Tensor, nn

from .checks import check_int
from .tokens import Grid, map_to_tokens, pad_to_multiple


class PatchEmbed(nn.Module):
    """Non-overlapping patches to tokens, by a convolution with kernel = stride = ``patch_size``.

    The image is padded with zeros on the right and at the bottom up to a multiple of the patch, so that
    (H, W) pixels give (ceil(H / p), ceil(W / p)) tokens and every pixel counts.

    Args:
        in_channels: Channels of the image, or of the map of the stage before.
        dim: Width C of a token.
        patch_size: Side p of a patch, in pixels (or tokens of the stage before).
        norm_eps: Epsilon of a LayerNorm behind the projection (PVT, Twins); ``None`` for no norm (ViT).
    """

    def __init__(self, in_channels: int, dim: int, *, patch_size: int, norm_eps: float | None = None) -> None:
        super().__init__()
        check_int('in_channels', in_channels)
        check_int('embed_dims', dim)
        check_int('patch_size', patch_size)
        self.patch_size = patch_size
        self.proj = nn.Conv2d(in_channels, dim, patch_size, stride=patch_size)
        self.norm = nn.Identity() if norm_eps is None else nn.LayerNorm(dim, eps=norm_eps)

    def forward(self, images: Tensor) -> tuple[Tensor, Grid]:
        """(B, in_channels, H, W) to tokens (B, N, C) and their grid."""
        images = pad_to_multiple(images, self.patch_size)
        # From a channels_last convolution the tokens come out contiguous; any later copy would be C / 3 times larger.
        feature_map = self.proj(images.contiguous(memory_format=torch.channels_last))
        return self.norm(map_to_tokens(feature_map)), (feature_map.shape[2], feature_map.shape[3])

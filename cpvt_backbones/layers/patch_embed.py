"""Patch embedding for images of any H x W: padded, never cropped."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_backbones.checks import check, check_int, is_int

from .tokens import Grid, is_recording, is_symbolic, map_to_tokens, pad_to_multiple

FEW_PATCHES = 256
"""Maximum number of patches for which a linear layer is faster than a convolution on a CPU."""


def project_patches(feature_map: Tensor, proj: nn.Conv2d) -> tuple[Tensor, Grid]:
    """Project patches by a convolution with kernel = stride = p, where p divides H and W.

    Returns:
        Contiguous tokens (B, N, dim) and their grid (H / p, W / p).
    """
    if not _is_linear(feature_map, proj):
        # Tokens from a channels_last convolution are contiguous. Copying them later would move
        # C / 3 times as much. torch.func.vmap has no contiguous(memory_format=...).
        rows = feature_map.permute(0, 2, 3, 1).contiguous()
        projected = proj(rows.permute(0, 3, 1, 2))
        return map_to_tokens(projected), (projected.shape[2], projected.shape[3])
    patch = proj.kernel_size[0]
    grid = (feature_map.shape[2] // patch, feature_map.shape[3] // patch)
    patches = feature_map.unflatten(3, (grid[1], patch)).unflatten(2, (grid[0], patch))
    weight = proj.weight
    # Copy pixels in memory order, channels_last or not, from (B, C, h, p, w, p).
    if feature_map.stride(1) == 1:
        patches = patches.permute(0, 2, 4, 3, 5, 1)
        weight = weight.permute(0, 2, 3, 1)
    else:
        patches = patches.permute(0, 2, 4, 1, 3, 5)
    return F.linear(patches.flatten(3).flatten(1, 2), weight.flatten(1), proj.bias), grid


def _is_linear(feature_map: Tensor, proj: nn.Conv2d) -> bool:
    """``True`` if a linear layer projects the patches, ``False`` for a convolution."""
    if is_symbolic() or feature_map.device.type != 'cpu':
        return False
    dtype = feature_map.dtype
    if torch.is_autocast_enabled('cpu'):
        dtype = torch.get_autocast_dtype('cpu')
    # With torch 2.11 and oneDNN on AMX, a bf16 convolution gives wrong values or NaN for an image
    # one patch wide and six or more high.
    if dtype == torch.bfloat16:
        return True
    # The convolution copies its weights in every call, which costs more than it gains for few
    # patches. For many patches it is usually faster: 1.8 times as fast at 800 x 1344 px and patch
    # 16 on one core. It is also faster on maps between stages, which are channels_last.
    if is_recording() or feature_map.stride(1) == 1:
        return False
    patch = proj.kernel_size[0]
    return feature_map.shape[2] * feature_map.shape[3] <= FEW_PATCHES * patch**2


class PatchEmbed(nn.Module):
    """Project patches to tokens, with the weights of a convolution.

    Zeros pad the image on the right and at the bottom up to a multiple of the patch, so no pixel is
    lost: (H, W) pixels give (ceil(H / p), ceil(W / p)) tokens. Overlapping patches (PVTv2, arXiv
    2106.13797) are padded on all sides and give the same number of tokens.

    Args:
        in_channels: Channels of the image, or of the previous stage's map.
        dim: Width C of a token.
        patch_size: Side p of a patch, in pixels (or tokens of the previous stage).
        norm_eps: Epsilon of a LayerNorm after the projection (PVT, Twins). ``None`` adds no norm
            (ViT).
        kernel_size: Side of overlapping patches, odd and larger than p. ``None`` means p.

    Raises:
        ValueError: An argument is not accepted.

    Examples:
        >>> import torch
        >>> from cpvt_backbones.layers import PatchEmbed
        >>> embed = PatchEmbed(3, 192, patch_size=16)
        >>> tokens, grid = embed(torch.rand(1, 3, 50, 70))
        >>> tokens.shape, grid
        (torch.Size([1, 20, 192]), (4, 5))
    """

    def __init__(
        self,
        in_channels: int,
        dim: int,
        *,
        patch_size: int,
        norm_eps: float | None = None,
        kernel_size: int | None = None,
    ) -> None:
        super().__init__()
        check_int(in_channels=in_channels, embed_dims=dim, patch_size=patch_size)
        self.patch_size = patch_size
        self.overlap = kernel_size is not None
        side, padding = patch_size, 0
        if kernel_size is not None:
            accepted = f'an odd integer larger than {patch_size}, the stride'
            check(
                accepted,
                lambda k: is_int(k) and k % 2 == 1 and k > patch_size,
                patch_kernels=kernel_size,
            )
            side, padding = kernel_size, kernel_size // 2
        self.proj = nn.Conv2d(in_channels, dim, side, stride=patch_size, padding=padding)
        self.norm = nn.Identity() if norm_eps is None else nn.LayerNorm(dim, eps=norm_eps)

    def forward(self, images: Tensor) -> tuple[Tensor, Grid]:
        """Convert images (B, in_channels, H, W) to tokens (B, N, C) and their grid."""
        if self.overlap:
            projected = self.proj(images)
            tokens = map_to_tokens(projected)
            grid: Grid = (projected.shape[2], projected.shape[3])
        else:
            tokens, grid = project_patches(pad_to_multiple(images, self.patch_size), self.proj)
        return self.norm(tokens), grid

"""Algorithm 1 of the CPVT paper (arXiv 2102.10882) as printed: the baseline without fused
attention.
"""

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Pre-norm encoder block whose attention materialises its N x N weights."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, C) to the same shape."""
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind()  # (B, heads, N, C / heads)
        weights = (query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5).softmax(dim=-1)
        x = x + self.proj((weights @ value).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Algorithm1(nn.Module):
    """CPVT whose PEGs split the class token off the token buffer and concatenate it again.

    The listing has one PEG, after block 0; ``num_pegs`` follow the first blocks.
    """

    def __init__(
        self, *, dim: int, depth: int, num_heads: int, num_pegs: int = 1, patch_size: int = 16
    ) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, dim, patch_size, stride=patch_size)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.blocks = nn.ModuleList(Block(dim, num_heads) for _ in range(depth))
        self.pegs = nn.ModuleList(
            nn.Conv2d(dim, dim, 3, padding=1, groups=dim) for _ in range(num_pegs)
        )
        self.norm = nn.LayerNorm(dim, eps=1e-6)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W), H and W multiples of the patch size, to the class token (B, C)."""
        x = self.patch_embed(images)
        height, width = x.shape[2:]
        x = torch.cat((self.cls_token.expand(len(x), -1, -1), x.flatten(2).transpose(1, 2)), dim=1)
        for index, block in enumerate(self.blocks):
            x = block(x)
            if index < len(self.pegs):
                cls_token, tokens = x[:, :1], x[:, 1:]
                feature_map = tokens.transpose(1, 2).reshape(len(x), -1, height, width)
                feature_map = feature_map + self.pegs[index](feature_map)
                x = torch.cat((cls_token, feature_map.flatten(2).transpose(1, 2)), dim=1)
        return self.norm(x)[:, 0]

"""Global, windowed and spatial-reduction attention, all through one fused call."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_backbones.checks import check_bool, check_int, check_probability
from cpvt_backbones.errors import InputError

from .axial_bias import AxialBias, is_trained, stores_bias
from .blocked_attention import attend_in_blocks, suits_blocks
from .offset_bias import LogitBias
from .patch_embed import project_patches
from .tokens import (
    Grid,
    ceil_div,
    crop,
    is_exporting,
    is_padded,
    is_recording,
    pad_to_multiple,
    tokens_to_map,
)

Bias = Callable[[Tensor, Grid], LogitBias]
"""Function of queries (B, heads, N, d) and their grid that returns the bias on their logits."""

Arrange = Callable[[Tensor], Tensor]
"""Function that arranges a tensor (heads or 1, P + N, d) in windows: (windows, heads or 1, h * w,
d).
"""

Rotate = Callable[[Tensor, Tensor, Arrange | None], tuple[Tensor, Tensor]]
"""Function that rotates queries and keys; their layout is that of ``PositionEncoding.rotate``."""


SHORT = 256
"""Maximum number of keys for which training on a CPU computes attention in float32."""


_fused = True


def set_fused_attention(enabled: bool) -> None:
    """Choose how all attention of this process is computed.

    Args:
        enabled: Use torch's fused kernels, which is the default. With ``False``, attention is two
            matrix products and a softmax, which store the weights (B, heads, T, S).

    Raises:
        InputTypeError: ``enabled`` is not a bool.
    """
    global _fused
    check_bool(enabled=enabled)
    _fused = enabled


def widen(*tensors: Tensor) -> list[Tensor]:
    """Convert float16 and bfloat16 tensors to float32; other tensors do not change."""
    return [t.float() if t.dtype in (torch.float16, torch.bfloat16) else t for t in tensors]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    bias: LogitBias | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Compute softmax(q k^T / sqrt(d) + bias + mask) v.

    Args:
        query: (B, heads, T, d).
        key: (B, heads, S, d).
        value: (B, heads, S, d).
        mask: Additive mask, or boolean mask that is True where attention is allowed; broadcastable
            to (B, heads, T, S). With ``bias`` it must be boolean.
        bias: Bias on the logits.
        dropout: Dropout on the attention weights.

    Returns:
        (B, heads, T, d).
    """
    if not _fused:
        return attend_in_steps(query, key, value, mask=mask, bias=bias, dropout=dropout)
    if bias is not None:
        return attend_with_bias(query, key, value, bias, mask=mask, dropout=dropout)
    if is_exporting():
        if mask is not None:  # ONNX's Attention wants a row for each query
            mask = mask.expand(-1, -1, query.shape[2], -1)
    elif mask is None and dropout == 0 and suits_blocks(query, key, value):
        return attend_in_blocks(query, key, value)
    return attend_fused(query, key, value, mask=mask, dropout=dropout)


def attend_in_steps(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None,
    bias: LogitBias | None,
    dropout: float,
) -> Tensor:
    """Compute :func:`attend` by its formula, without a fused kernel.

    The arguments are those of :func:`attend`.
    """
    logits = query @ key.transpose(-2, -1) * query.shape[3] ** -0.5  # (B, heads, T, S)
    if bias is not None:
        mask = bias.to_mask(mask)
    if mask is not None and mask.dtype == torch.bool:
        logits = logits.masked_fill(~mask, -torch.inf)
    elif mask is not None:
        logits = logits + mask
    return F.dropout(logits.softmax(-1), dropout) @ value


def attend_fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None,
    dropout: float,
    scale: float | None = None,
) -> Tensor:
    """Compute :func:`attend` by torch's fused kernel.

    ``scale`` replaces the factor 1 / sqrt(d). The other arguments are those of :func:`attend`.
    """
    options: dict[str, Any] = {} if scale is None else dict(scale=scale)
    trained = torch.is_grad_enabled() and not is_exporting() and query.requires_grad
    if trained and query.device.type == 'cpu' and key.shape[2] <= SHORT:
        # PyTorch 2.11's backward pass takes two to four times as long in bfloat16 for so few keys.
        dtype = value.dtype
        with torch.autocast('cpu', enabled=False):
            query, key, value = widen(query, key, value)
            mask = None if mask is None else widen(mask)[0]
            out = F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, dropout_p=dropout, **options
            )
            return out.to(dtype)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, **options
    )


def attend_with_bias(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: LogitBias,
    *,
    mask: Tensor | None,
    dropout: float,
) -> Tensor:
    """Compute :func:`attend` with a bias.

    The whole bias is stored only if it is small, in training, or in an exported graph. The
    arguments are those of :func:`attend`.
    """
    if isinstance(bias, AxialBias) and not stores_bias(query, key, bias):
        width = value.shape[3]
        query, key = bias.append_to(query, key)
        # The fused kernels want values as wide as queries and keys.
        value = F.pad(value, (0, query.shape[3] - width))
        out = attend_fused(query, key, value, mask=mask, dropout=dropout, scale=width**-0.5)
        return out[..., :width]
    whole = is_recording() or is_trained(query, key, *bias.tensors)
    parts = [] if whole else bias.parts(query)
    if len(parts) < 2:
        return attend_fused(query, key, value, mask=bias.to_mask(mask), dropout=dropout)
    out = torch.empty_like(query)
    for images, queries in parts:
        some = None if mask is None else mask[images]
        if some is not None and some.shape[2] > 1:  # not the same for all queries
            some = some[:, :, queries]
        out[images, :, queries] = attend_fused(
            query[images, :, queries],
            key[images],
            value[images],
            mask=bias.part(images, queries).to_mask(some),
            dropout=dropout,
        )
    return out


def attend_limited(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    limit: Tensor,
    bias: LogitBias | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Compute :func:`attend` with the first Q queries limited to some of the patches.

    Args:
        query: (B, heads, P + N, d).
        key: (B, heads, P + N, d).
        value: (B, heads, P + N, d).
        limit: (B, Q, N), boolean: True for the patches that each of the first Q queries may attend
            to. These queries also attend to all prefix tokens. All other queries have no limit.
        bias: Bias on the logits of all queries.
        dropout: Dropout on the attention weights.
    """
    count, num_prefix = limit.shape[1], key.shape[2] - limit.shape[2]
    allowed = F.pad(limit, (num_prefix, 0), value=True)[:, None]
    # The others are computed without a mask, for which the fused kernels are faster.
    first, others = slice(count), slice(count, None)
    everything = slice(None)
    outputs = [
        attend(
            query[:, :, some],
            key,
            value,
            mask=mask,
            bias=None if bias is None else bias.part(everything, some),
            dropout=dropout,
        )
        for some, mask in ((first, allowed), (others, None))
    ]
    return torch.cat(outputs, dim=2)


def drop_out(dropout: nn.Dropout, x: Tensor) -> Tensor:
    """Apply dropout.

    The module is not called if it drops nothing, because Python calls limit small batches on a GPU.
    """
    return dropout(x) if dropout.training and dropout.p else x


def project(linear: nn.Linear, x: Tensor, qk: Tensor | None, *, split: int) -> Tensor:
    """Apply a linear layer to ``x``.

    With ``qk``, the first ``split`` output channels are computed from ``qk`` instead of ``x``.
    """
    if qk is None:
        return linear(x)
    weight, bias = linear.weight, linear.bias
    first = F.linear(qk, weight[:split], None if bias is None else bias[:split])
    rest = F.linear(x, weight[split:], None if bias is None else bias[split:])
    return torch.cat((first, rest), dim=-1)


def split_heads(x: Tensor, parts: int, num_heads: int) -> tuple[Tensor, ...]:
    """Split (B, T, parts * C) into ``parts`` views of (B, heads, T, d)."""
    views = x.unflatten(-1, (parts, num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    return tuple(views[part] for part in range(parts))  # torch.fx cannot iterate over views


class Attention(nn.Module):
    """Global multi-head self-attention.

    Args:
        dim: Width C of a token.
        num_heads: Number of heads. It must divide ``dim``.
        qkv_bias: Give the projections to queries, keys and values a bias.
        attn_drop: Dropout on the attention weights.
        proj_drop: Dropout on the output.

    Examples:
        >>> import torch
        >>> from cpvt_backbones.layers import Attention
        >>> attention = Attention(192, num_heads=3)
        >>> tokens = torch.rand(2, 1 + 4 * 5, 192)  # class token, 4 x 5 patches
        >>> attention(tokens, (4, 5), num_prefix=1).shape
        torch.Size([2, 21, 192])
    """

    def __init__(
        self,
        dim: int,
        *,
        num_heads: int,
        qkv_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        check_int(embed_dims=dim, num_heads=num_heads)
        if dim % num_heads:
            raise InputError(
                f'num_heads must divide embed_dims, got num_heads={num_heads} for embed_dims={dim}'
            )
        check_probability(attn_drop=attn_drop)
        self.num_heads, self.attn_drop = num_heads, attn_drop
        self.add_projections(dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def add_projections(self, dim: int, *, bias: bool) -> None:
        """Add the layers that :meth:`query_key_value` uses."""
        self.qkv = nn.Linear(dim, 3 * dim, bias=bias)

    def query_key_value(
        self, x: Tensor, grid: Grid, num_prefix: int, qk: Tensor | None
    ) -> tuple[Tensor, ...]:
        """Project (B, T, C) to queries (B, heads, T, d), keys and values (B, heads, S, d)."""
        return split_heads(project(self.qkv, x, qk, split=2 * x.shape[-1]), 3, self.num_heads)

    @property
    def dropout(self) -> float:
        return self.attn_drop if self.training else 0.0

    def forward(
        self,
        x: Tensor,
        grid: Grid,
        *,
        num_prefix: int = 0,
        qk: Tensor | None = None,
        bias: Bias | None = None,
        rotate: Rotate | None = None,
        limit: Tensor | None = None,
    ) -> Tensor:
        """Apply attention; the result has the shape of ``x``.

        Args:
            x: (B, P + H * W, C): P prefix tokens, then the patch tokens.
            grid: (H, W).
            num_prefix: P, the number of prefix tokens in front.
            qk: Tokens that queries and keys are made of, if they differ from ``x``. They have the
                shape of ``x``.
            bias: Bias of a position encoding on the logits of the patch tokens.
            rotate: Rotation of queries and keys by a position encoding.
            limit: (B, Q, H * W), boolean: the patches that each of the first Q prefix tokens may
                attend to. These tokens also attend to all prefix tokens. Other tokens have no
                limit.
        """
        out = self.proj(self.attended(x, grid, num_prefix, qk, bias, rotate, limit))
        return drop_out(self.proj_drop, out)

    def attended(
        self,
        x: Tensor,
        grid: Grid,
        num_prefix: int,
        qk: Tensor | None,
        bias: Bias | None,
        rotate: Rotate | None,
        limit: Tensor | None,
    ) -> Tensor:
        """Compute :meth:`forward` without the output projection; same arguments."""
        query, key, value = self.query_key_value(x, grid, num_prefix, qk)
        axial = None
        if bias is not None:
            axial = bias(query[:, :, num_prefix:], grid).with_prefix(num_prefix, queries=True)
        if rotate is not None:
            query, key = rotate(query, key, None)
        options: dict[str, Any] = dict(bias=axial, dropout=self.dropout)
        if limit is None:
            out = attend(query, key, value, **options)
        else:
            out = attend_limited(query, key, value, limit=limit, **options)
        return out.transpose(1, 2).flatten(2)


class WindowAttention(Attention):
    """Attention within windows, for any grid.

    The last row and column of windows are padded, masked and cropped. Prefix tokens attend to all
    patch tokens and all patch tokens attend to them. If one window covers the grid, the result is
    that of :class:`Attention`. Parameters have the names of those in :class:`Attention`.

    Args:
        window_size: Side of a window, in tokens.
        mask_padding: Leave the padding out of attention. With ``False``, patch tokens also attend
            to the padding, which is zero before the projection, and a smaller grid is padded to a
            whole window. ViTDet (arXiv 2203.16527) and SAM (arXiv 2304.02643) were trained so.

    The other arguments are those of :class:`Attention`.

    Examples:
        A token changes only the tokens of its window:

        >>> import torch
        >>> from cpvt_backbones.layers import WindowAttention
        >>> attention = WindowAttention(192, window_size=3, num_heads=3)
        >>> tokens = torch.rand(1, 4 * 6, 192)  # windows: rows 0 to 2, row 3
        >>> before = attention(tokens, (4, 6))
        >>> tokens[:, -1] += 1  # the last token of the last window
        >>> change = (attention(tokens, (4, 6)) - before).abs().amax(dim=2)
        >>> (change > 1e-3).int().view(4, 6)
        tensor([[0, 0, 0, 0, 0, 0],
                [0, 0, 0, 0, 0, 0],
                [0, 0, 0, 0, 0, 0],
                [0, 0, 0, 1, 1, 1]], dtype=torch.int32)
    """

    def __init__(
        self,
        dim: int,
        *,
        window_size: int,
        num_heads: int,
        mask_padding: bool = True,
        qkv_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__(
            dim, num_heads=num_heads, qkv_bias=qkv_bias, attn_drop=attn_drop, proj_drop=proj_drop
        )
        check_int(window_size=window_size)
        check_bool(mask_padding=mask_padding)
        self.window_size, self.mask_padding = window_size, mask_padding

    def side_of(self, grid: Grid) -> Grid | None:
        """Return the sides of a window; ``None`` if one window covers the grid without padding."""
        # An exported graph pads a small grid up to a whole window.
        if is_exporting() or not self.mask_padding:
            return self.window_size, self.window_size
        if max(grid) <= self.window_size:
            return None
        return min(self.window_size, grid[0]), min(self.window_size, grid[1])

    def attended(
        self,
        x: Tensor,
        grid: Grid,
        num_prefix: int,
        qk: Tensor | None,
        bias: Bias | None,
        rotate: Rotate | None,
        limit: Tensor | None,
    ) -> Tensor:
        """Compute :meth:`forward` without the output projection; same arguments.

        ``bias`` gets the grid of one window.
        """
        side = self.side_of(grid)
        if side is None:
            return super().attended(x, grid, num_prefix, qk, bias, rotate, limit)
        windows = Windows(grid, side)
        batch = x.shape[0]

        # Partition before the projection: a third of the bytes to move.
        patch_qk = None if qk is None else windows.partition(qk[:, num_prefix:])
        patches = windows.partition(x[:, num_prefix:])
        query, key, value = self.query_key_value(patches, side, 0, patch_qk)
        real = windows.real_tokens(x)
        mask = real if self.mask_padding else None
        axial = None if bias is None else bias(query, side)
        if rotate is not None:

            def arrange(table: Tensor) -> Tensor:
                parts = windows.partition(table[:, num_prefix:])
                return parts.unflatten(0, (table.shape[0], -1)).transpose(0, 1)

            query = query.unflatten(0, (batch, -1))  # (B, windows, heads, h * w, d)
            key = key.unflatten(0, (batch, -1))
            query, key = rotate(query, key, arrange)
            query, key = query.flatten(0, 1), key.flatten(0, 1)
        if num_prefix == 0:
            out = attend(query, key, value, mask=mask, bias=axial, dropout=self.dropout)
            return windows.merge(out.transpose(1, 2).flatten(2))

        # Prefix tokens attend to every patch, and every window attends to them.
        prefix_qk = None if qk is None else qk[:, :num_prefix]
        query_p, key_p, value_p = self.query_key_value(
            x[:, :num_prefix], grid, num_prefix, prefix_qk
        )
        all_real = None
        if real is not None:
            all_real = F.pad(real.view(batch, 1, 1, -1), (num_prefix, 0), value=1)
        if limit is not None:
            allowed = windows.allowed(limit, num_prefix)
            all_real = allowed if all_real is None else allowed & all_real
        prefix = attend(
            query_p,
            torch.cat((key_p, windows.side_by_side(key, batch)), dim=2),
            torch.cat((value_p, windows.side_by_side(value, batch)), dim=2),
            mask=all_real,
            dropout=self.dropout,
        )
        key = torch.cat((windows.repeat(key_p), key), dim=2)
        value = torch.cat((windows.repeat(value_p), value), dim=2)
        if mask is not None:
            mask = F.pad(mask, (num_prefix, 0), value=1)
        if axial is not None:
            axial = axial.with_prefix(num_prefix, queries=False)
        out = attend(query, key, value, mask=mask, bias=axial, dropout=self.dropout)
        out = windows.merge(out.transpose(1, 2).flatten(2))
        return torch.cat((prefix.transpose(1, 2).flatten(2), out), dim=1)


class Windows:
    """Partition of a grid into windows of h x w tokens; the last row and column are padded.

    Args:
        grid: (H, W).
        side: (h, w) of a window.
    """

    def __init__(self, grid: Grid, side: Grid) -> None:
        self.grid = grid
        self.side = side
        self.counts = (ceil_div(grid[0], side[0]), ceil_div(grid[1], side[1]))
        self.padding = (
            self.counts[0] * side[0] - grid[0],
            self.counts[1] * side[1] - grid[1],
        )

    def partition(self, patches: Tensor) -> Tensor:
        """Cut (B, H * W, C) into windows (B * windows, h * w, C)."""
        x = patches.unflatten(1, self.grid)
        if is_padded(self.padding):
            x = F.pad(x, (0, 0, 0, self.padding[1], 0, self.padding[0]))
        x = x.unflatten(2, (self.counts[1], self.side[1]))
        x = x.unflatten(1, (self.counts[0], self.side[0]))  # (B, rows, h, columns, w, C)
        return x.transpose(2, 3).flatten(3, 4).flatten(0, 2)

    def merge(self, x: Tensor) -> Tensor:
        """Join windows (B * windows, h * w, C) to (B, H * W, C)."""
        x = x.unflatten(1, self.side).unflatten(0, (-1, *self.counts))
        x = x.transpose(2, 3).flatten(3, 4).flatten(1, 2)  # (B, H + padding, W + padding, C)
        return crop(x, (1, 2), self.grid).flatten(1, 2)

    def real_tokens(self, x: Tensor) -> Tensor | None:
        """Mask of keys without padding, (B * windows, 1, 1, h * w); ``None`` if none is padding."""
        if not is_padded(self.padding):
            return None
        ones = x.new_ones(x.shape[0], self.grid[0] * self.grid[1], 1)
        return self.partition(ones).to(torch.bool).transpose(1, 2)[:, None]

    def allowed(self, limit: Tensor, num_prefix: int) -> Tensor:
        """Mask of the keys that each prefix token may attend to: (B, 1, P, P + windows * h * w).

        ``limit`` (B, Q, H * W) is the limit of the first Q prefix tokens; see :meth:`forward`.
        """
        batch, count = limit.shape[:2]
        # (B * windows, h * w, Q)
        patches = self.partition(limit.transpose(1, 2).float()).to(torch.bool)
        rows = patches.unflatten(0, (batch, -1)).flatten(1, 2).transpose(1, 2)
        rows = F.pad(rows, (0, 0, 0, num_prefix - count), value=True)
        return F.pad(rows, (num_prefix, 0), value=True)[:, None]

    def side_by_side(self, x: Tensor, batch: int) -> Tensor:
        """Join windows (B * windows, heads, h * w, d) to (B, heads, windows * h * w, d)."""
        return x.unflatten(0, (batch, -1)).transpose(1, 2).flatten(2, 3)

    def repeat(self, x: Tensor) -> Tensor:
        """Repeat (B, heads, P, d) for each window: (B * windows, heads, P, d)."""
        count = self.counts[0] * self.counts[1]
        return x[:, None].expand(-1, count, -1, -1, -1).flatten(0, 1)


class SpatialReductionAttention(Attention):
    """Attention whose keys and values come from a map reduced by a strided convolution (PVT,
    section 3.3).

    Zeros pad the map on the right and at the bottom up to a multiple of the ratio, so any grid
    works and no token is left out. Prefix tokens are keys too; they are not reduced.

    Args:
        sr_ratio: Side of the square of tokens that becomes one key. 1 keeps all keys.
        norm_eps: Epsilon of the norm after the reduction (Twins: 1e-5; PVT: 1e-6).

    The other arguments are those of :class:`Attention`.

    Examples:
        >>> import torch
        >>> from cpvt_backbones.layers import SpatialReductionAttention
        >>> attention = SpatialReductionAttention(64, sr_ratio=8, num_heads=1)
        >>> tokens = torch.rand(1, 50 * 70, 64)
        >>> attention.reduce(tokens, (50, 70)).shape  # 7 x 9 keys
        torch.Size([1, 63, 64])
        >>> attention(tokens, (50, 70)).shape
        torch.Size([1, 3500, 64])
    """

    def __init__(
        self,
        dim: int,
        *,
        sr_ratio: int,
        num_heads: int,
        norm_eps: float = 1e-5,
        qkv_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__(
            dim, num_heads=num_heads, qkv_bias=qkv_bias, attn_drop=attn_drop, proj_drop=proj_drop
        )
        check_int(sr_ratio=sr_ratio)
        self.sr_ratio = sr_ratio
        if sr_ratio > 1:
            self.sr = nn.Conv2d(dim, dim, sr_ratio, stride=sr_ratio)
            self.norm = nn.LayerNorm(dim, eps=norm_eps)

    def add_projections(self, dim: int, *, bias: bool) -> None:
        self.q = nn.Linear(dim, dim, bias=bias)
        self.kv = nn.Linear(dim, 2 * dim, bias=bias)

    def reduce(self, x: Tensor, grid: Grid, num_prefix: int = 0) -> Tensor:
        """Reduce tokens (B, P + H * W, C) to (B, P + ceil(H / r) * ceil(W / r), C).

        Prefix tokens are kept.
        """
        if self.sr_ratio == 1:
            return x
        feature_map = pad_to_multiple(tokens_to_map(x[:, num_prefix:], grid), self.sr_ratio)
        reduced = self.norm(project_patches(feature_map, self.sr)[0])
        return torch.cat((x[:, :num_prefix], reduced), dim=1) if num_prefix else reduced

    def query_key_value(
        self, x: Tensor, grid: Grid, num_prefix: int, qk: Tensor | None
    ) -> tuple[Tensor, ...]:
        key_tokens = None if qk is None else self.reduce(qk, grid, num_prefix)
        kv = project(self.kv, self.reduce(x, grid, num_prefix), key_tokens, split=x.shape[-1])
        query = self.q(x if qk is None else qk)
        return (
            *split_heads(query, 1, self.num_heads),
            *split_heads(kv, 2, self.num_heads),
        )

    def attended(
        self,
        x: Tensor,
        grid: Grid,
        num_prefix: int,
        qk: Tensor | None,
        bias: Bias | None,
        rotate: Rotate | None,
        limit: Tensor | None,
    ) -> Tensor:
        if bias is not None and self.sr_ratio > 1:
            raise InputError(
                'bias must be None: spatial-reduction attention has fewer keys than queries'
            )
        return super().attended(x, grid, num_prefix, qk, bias, rotate, limit)

"""Attention with a bias on its logits that is a sum over the two axes of the grid of keys.

Stored whole, the bias has N x N entries per head. Its two parts have N x (H + W) entries.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .tokens import is_exporting, is_padded, is_recording

MAX_BIAS = 1 << 23
"""Maximum number of bias entries stored at once where possible; 32 MiB in float32."""


@dataclass(frozen=True)
class AxialBias:
    """Bias on attention logits that is a sum over the two axes of the grid of keys.

    The logit of query i and the key in row y and column x gains ``rows[i, y] + columns[i, x]``.
    Prefix keys, which precede the H * W keys of the grid, have no bias.

    Attributes:
        rows: (B, heads, T, H) for T queries.
        columns: (B, heads, T, W).
        num_prefix: P, the number of prefix keys.
    """

    rows: Tensor
    columns: Tensor
    num_prefix: int = 0

    def __add__(self, other: 'AxialBias') -> 'AxialBias':
        """Add two biases on the same queries and keys."""
        if not isinstance(other, AxialBias):
            return NotImplemented
        return AxialBias(self.rows + other.rows, self.columns + other.columns, self.num_prefix)

    def with_prefix(self, num_prefix: int, *, queries: bool) -> 'AxialBias':
        """Prepend ``num_prefix`` keys without bias, and as many queries if ``queries``."""
        front = num_prefix if queries else 0
        rows, columns = self.rows, self.columns
        if is_padded((front, 0)):
            rows, columns = (F.pad(part, (0, 0, front, 0)) for part in (rows, columns))
        return AxialBias(rows, columns, self.num_prefix + num_prefix)

    def part(self, images: slice, queries: slice) -> 'AxialBias':
        """Select some images of the batch and some queries."""
        rows, columns = self.rows[images, :, queries], self.columns[images, :, queries]
        return AxialBias(rows, columns, self.num_prefix)

    def to_mask(self, mask: Tensor | None = None) -> Tensor:
        """Return the whole bias (B, heads, T, P + H * W).

        It is -inf where the boolean ``mask``, broadcastable to it, is ``False``.
        """
        whole = (self.rows[..., :, None] + self.columns[..., None, :]).flatten(3)
        if is_padded((self.num_prefix, 0)):
            whole = F.pad(whole, (self.num_prefix, 0))
        return whole if mask is None else whole.masked_fill(~mask, -torch.inf)

    def append_to(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Append the bias to queries and keys as H + W further channels.

        The products of the results, divided by sqrt(d), are the logits with the bias. The new
        channels of a key are 1 for its row and its column, and 0 otherwise.

        Returns:
            Queries (B, heads, T, d + H + W) and keys (B, heads, P + H * W, d + H + W).
        """
        height, width = self.rows.shape[3], self.columns.shape[3]
        rows, columns = (torch.eye(n, dtype=key.dtype, device=key.device) for n in (height, width))
        # (H, W, H) and (H, W, W)
        rows, columns = rows[:, None].expand(-1, width, -1), columns.expand(height, -1, -1)
        one_hot = torch.cat((rows, columns), dim=2).flatten(0, 1)  # (H * W, H + W)
        one_hot = F.pad(one_hot, (0, 0, self.num_prefix, 0))
        key = torch.cat((key, one_hot.expand(*key.shape[:2], -1, -1)), dim=3)
        parts = torch.cat((self.rows, self.columns), dim=3) * query.shape[3] ** 0.5
        return torch.cat((query, parts.to(query.dtype)), dim=3), key

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Tensors that may receive a gradient."""
        return self.rows, self.columns

    def parts(self, query: Tensor) -> list[tuple[slice, slice]]:
        """Split queries (B, heads, T, d) so that no part exceeds ``MAX_BIAS`` entries."""
        batch, heads, queries, _ = query.shape
        keys = self.rows.shape[3] * self.columns.shape[3]
        images = max(MAX_BIAS // (heads * queries * keys), 1)
        rows = max(MAX_BIAS // (heads * keys), 1)
        return [
            (slice(image, image + images), slice(row, row + rows))
            for image in range(0, batch, images)
            for row in range(0, queries, rows)
        ]

    @property
    def entries(self) -> int:
        """Number of entries of the whole bias."""
        return self.rows.numel() * self.columns.shape[3]


def stores_bias(query: Tensor, key: Tensor, bias: AxialBias) -> bool:
    """Return ``True`` to store the bias, and ``False`` to append it to queries and keys.

    The stored bias is faster on a CPU (`benchmarks/relative_positions.py`), where inference stores
    it for some queries at a time. Training keeps it whole. So it is stored there only if it is
    small, or no larger than queries, keys and values with the further channels.
    """
    if is_recording():
        return is_exporting()  # a recorded program must work for any number of tokens
    channels = query.shape[3] + bias.rows.shape[3] + bias.columns.shape[3]
    if bias.entries <= MAX_BIAS or key.shape[2] <= 3 * channels:
        return True
    return query.device.type in ('cpu', 'meta') and not is_trained(query, key, *bias.tensors)


def is_trained(*tensors: Tensor) -> bool:
    """``True`` if the backward pass needs the results of attention on these tensors."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


@contextmanager
def whole_bias() -> Iterator[None]:
    """Context that stores every bias whole, so that each layer has one softmax."""
    global MAX_BIAS
    before, MAX_BIAS = MAX_BIAS, sys.maxsize
    try:
        yield
    finally:
        MAX_BIAS = before

"""Attention with a bias on its logits that is a sum over the two axes of the grid of keys.

Stored for all queries and keys the bias has N x N entries a head; its two parts have N x (H + W).
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
"""Entries of the bias that are stored at once where it can be avoided, 32 MiB in float32."""


@dataclass(frozen=True)
class AxialBias:
    """Bias on attention logits that is a sum over the two axes of the grid of keys.

    The logit of query i and the key in row y and column x gains ``rows[i, y] + columns[i, x]``.
    Prefix keys, in front of the H * W keys of the grid, have no bias.

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
        """Return the bias with ``num_prefix`` keys in front, and if ``queries`` as many queries.

        They have no bias.
        """
        front = num_prefix if queries else 0
        rows, columns = self.rows, self.columns
        if is_padded((front, 0)):
            rows, columns = (F.pad(part, (0, 0, front, 0)) for part in (rows, columns))
        return AxialBias(rows, columns, self.num_prefix + num_prefix)

    def part(self, images: slice, queries: slice) -> 'AxialBias':
        """Return the bias of some images of the batch and some queries."""
        rows, columns = self.rows[images, :, queries], self.columns[images, :, queries]
        return AxialBias(rows, columns, self.num_prefix)

    def to_mask(self, mask: Tensor | None = None) -> Tensor:
        """Return the whole bias (B, heads, T, P + H * W).

        It is -inf where the boolean ``mask``, broadcastable to it, does not allow attention.
        """
        whole = (self.rows[..., :, None] + self.columns[..., None, :]).flatten(3)
        if is_padded((self.num_prefix, 0)):
            whole = F.pad(whole, (self.num_prefix, 0))
        return whole if mask is None else whole.masked_fill(~mask, -torch.inf)

    def append_to(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries (B, heads, T, d + H + W) and keys (B, heads, P + H * W, d + H + W) whose
        products, divided by sqrt(d), are the logits with the bias.

        The new channels of a key are 1 for its row and its column, and 0 otherwise.
        """
        height, width = self.rows.shape[3], self.columns.shape[3]
        rows, columns = (torch.eye(n, dtype=key.dtype, device=key.device) for n in (height, width))
        rows, columns = rows[:, None].expand(-1, width, -1), columns.expand(height, -1, -1)
        places = torch.cat((rows, columns), dim=2).flatten(0, 1)  # (H * W, H + W)
        places = F.pad(places, (0, 0, self.num_prefix, 0))
        key = torch.cat((key, places.expand(*key.shape[:2], -1, -1)), dim=3)
        parts = torch.cat((self.rows, self.columns), dim=3) * query.shape[3] ** 0.5
        return torch.cat((query, parts.to(query.dtype)), dim=3), key

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that a gradient may go to."""
        return self.rows, self.columns

    def parts(self, query: Tensor) -> list[tuple[slice, slice]]:
        """Images and queries (B, heads, T, d) that are computed together, so that ``MAX_BIAS``
        holds.
        """
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
    """Whether to store the bias, at least for some queries at a time; otherwise it is computed from
    more channels of queries and keys.

    The stored bias is faster on a CPU (`benchmarks/relative_positions.py`). Training keeps it
    whole: there it is stored if it is small, or no larger than queries, keys and values with more
    channels.
    """
    if is_recording():
        return is_exporting()  # a recorded program takes every number of tokens
    channels = query.shape[3] + bias.rows.shape[3] + bias.columns.shape[3]
    if bias.entries <= MAX_BIAS or key.shape[2] <= 3 * channels:
        return True
    return query.device.type in ('cpu', 'meta') and not is_trained(query, key, *bias.tensors)


def is_trained(*tensors: Tensor) -> bool:
    """``True`` if the backward pass needs what attention computes of these."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


@contextmanager
def whole_bias() -> Iterator[None]:
    """Context in which a bias is stored whole, so that each layer has one softmax."""
    global MAX_BIAS
    before, MAX_BIAS = MAX_BIAS, sys.maxsize
    try:
        yield
    finally:
        MAX_BIAS = before

"""Attention with a bias on its logits that has a number for each offset of query and key."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from . import axial_bias
from .axial_bias import AxialBias
from .tokens import Grid


@dataclass(frozen=True)
class OffsetBias:
    """Bias on attention logits that depends on the row and column offset of query and key.

    It is the same for all images. Prefix tokens have no position in the grid, so three further
    entries are for them.

    Attributes:
        table: (heads, (2 h - 1) * (2 w - 1) + 3). An entry for each offset from (1 - h, 1 - w) to
            (h - 1, w - 1), row by row. Then one each for a prefix query and a patch key, a patch
            query and a prefix key, and two prefix tokens.
        side: (h, w), which is ``grid`` or larger.
        grid: (H, W) of the keys, without the prefix keys in front.
        queries: (T,), positions of the queries in the grid, counted row by row. Positions of prefix
            tokens are negative.
        num_prefix: P, the number of prefix keys.
        axial: Another bias on the same queries and keys, to be added.
    """

    table: Tensor
    side: Grid
    grid: Grid
    queries: Tensor
    num_prefix: int = 0
    axial: AxialBias | None = None

    def __add__(self, other: 'LogitBias') -> 'OffsetBias':
        """Add two biases on the same queries and keys."""
        if isinstance(other, AxialBias):
            return replace(self, axial=other if self.axial is None else self.axial + other)
        total = replace(self, table=self.table + other.table)
        return total if other.axial is None else total + other.axial

    __radd__ = __add__

    def with_prefix(self, num_prefix: int, *, queries: bool) -> 'OffsetBias':
        """Prepend ``num_prefix`` keys, and as many queries if ``queries``."""
        positions = self.queries
        if queries and num_prefix:
            front = torch.arange(-num_prefix, 0, device=positions.device)
            positions = torch.cat((front, positions))
        axial = self.axial and self.axial.with_prefix(num_prefix, queries=queries)
        count = self.num_prefix + num_prefix
        return replace(self, queries=positions, num_prefix=count, axial=axial)

    def part(self, images: slice, queries: slice) -> 'OffsetBias':
        """Select some images of the batch and some queries."""
        axial = self.axial and self.axial.part(images, queries)
        return replace(self, queries=self.queries[queries], axial=axial)

    def to_mask(self, mask: Tensor | None = None) -> Tensor:
        """Return the whole bias (1, heads, T, P + H * W), or (B, ...) with ``axial`` or ``mask``.

        It is -inf where the boolean ``mask``, broadcastable to it, is ``False``.
        """
        entries = self._entries()
        # Not table[:, entries], which takes twice as long on a CPU.
        whole = self.table.index_select(1, entries.flatten()).unflatten(1, entries.shape)[None]
        if self.axial is not None:
            whole = whole + self.axial.to_mask()
        return whole if mask is None else whole.masked_fill(~mask, -torch.inf)

    def _entries(self) -> Tensor:
        """Index into the table for each query and key, (T, P + H * W)."""
        columns = self.grid[1]
        queries = self.queries[:, None]
        keys = torch.arange(-self.num_prefix, self.grid[0] * columns, device=queries.device)
        rows = queries // columns - keys // columns
        across = queries - keys - rows * columns  # not %, which ONNX lacks for tensors
        height, width = self.side
        entries = (rows + height - 1) * (2 * width - 1) + across + width - 1
        if not self.num_prefix:
            return entries
        last = self.table.shape[1] - 1
        entries = torch.where(queries < 0, last - 2, entries)
        entries = torch.where(keys < 0, last - 1, entries)
        return torch.where((queries < 0) & (keys < 0), last, entries)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Tensors that may receive a gradient."""
        return (self.table,) if self.axial is None else (self.table, *self.axial.tensors)

    def parts(self, query: Tensor) -> list[tuple[slice, slice]]:
        """Split queries (B, heads, T, d) so that no part exceeds ``MAX_BIAS`` entries."""
        if self.axial is not None:
            return self.axial.parts(query)
        count = query.shape[2]
        keys = self.num_prefix + self.grid[0] * self.grid[1]
        rows = max(axial_bias.MAX_BIAS // (query.shape[1] * keys), 1)
        return [(slice(None), slice(row, row + rows)) for row in range(0, count, rows)]


LogitBias = AxialBias | OffsetBias

"""Learned queries among the tokens of a plain backbone's last blocks (EoMT, arXiv 2503.19108)."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from cpvt_backbones.checks import check_int
from cpvt_backbones.errors import InputError, InputTypeError
from cpvt_backbones.layers.tokens import Grid

Prediction = tuple[Tensor, Tensor]
"""A map (B, Q, h, w) and vectors (B, Q, K): one of each for every query."""


@dataclass(frozen=True, kw_only=True)
class Queries:
    """Further tokens for the last blocks of a :class:`CPVT`, and what to predict from them.

    The queries stand in front of all other tokens. They attend to all tokens, and all tokens to
    them. They have no place in the grid: position encodings treat them as they treat the class
    token.

    Attributes:
        tokens: (Q, C): the queries.
        num_blocks: Number of last blocks that they run through, in [1, depth].
        predict: Function of the queries (B, Q, C) and the feature map (B, C, H', W'), both after
            the final norm. It returns a map (B, Q, h, w) and vectors (B, Q, K).
        stride: Stride in pixels of the map that ``predict`` returns.
        limit: Function of k, the map before block k of the last ones and the grid (H', W'). It
            returns a boolean (B, Q, H' * W'): the patches that each query may attend to in block k.
            ``None`` is no limit. With such a function, there is a prediction before each of the
            last blocks, too.
        padding_value: Value of the map outside an image's valid size.
    """

    tokens: Tensor
    num_blocks: int
    predict: Callable[[Tensor, Tensor], Prediction]
    stride: int
    limit: Callable[[int, Tensor, Grid], Tensor | None] | None = None
    padding_value: float = 0.0

    def check(self, dim: int, depth: int, built: int) -> None:
        """Refuse queries that do not fit a trunk.

        Args:
            dim: Width of its tokens.
            depth: Number of its blocks.
            built: Number of blocks up to the last output, which are built.

        Raises:
            TypeError: ``tokens`` is not a tensor.
            ValueError: Another value is wrong.
        """
        if not isinstance(self.tokens, Tensor):
            raise InputTypeError(
                f'queries.tokens must be a torch.Tensor (Q, {dim}), got'
                f' {type(self.tokens).__name__}'
            )
        if self.tokens.dim() != 2 or self.tokens.shape[1] != dim:
            raise InputError(
                f'queries.tokens must be (Q, {dim}), got shape {tuple(self.tokens.shape)}'
            )
        check_int(minimum=1, maximum=depth, num_blocks=self.num_blocks)
        check_int(stride=self.stride)
        if built < depth:
            raise InputError(
                f'out_indices must have the last block, {depth - 1}, for queries, got'
                f' {built - 1} as the last'
            )

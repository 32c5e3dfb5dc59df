"""A pretrained ViT in two parts: first blocks, whose position encoding is replaced, and the rest, which stays."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cpvt_backbones import CPVT, convert_state_dict
from cpvt_backbones.layers import LearnedTable

TABLE: dict[str, Any] = dict(type='Learned')
PEGS: dict[str, Any] = dict(type='PEG', after_blocks='0-5')
ROPE: dict[str, Any] = dict(type='RoPE')
POSITIONS: dict[str, Any] = {
    'none': None,
    'table': TABLE,
    'peg': PEGS,
    'rope': ROPE,
    'table+peg': [TABLE, PEGS],
    'peg+rope': [PEGS, ROPE],
}
"""The position encodings that are compared, as ``position=`` of :class:`cpvt_backbones.CPVT`."""


@dataclass(frozen=True)
class Source:
    """A pretrained model.

    Args:
        backbone: Arguments of :class:`cpvt_backbones.CPVT`, without ``position``, ``out_indices`` and ``out_type``.
        weights: State dict, in any form that :func:`cpvt_backbones.convert_state_dict` recognises.
        mean, std: Normalisation of the images, of values from 0 to 1.
    """

    backbone: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def build(self, position: Any, *, blocks: int | None = None) -> CPVT:
        """The first ``blocks`` blocks, or all with the norm; the output are tokens. A PEG starts as the identity.

        A model without a table keeps the table's mean over the patches, as the bias of the patch embedding, and the
        class token's own entry.
        """
        part: dict[str, Any] = {} if blocks is None else dict(out_indices=blocks - 1, final_norm=False)
        model = CPVT(**self.backbone, **part, position=position, out_type='raw')
        weights = dict(self.weights)
        table = weights.get('pos_embed')
        if table is not None and not any(isinstance(part, LearnedTable) for part in model.position_encodings):
            del weights['pos_embed']
            bias = weights.get('patch_embed.proj.bias', torch.zeros(model.embed_dims))
            weights['patch_embed.proj.bias'] = bias + table[0, 1:].mean(dim=0)
            weights['cls_token'] = weights['cls_token'] + table[:, :1]
        state_dict, _ = convert_state_dict(weights, model)
        model.load_state_dict(state_dict, strict=False)
        return model


class Split(nn.Module):
    """The first blocks of a student, then the frozen rest of its teacher.

    Args:
        lower: From ``Source.build(position, blocks=...)``.
        whole: From ``Source.build(table)``; its later blocks and its norm are used.
    """

    def __init__(self, lower: CPVT, whole: CPVT) -> None:
        super().__init__()
        self.lower = lower
        self.upper = whole.blocks[len(lower.blocks) :]
        self.norm = whole.norm

    def finish(self, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        """The class token's features (B, C) from the tokens (B, 1 + N, C) after the first blocks."""
        prefix, patches = tokens[:, :1], tokens[:, 1:]
        for block in self.upper:
            patches, prefix = block(patches, prefix, grid)
        return self.norm(prefix[:, 0])

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) to (B, C)."""
        (tokens,) = self.lower(images)
        stride = self.lower.out_strides[0]
        return self.finish(tokens, (-(-images.shape[2] // stride), -(-images.shape[3] // stride)))


def merge(lower: CPVT, whole: CPVT) -> dict[str, Tensor]:
    """State dict of a whole student: a CPVT with the position of ``lower`` and the other arguments of ``whole``."""
    first = tuple(f'blocks.{index}.' for index in range(len(lower.blocks)))
    upper = {
        name: value
        for name, value in whole.state_dict().items()
        if name.startswith(('norm.', 'blocks.')) and not name.startswith(first)
    }
    return lower.state_dict() | upper

"""A pretrained ViT whose position encoding is replaced or extended."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

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
        backbone: Arguments of :class:`cpvt_backbones.CPVT`, without ``position``, ``out_indices``
            and ``out_type``.
        weights: State dict, in any form that :func:`cpvt_backbones.convert_state_dict` recognises.
        mean, std: Normalisation of the images, of values from 0 to 1.
    """

    backbone: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def build(self, position: Any, **options: Any) -> CPVT:
        """The model with another position encoding; its output are tokens.

        A PEG starts as the identity.

        ``options`` are other arguments of the backbone.

        A model without a table keeps the table's mean over the patches, as the bias of the patch
        embedding, and the class token's own entry.
        """
        model = CPVT(**self.backbone, position=position, out_type='raw', **options)
        weights = dict(self.weights)
        table = weights.get('pos_embed')
        if table is not None and not any(
            isinstance(part, LearnedTable) for part in model.position_encodings
        ):
            del weights['pos_embed']
            bias = weights.get('patch_embed.proj.bias', torch.zeros(model.embed_dims))
            weights['patch_embed.proj.bias'] = bias + table[0, 1:].mean(dim=0)
            weights['cls_token'] = weights['cls_token'] + table[:, :1]
        state_dict, _ = convert_state_dict(weights, model)
        model.load_state_dict(state_dict, strict=False)
        return model

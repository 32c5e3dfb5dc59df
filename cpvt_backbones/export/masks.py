"""Graph of EoMT in mmdet, which outputs the logits of all queries before their fusion."""

from typing import Any

from torch import Tensor, nn

from cpvt_backbones.errors import InputError
from cpvt_backbones.heads.eomt import MaskLayers

from .graphs import ExportGraph


class MaskQueries(ExportGraph):
    """Graph of :class:`EoMT` for instances and panoptic segments.

    The output ``masks`` (B, Q, ceil(H / s), ceil(W / s)) has logits at the stride s of the head.
    The output ``classes`` (B, Q, K + 1) has logits, of which the last is "no object". Images keep
    their shape and are not padded to a square.
    """

    task = 'features'
    output_names = ('masks', 'classes')

    @property
    def settings(self) -> dict[str, Any]:
        head = self.model.panoptic_head
        return super().settings | dict(
            strides=[head.stride, 1], channels=[head.num_queries, head.num_classes + 1]
        )

    def outputs(self, inputs: Tensor, *, height: int, width: int) -> tuple[Tensor, ...]:
        return self.model.extract_feat(inputs)[-1]


class LastPrediction(nn.Module):
    """The outputs of :class:`MaskQueries`, computed by the toolbox's model."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return self.model.extract_feat(inputs)[-1]


def refuse_masked_attention(model: nn.Module) -> None:
    """Refuse an EoMT whose attention is still masked, because graphs have no such masks.

    Raises:
        ValueError: The masks are not annealed to none.
    """
    for module in model.modules():
        if isinstance(module, MaskLayers) and module.masks_in_prediction():
            raise InputError(
                'model must have attn_mask_probs of at most 0.5, got'
                f' {module.attn_mask_probs.tolist()}: train to the end of MaskAnnealingHook'
            )

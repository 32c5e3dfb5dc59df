"""mmdet's DETR with PEG in its encoder."""

from typing import Any

import torch
from mmdet.models.detectors import DETR
from mmengine.registry import MODELS

from cpvt_backbones.checks import check_keywords
from cpvt_backbones.layers import PEGPosition, Stage


@MODELS.register_module(force=True)  # replaces the function of .lazy_registration
class DETRWithPEG(DETR):
    """mmdet's DETR with PEG instead of the sine encoding in its encoder (CPVT paper, v1 and v2).

    The decoder keeps the sine encoding. ``encoder=dict(peg=...)`` has arguments of
    :class:`PEGPosition`, whose blocks are the layers of the encoder. Without ``peg``, or with
    ``None``, the encoder has no position encoding. Padding tokens do not change, but their
    neighbours see them. All other arguments are those of mmdet's ``DETR``.

    Examples:
        ```python
        # cpvt_backbones::detr/detr_r50_peg_8xb2-50e_coco.py is complete
        custom_imports = dict(imports=['cpvt_backbones'])
        model = dict(
            type='DETRWithPEG',
            encoder=dict(peg=dict(after_blocks=(0,), kernel_size=3)),
        )
        ```
    """

    encoder: Any

    def _init_layers(self) -> None:
        options = dict(self.encoder)
        peg = options.pop('peg', None)
        self.encoder = options
        super()._init_layers()
        depth, dim = len(self.encoder.layers), self.embed_dims
        check_keywords('encoder.peg', PEGPosition, peg or {}, positional=('stages',))
        stage = Stage(dim=dim, depth=depth, used=depth, head_dim=dim, grid=(1, 1))
        self.pos_block = None if peg is None else PEGPosition([stage], **peg)

    def pre_transformer(self, img_feats: Any, batch_data_samples: Any = None) -> Any:
        """Add the grid (height, width) of the last feature map to the encoder's inputs."""
        encoder, decoder = super().pre_transformer(img_feats, batch_data_samples)
        return {**encoder, 'grid': img_feats[-1].shape[-2:]}, decoder

    def forward_encoder(self, feat: Any, feat_mask: Any, feat_pos: Any, grid: Any) -> Any:
        """Run the encoder.

        Args:
            feat: Tokens (B, N, C).
            feat_mask: (B, N), ``True`` for padding.
            feat_pos: The sine encoding, which the encoder does not use.
            grid: (height, width) of the tokens.
        """
        for index in range(-1, len(self.encoder.layers)):
            if index >= 0:
                feat = self.encoder.layers[index](feat, None, feat_mask)
            if self.pos_block is None:
                continue
            encoded, _ = self.pos_block.after_block(0, index, feat, grid)
            if feat_mask is not None:
                encoded = torch.where(feat_mask[..., None], feat, encoded)
            feat = encoded
        return dict(memory=feat)

"""EoMT for mmsegmentation: class maps.

Importing this module imports mmsegmentation and mmdet, whose losses it uses.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mmengine.registry import MODELS
from mmseg.models import EncoderDecoder
from mmseg.models.decode_heads import Mask2FormerHead
from torch import Tensor

from cpvt_backbones.checks import check_bool, check_int

from .detection import MaskLosses


@MODELS.register_module(force=True)  # in place of the function of engine.lazy_registration
class EoMTSegHead(MaskLosses, Mask2FormerHead):
    """EoMT's head for mmsegmentation: queries, and the layers that make masks and classes of them.

    It is the ``decode_head`` of :class:`EoMTSegmentor`. Losses and matching are those of mmdet's
    ``Mask2FormerHead``, by points within each image of a padded batch: each class of an image is
    one mask.

    Args:
        embed_dims: Width of the trunk.
        num_classes: Number of classes.
        num_queries: Number of queries.
        ignore_index: Label of pixels that belong to no class.
        align_corners: How mmsegmentation resizes the scores to the size of the original image. The
            authors do not align corners.

    The other arguments are those of :class:`EoMTHead`.

    Raises:
        ValueError: An argument is wrong. The message names it, its value and what is accepted.
    """

    def __init__(
        self,
        *,
        embed_dims: int,
        num_classes: int,
        num_queries: int = 100,
        num_blocks: int = 4,
        patch_size: int = 16,
        num_upscale: int | None = None,
        masked_attention: bool = True,
        class_order: Sequence[int] | None = None,
        ignore_index: int = 255,
        align_corners: bool = False,
        loss_cls: Mapping[str, Any] | None = None,
        loss_mask: Mapping[str, Any] | None = None,
        loss_dice: Mapping[str, Any] | None = None,
        train_cfg: Mapping[str, Any] | None = None,
        test_cfg: Mapping[str, Any] | None = None,
        init_cfg: Any = None,
    ) -> None:
        check_int(minimum=0, ignore_index=ignore_index)
        check_bool(align_corners=align_corners)
        MaskLosses.__init__(
            self,
            embed_dims=embed_dims,
            num_classes=num_classes,
            num_queries=num_queries,
            num_blocks=num_blocks,
            patch_size=patch_size,
            num_upscale=num_upscale,
            masked_attention=masked_attention,
            class_order=class_order,
            loss_cls=loss_cls,
            loss_mask=loss_mask,
            loss_dice=loss_dice,
            train_cfg=train_cfg,
            test_cfg=test_cfg,
            init_cfg=init_cfg,
        )
        self.out_channels = num_classes
        self.ignore_index = ignore_index
        self.align_corners = align_corners

    def predict(
        self, x: Sequence[tuple[Tensor, Tensor]], batch_img_metas: Any, test_cfg: Any
    ) -> Tensor:
        """Compute the scores of the classes in each pixel, (B, K, H, W).

        Args:
            x: Predictions of :meth:`MaskLayers.run`.
            batch_img_metas: mmsegmentation's description of the images, all of one ``img_shape``.
            test_cfg: Not used.
        """
        masks, classes = x[-1]
        return self.class_map(masks, classes, batch_img_metas[0]['img_shape'][:2])


@MODELS.register_module(force=True)  # in place of the function of engine.lazy_registration
class EoMTSegmentor(EncoderDecoder):
    """EoMT (arXiv 2503.19108) as a segmentor of mmsegmentation: a plain :class:`CPVT` and an
    :class:`EoMTSegHead`.

    Images may have any size. With ``test_cfg=dict(mode='whole')``, an image is computed in one
    piece. With ``dict(mode='slide', crop_size=(512, 512))``, and no ``stride``, it is computed as
    the authors do, in as few windows as cover it, at even distances. The scores of the published
    weights belong to the latter.

    The arguments are those of mmsegmentation's ``EncoderDecoder``.

    Args:
        backbone (dict): Config of a :class:`CPVT` whose last output is that of the last block.
        decode_head (dict): Config of an :class:`EoMTSegHead`, whose ``embed_dims`` is the width of
            the backbone.
        data_preprocessor (dict | None): Config of the data preprocessor. Default: ``None``.
        test_cfg (dict | None): ``dict(mode='whole')``, or ``mode='slide'`` with ``crop_size``, the
            (height, width) of a window in px. With a ``stride`` in px, the windows are those of
            mmsegmentation. Validation and prediction need it. Default: ``None``.
        train_cfg (dict | None): mmsegmentation's; the segmentor reads nothing of it.
            Default: ``None``.
        init_cfg (dict | None): Initialisation of mmengine. Default: ``None``.

    Examples:
        ```python
        custom_imports = dict(imports=['cpvt_backbones'])
        model = dict(
            type='EoMTSegmentor',
            data_preprocessor=dict(
                type='SegDataPreProcessor',
                mean=[123.675, 116.28, 103.53],
                std=[58.395, 57.12, 57.375],
                bgr_to_rgb=True,
                pad_val=0,
                seg_pad_val=255,
                size=(512, 512),
            ),
            backbone=dict(type='CPVT', arch='small', position=dict(type='PEG')),
            decode_head=dict(
                type='EoMTSegHead', embed_dims=384, num_classes=150, num_blocks=3
            ),
            test_cfg=dict(mode='slide', crop_size=(512, 512)),
        )
        ```
    """

    decode_head: EoMTSegHead

    def extract_feat(self, inputs: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Compute mask and class logits of each prediction, see :meth:`MaskLayers.run`."""
        return self.decode_head.run(self.backbone, inputs)

    def encode_decode(self, inputs: Tensor, batch_img_metas: Any) -> Tensor:
        """Compute the scores of the classes in each pixel of ``inputs``, (B, K, H, W)."""
        masks, classes = self.extract_feat(inputs)[-1]
        return self.decode_head.class_map(masks, classes, inputs.shape[2:])

    def slide_inference(self, inputs: Tensor, batch_img_metas: Any) -> Tensor:
        """Compute scores (B, K, H, W): the mean over all windows that a pixel is in."""
        if self.test_cfg.get('stride') is not None:
            return super().slide_inference(inputs, batch_img_metas)
        height, width = self.test_cfg.crop_size
        total = inputs.new_zeros(len(inputs), self.out_channels, *inputs.shape[2:])
        count = inputs.new_zeros(1, 1, *inputs.shape[2:])
        for top in starts(inputs.shape[2], height):
            for left in starts(inputs.shape[3], width):
                window = (..., slice(top, top + height), slice(left, left + width))
                total[window] += self.encode_decode(inputs[window], batch_img_metas)
                count[window] += 1
        return total / count


def starts(length: int, window: int) -> list[int]:
    """Return the first pixels of the fewest windows that cover a length, evenly spaced.

    Examples:
        >>> from cpvt_backbones.heads.segmentation import starts
        >>> starts(683, 512), starts(512, 512), starts(300, 512)
        ([0, 171], [0], [0])
    """
    count = math.ceil(length / window)
    overlap = (count * window - length) / max(count - 1, 1)
    return [int(index * (window - overlap)) for index in range(count)] if count > 1 else [0]

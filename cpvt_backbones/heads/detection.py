"""EoMT for mmdet: instances and panoptic segments, on mmdet's losses, matching and fusion.

Importing this module imports mmdet.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from mmcv.ops import point_sample
from mmdet.models.dense_heads import Mask2FormerHead
from mmdet.models.detectors import MaskFormer
from mmdet.models.utils import get_uncertain_point_coords_with_randomness
from mmdet.registry import MODELS as MMDET_MODELS
from mmdet.registry import TASK_UTILS
from mmdet.utils import reduce_mean
from mmengine.config import ConfigDict
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from mmengine.structures import InstanceData
from torch import Tensor, nn

from cpvt_backbones.checks import check_int
from cpvt_backbones.layers import ceil_div

from .eomt import MaskLayers, resize_masks
from .ignored import MaskTargets

# Those of the authors, which are Mask2Former's.
MATCHING = dict(
    num_points=12544,
    oversample_ratio=3.0,
    importance_sample_ratio=0.75,
    assigner=dict(
        type='mmdet.HungarianAssigner',
        match_costs=[
            dict(type='mmdet.ClassificationCost', weight=2.0),
            dict(type='mmdet.CrossEntropyLossCost', weight=5.0, use_sigmoid=True),
            dict(type='mmdet.DiceCost', weight=5.0, pred_act=True, eps=1.0),
        ],
    ),
    sampler=dict(type='mmdet.MaskPseudoSampler'),
)
"""``train_cfg`` of the heads: points of a mask, and how queries are matched to objects."""

NO_OBJECT_WEIGHT = 0.1


class MaskLosses(MaskLayers, Mask2FormerHead):
    """Mask2Former's losses and targets on the predictions of :class:`MaskLayers`.

    In a padded batch, the points of the masks are drawn within each image (``img_shape``), and not
    in its padding as in mmdet. With a data preprocessor that announces sizes, the losses are
    therefore those of the images alone, averaged as over any batch.
    """

    get_targets: Any  # of mmdet, which has no types

    def __init__(
        self,
        *,
        embed_dims: int,
        num_classes: int,
        num_queries: int,
        num_blocks: int,
        patch_size: int,
        num_upscale: int | None,
        masked_attention: bool,
        class_order: Sequence[int] | None,
        loss_cls: Mapping[str, Any] | None,
        loss_mask: Mapping[str, Any] | None,
        loss_dice: Mapping[str, Any] | None,
        train_cfg: Mapping[str, Any] | None,
        test_cfg: Mapping[str, Any] | None,
        init_cfg: Any,
    ) -> None:
        # Not Mask2FormerHead's own, which builds a pixel decoder and a transformer.
        BaseModule.__init__(self, init_cfg=init_cfg)
        self.num_classes = num_classes
        self.add_mask_layers(
            embed_dims=embed_dims,
            num_classes=num_classes,
            num_queries=num_queries,
            num_blocks=num_blocks,
            patch_size=patch_size,
            num_upscale=num_upscale,
            masked_attention=masked_attention,
            class_order=class_order,
        )
        self.train_cfg = ConfigDict(deepcopy({**MATCHING, **(train_cfg or {})}))
        self.test_cfg = test_cfg
        self.assigner = TASK_UTILS.build(self.train_cfg.assigner)
        self.sampler = TASK_UTILS.build(self.train_cfg.sampler, default_args=dict(context=self))
        self.num_points = self.train_cfg.num_points
        self.oversample_ratio = self.train_cfg.oversample_ratio
        self.importance_sample_ratio = self.train_cfg.importance_sample_ratio
        losses = _losses(num_classes)
        self.loss_cls, self.loss_mask, self.loss_dice = (
            MMDET_MODELS.build({**losses[name], **(given or {})})
            for name, given in dict(cls=loss_cls, mask=loss_mask, dice=loss_dice).items()
        )
        self.class_weight = self.loss_cls.class_weight

    def init_weights(self) -> None:
        """Initialise as ``init_cfg`` says. The layers keep PyTorch's initial values otherwise."""
        BaseModule.init_weights(self)

    def forward(
        self, x: Sequence[tuple[Tensor, Tensor]], batch_data_samples: Any = None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return class logits and mask logits of each prediction, as mmdet's losses take them.

        Args:
            x: Predictions of :meth:`MaskLayers.run`.
            batch_data_samples: Not used.
        """
        return [classes for _, classes in x], [masks for masks, _ in x]

    def _get_targets_single(
        self, cls_score: Tensor, mask_pred: Tensor, gt_instances: InstanceData, img_meta: Any
    ) -> tuple[Any, ...]:
        """Match the queries of an image as mmdet does, without the padding."""
        own = InstanceData(
            labels=gt_instances.labels, masks=_without_padding(gt_instances.masks, img_meta)
        )
        mask_pred = _without_padding(mask_pred, img_meta, self.stride)
        return super()._get_targets_single(cls_score, mask_pred, own, img_meta)

    def _loss_by_feat_single(
        self,
        cls_scores: Tensor,
        mask_preds: Tensor,
        batch_gt_instances: list[InstanceData],
        batch_img_metas: list[Any],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute mmdet's losses of one prediction, from points of each image without its padding.

        Args:
            cls_scores: Class logits (B, Q, K + 1).
            mask_preds: Mask logits (B, Q, h, w).
            batch_gt_instances: ``labels`` and ``masks`` of each image.
            batch_img_metas: ``img_shape`` of each image.

        Returns:
            Losses of the classes, of the masks' pixels, and the dice loss.
        """
        *targets, count = self.get_targets(
            [*cls_scores], [*mask_preds], batch_gt_instances, batch_img_metas
        )
        labels, label_weights, mask_targets, mask_weights = targets
        classes = torch.cat(labels)
        loss_cls = self.loss_cls(
            cls_scores.flatten(0, 1),
            classes,
            torch.cat(label_weights),
            avg_factor=cls_scores.new_tensor(self.class_weight)[classes].sum(),
        )
        count = reduce_mean(cls_scores.new_tensor([count])).clamp(min=1)
        points = [
            self._points(_without_padding(masks[weights > 0], meta, self.stride), wanted)
            for masks, weights, wanted, meta in zip(
                mask_preds, mask_weights, mask_targets, batch_img_metas, strict=True
            )
            if len(wanted)
        ]
        if not points:
            nothing = mask_preds[:, :0].sum()
            return loss_cls, nothing, nothing
        predicted, wanted = (torch.cat(parts) for parts in zip(*points, strict=True))
        loss_dice = self.loss_dice(predicted, wanted, avg_factor=count)
        loss_mask = self.loss_mask(
            predicted.flatten(), wanted.flatten(), avg_factor=count * self.num_points
        )
        return loss_cls, loss_mask, loss_dice

    def _points(self, masks: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Sample logits and targets (N, points) of masks, mostly where the masks are uncertain.

        Args:
            masks: Mask logits (N, h, w).
            targets: Masks (N, H, W), 0 or 1.
        """
        masks, targets = masks[:, None], targets[:, None].float()
        with torch.no_grad():
            places = get_uncertain_point_coords_with_randomness(
                masks, None, self.num_points, self.oversample_ratio, self.importance_sample_ratio
            )
            wanted = point_sample(targets, places)[:, 0]
        return point_sample(masks, places)[:, 0], wanted


def _without_padding(masks: Tensor, img_meta: Mapping[str, Any], stride: int = 1) -> Tensor:
    """Cut the padding off the masks (N, h, w) of an image."""
    rows, columns = (ceil_div(length, stride) for length in img_meta['img_shape'][:2])
    return masks[:, :rows, :columns]


def _losses(num_classes: int) -> dict[str, dict[str, Any]]:
    weights = [1.0] * num_classes + [NO_OBJECT_WEIGHT]
    return dict(
        cls=dict(
            type='mmdet.CrossEntropyLoss',
            use_sigmoid=False,
            loss_weight=2.0,
            reduction='mean',
            class_weight=weights,
        ),
        mask=dict(
            type='mmdet.CrossEntropyLoss', use_sigmoid=True, reduction='mean', loss_weight=5.0
        ),
        dice=dict(
            type='mmdet.DiceLoss',
            use_sigmoid=True,
            activate=True,
            reduction='mean',
            naive_dice=True,
            eps=1.0,
            loss_weight=5.0,
        ),
    )


@MODELS.register_module(force=True)  # in place of the function of engine.lazy_registration
class EoMTHead(MaskTargets, MaskLosses):
    """EoMT's head for mmdet: queries, and the layers that make masks and classes of them.

    It is the ``panoptic_head`` of :class:`EoMT`. Losses and matching are those of mmdet's
    ``Mask2FormerHead``, with the values of EoMT's authors, and points within each image of a padded
    batch. Unmatched queries whose mask lies on ignored objects have no classification loss.

    Args:
        embed_dims: Width of the trunk.
        num_things_classes: Number of classes of objects, which come first.
        num_stuff_classes: Number of classes of regions. 0 in instance segmentation.
        num_queries: Number of queries, the most segments that an image can have.
        num_blocks: Number of the trunk's last blocks that the queries run through. The paper has 3
            for ViT-S and -B, 4 for -L and 5 for -g.
        patch_size: Side of the trunk's patches in px.
        num_upscale: Number of steps that each halve the stride of the masks. ``None`` is the
            paper's, to a stride of 4 px for patches of 16 px.
        masked_attention: Begin a training with masked attention. :class:`MaskAnnealingHook` takes
            it away. Weights of EoMT have none.
        class_order: Row of the class layer for each class, where the weights have the classes in
            another order than the data set.
        loss_cls: Arguments of the loss of the classes that replace the authors'.
        loss_mask: Those of the loss of the masks' pixels.
        loss_dice: Those of the dice loss.
        train_cfg: Entries that replace those of ``MATCHING``.
        test_cfg: Set by the detector.
        init_cfg: Initialisation of mmengine.

    Raises:
        ValueError: An argument is wrong. The message names it, its value and what is accepted.
    """

    def __init__(
        self,
        *,
        embed_dims: int,
        num_things_classes: int = 80,
        num_stuff_classes: int = 53,
        num_queries: int = 200,
        num_blocks: int = 4,
        patch_size: int = 16,
        num_upscale: int | None = None,
        masked_attention: bool = True,
        class_order: Sequence[int] | None = None,
        loss_cls: Mapping[str, Any] | None = None,
        loss_mask: Mapping[str, Any] | None = None,
        loss_dice: Mapping[str, Any] | None = None,
        train_cfg: Mapping[str, Any] | None = None,
        test_cfg: Mapping[str, Any] | None = None,
        init_cfg: Any = None,
    ) -> None:
        check_int(
            minimum=0, num_things_classes=num_things_classes, num_stuff_classes=num_stuff_classes
        )
        super().__init__(
            embed_dims=embed_dims,
            num_classes=num_things_classes + num_stuff_classes,
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
        self.num_things_classes = num_things_classes
        self.num_stuff_classes = num_stuff_classes


@MODELS.register_module(force=True)  # in place of the function of engine.lazy_registration
class EoMT(MaskFormer):
    """EoMT (arXiv 2503.19108) as a detector of mmdet: a plain :class:`CPVT` and an
    :class:`EoMTHead`, with mmdet's fusion of masks.

    Images may have any size. ``test_cfg`` has mmdet's entries for ``MaskFormerFusionHead`` and:

    | entry | meaning |
    | --- | --- |
    | ``square`` | side in px of the black square that each image is padded to, as the authors do |

    ``None``, the default, computes the image alone. The scores of the published weights belong to
    the square.

    Args:
        backbone: Config of a :class:`CPVT` whose last output is that of the last block.
        panoptic_head: Config of an :class:`EoMTHead`.
        panoptic_fusion_head: Config of mmdet's fusion; ``None`` is that of the authors.
        train_cfg: Entries that replace those of the head's ``train_cfg``.
        test_cfg: Entries that replace the authors' settings of prediction.
        data_preprocessor: Config of the data preprocessor.
        init_cfg: Initialisation of mmengine.

    Raises:
        ValueError: ``test_cfg.square`` is not an integer.

    Examples:
        ```python
        custom_imports = dict(imports=['cpvt_backbones'])
        model = dict(
            type='EoMT',
            data_preprocessor=dict(
                type='ValidSizesDetDataPreprocessor',
                mean=[123.675, 116.28, 103.53],
                std=[58.395, 57.12, 57.375],
                bgr_to_rgb=True,
                pad_mask=True,
                pad_seg=True,
            ),
            backbone=dict(type='CPVT', arch='small', position=dict(type='PEG')),
            panoptic_head=dict(type='EoMTHead', embed_dims=384, num_blocks=3),
            test_cfg=dict(panoptic_on=True, instance_on=False),
        )
        ```
    """

    panoptic_head: EoMTHead

    def __init__(
        self,
        *,
        backbone: Mapping[str, Any],
        panoptic_head: Mapping[str, Any],
        panoptic_fusion_head: Mapping[str, Any] | None = None,
        train_cfg: Mapping[str, Any] | None = None,
        test_cfg: Mapping[str, Any] | None = None,
        data_preprocessor: Mapping[str, Any] | nn.Module | None = None,
        init_cfg: Any = None,
    ) -> None:
        head = ConfigDict(panoptic_head)
        classes = {
            name: head[name] for name in ('num_things_classes', 'num_stuff_classes') if name in head
        }
        fusion = dict(type='mmdet.MaskFormerFusionHead', loss_panoptic=None, **classes)
        # As the authors': a segment has the pixels of its own mask only.
        settings = dict(panoptic_on=True, instance_on=False, filter_low_score=True)
        super().__init__(
            backbone=backbone,
            panoptic_head=head,
            panoptic_fusion_head=ConfigDict({**fusion, **(panoptic_fusion_head or {})}),
            train_cfg=train_cfg,
            test_cfg=ConfigDict({**settings, **(test_cfg or {})}),
            data_preprocessor=data_preprocessor,
            init_cfg=init_cfg,
        )
        if self.test_cfg.get('square') is not None:
            check_int(**{'test_cfg.square': self.test_cfg.square})
        pairs = self.panoptic_head.num_queries * self.num_classes
        self.test_cfg.max_per_image = min(self.test_cfg.get('max_per_image', 100), pairs)
        self.panoptic_fusion_head.test_cfg = self.test_cfg

    def extract_feat(self, batch_inputs: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Compute mask and class logits of each prediction, see :meth:`MaskLayers.run`."""
        return self.panoptic_head.run(self.backbone, batch_inputs)

    def predict(self, batch_inputs: Tensor, batch_data_samples: Any, rescale: bool = True) -> Any:
        """Predict instances or panoptic segments.

        Args:
            batch_inputs: Normalised images (B, C, H, W).
            batch_data_samples: mmdet's samples with ``img_shape`` and ``ori_shape``.
            rescale: Give the masks the size of the original image.

        Returns:
            The samples, with ``pred_panoptic_seg`` and ``pred_instances`` as ``test_cfg`` says.
        """
        shapes = [tuple(sample.img_shape[:2]) for sample in batch_data_samples]
        side = self.test_cfg.get('square')
        if side is not None:
            batch_inputs = self._on_squares(batch_inputs, shapes, side)
        masks, classes = self.extract_feat(batch_inputs)[-1]
        results = []
        for index, (sample, shape) in enumerate(zip(batch_data_samples, shapes, strict=True)):
            kept = self._kept_queries(classes[index])
            one = self._masks_of_pixels(masks[index], kept, shape, is_padded=side is not None)
            if rescale:
                one = resize_masks(one, sample.ori_shape[:2])
            results.append(self._fuse(classes[index, kept], one))
        return self.add_pred_to_datasample(batch_data_samples, results)

    def _on_squares(self, images: Tensor, shapes: Sequence[Any], side: int) -> Tensor:
        """Put each image at the top left of a black square."""
        side = max(side, *(length for shape in shapes for length in shape))
        preprocessor = self.data_preprocessor
        black = images.new_zeros(images.shape[1], 1, 1)
        if getattr(preprocessor, '_enable_normalize', False):
            black = (-preprocessor.mean / preprocessor.std).to(images)
        squares = black.expand(len(images), -1, side, side).clone()
        for square, image, (height, width) in zip(squares, images, shapes, strict=True):
            square[:, :height, :width] = image[:, :height, :width]
        return squares

    def _masks_of_pixels(
        self, masks: Tensor, kept: Tensor, shape: Sequence[int], *, is_padded: bool
    ) -> Tensor:
        """Resize the mask logits of the kept queries to an image of ``shape``: (kept, H, W)."""
        stride = self.panoptic_head.stride
        # Between the last cell of an image and its border, the first cell of the square counts.
        more = 1 if is_padded else 0
        rows, columns = (ceil_div(length, stride) + more for length in shape)
        pixels = self.panoptic_head.upsample(masks[kept, :rows, :columns])
        return pixels[:, : shape[0], : shape[1]]

    def _kept_queries(self, classes: Tensor) -> Tensor:
        """Return indices of the queries that the fusion uses; only their masks are upsampled."""
        probabilities = classes.softmax(1)
        kept = torch.zeros_like(probabilities[:, 0], dtype=torch.bool)
        if self.test_cfg.panoptic_on:
            scores, labels = probabilities.max(1)
            threshold = self.test_cfg.get('object_mask_thr', 0.8)
            kept |= (labels != self.num_classes) & (scores > threshold)
        if self.test_cfg.instance_on:
            best = probabilities[:, :-1].flatten().topk(self.test_cfg.max_per_image).indices
            kept[best // self.num_classes] = True
        return kept.nonzero()[:, 0]

    def _fuse(self, classes: Tensor, masks: Tensor) -> dict[str, Any]:
        """Apply mmdet's fusion to class logits (Q, K + 1) and mask logits (Q, H, W)."""
        results = {}
        if self.test_cfg.panoptic_on:
            results['pan_results'] = self.panoptic_fusion_head.panoptic_postprocess(classes, masks)
        if self.test_cfg.instance_on:
            results['ins_results'] = self.panoptic_fusion_head.instance_postprocess(classes, masks)
        return results

"""Heads and assigners of mmdet that leave ignored objects out of the loss.

Difficult objects, ``iscrowd`` regions and the parts of objects that a tile cuts off are in
``DetDataSample.ignored_instances``. mmdet's assigners use them only with ``ignore_iof_thr``, and
not in an image that has no other object. Its DETR, DINO and Mask2Former heads drop them. There, an
ignored object is trained as background. The classes of this module are mmdet's own, except for
predictions that are background and lie on an ignored object: these have no classification loss.

A prediction lies on an ignored object if more than half of its area is inside, which is COCO's rule
for crowds in the evaluation. Labelled objects keep all predictions that are assigned to them.

Importing this module imports mmdet. A config needs no import of its own.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from mmdet.models.dense_heads import DETRHead, DINOHead, Mask2FormerHead
from mmdet.models.task_modules.assigners import AssignResult, MaxIoUAssigner
from mmdet.structures.bbox import bbox_cxcywh_to_xyxy, bbox_overlaps, get_box_tensor
from mmdet.structures.mask import BitmapMasks
from mmengine.registry import MODELS, TASK_UTILS
from mmengine.structures import InstanceData
from torch import Tensor

SHARE = 0.5
"""Share of a prediction's area. With more of it inside an ignored object, there is no loss."""


def _boxes_on(ignored: InstanceData | None, boxes: Tensor) -> Tensor:
    """(N,) bool, true for the boxes (N, 4) in px that lie on an ignored object."""
    if ignored is None or len(ignored) == 0 or len(boxes) == 0:
        return boxes.new_zeros(len(boxes), dtype=torch.bool)
    regions = get_box_tensor(ignored.bboxes).to(boxes)
    return bbox_overlaps(boxes, regions, mode='iof').amax(1) > SHARE


@TASK_UTILS.register_module(force=True)  # in place of the function of .lazy_registration
class IgnoreAwareMaxIoUAssigner(MaxIoUAssigner):
    """mmdet's ``MaxIoUAssigner``, which takes no background from ignored objects.

    It serves all heads with anchors or proposals: RetinaNet, RPN, Faster, Mask and Cascade R-CNN.
    A prior that would be background and lies on an ignored object takes no part in the loss
    (index -1). mmdet's ``ignore_iof_thr`` does so only beside labelled objects, and also takes
    priors from labelled objects. All arguments are those of ``MaxIoUAssigner``.

    Examples:
        ```python
        # RetinaNet; Mask R-CNN has such assigners in train_cfg.rpn and train_cfg.rcnn
        custom_imports = dict(imports=['cpvt_backbones'])
        model = dict(train_cfg=dict(assigner=dict(type='IgnoreAwareMaxIoUAssigner')))
        ```
    """

    handles_ignored = True  # see engine.labels.note_ignored

    def assign(
        self,
        pred_instances: InstanceData,
        gt_instances: InstanceData,
        gt_instances_ignore: InstanceData | None = None,
        **options: Any,
    ) -> AssignResult:
        """Assign labelled objects as mmdet does, and exempt background on ignored ones.

        Args:
            pred_instances: ``priors``, the boxes (N, 4).
            gt_instances: ``bboxes`` (K, 4) and ``labels`` (K,) of the labelled objects.
            gt_instances_ignore: ``bboxes`` of the ignored objects.
            options: Further arguments of mmdet's method.

        Returns:
            mmdet's result. ``gt_inds`` is -1 for the exempt priors.
        """
        result = super().assign(pred_instances, gt_instances, gt_instances_ignore, **options)
        exempt = _boxes_on(gt_instances_ignore, get_box_tensor(pred_instances.priors))
        result.gt_inds[exempt & (result.gt_inds == 0)] = -1
        return result


def _exempt(targets: tuple[Any, ...], on_ignored: Tensor) -> tuple[Any, ...]:
    """Targets of one image without the classification loss of unmatched queries.

    Args:
        targets: Result of mmdet's ``_get_targets_single``: the labels (Q,), their weights, targets
            and weights of boxes or masks, indices of matched and of unmatched queries, and more.
        on_ignored: (Q,) bool, true for predictions that lie on an ignored object.
    """
    labels, weights, targets_, target_weights, matched, unmatched, *more = targets
    weights = weights.clone()
    weights[unmatched[on_ignored[unmatched]]] = 0
    unmatched = unmatched[~on_ignored[unmatched]]
    return (labels, weights, targets_, target_weights, matched, unmatched, *more)


class IgnoreAwareTargets:
    """Mixin of mmdet's heads with queries: ignored objects are in the metainfo of an image.

    mmdet's heads hand the labelled objects and the metainfo to ``_get_targets_single``, for each
    image and each layer of the decoder, and drop the ignored objects. This mixin adds them to the
    metainfo, and sets the weight of unmatched predictions on them to zero.
    """

    handles_ignored = True  # see engine.labels.note_ignored

    def loss(self, *args: Any, batch_data_samples: Any = None, **options: Any) -> Any:
        """Losses as in mmdet. The data samples are the last positional argument or named."""
        samples = args[-1] if batch_data_samples is None else batch_data_samples
        for sample in samples:
            sample.set_metainfo(dict(ignored=self._ignored_of(sample)))
        if batch_data_samples is not None:
            options['batch_data_samples'] = batch_data_samples
        return super().loss(*args, **options)  # type: ignore[misc]

    def _ignored_of(self, sample: Any) -> InstanceData | None:
        """Return the ignored objects of a data sample."""
        found: InstanceData | None = sample.get('ignored_instances')
        return found

    def _get_targets_single(
        self, scores: Tensor, predictions: Tensor, gt_instances: InstanceData, img_meta: Any
    ) -> tuple[Any, ...]:
        targets = super()._get_targets_single(  # type: ignore[misc]
            scores, predictions, gt_instances, img_meta
        )
        ignored = img_meta.get('ignored')
        if ignored is None or len(ignored) == 0:
            return tuple(targets)
        return _exempt(targets, self._on_ignored(predictions.detach(), ignored, img_meta))

    def _on_ignored(
        self, predictions: Tensor, ignored: InstanceData, img_meta: Mapping[str, Any]
    ) -> Tensor:
        """(Q,) bool, true for predictions that lie on an ignored object."""
        raise NotImplementedError


class _BoxTargets(IgnoreAwareTargets):
    """Predictions are boxes (Q, 4): centre, width and height as shares of the image."""

    def _on_ignored(
        self, predictions: Tensor, ignored: InstanceData, img_meta: Mapping[str, Any]
    ) -> Tensor:
        height, width = img_meta['img_shape'][:2]
        scale = predictions.new_tensor([width, height, width, height])
        return _boxes_on(ignored, bbox_cxcywh_to_xyxy(predictions) * scale)


class MaskTargets(IgnoreAwareTargets):
    """Mixin of a head whose predictions are mask logits (Q, h, w) of the padded batch.

    mmdet's panoptic data set drops crowds. Their pixels keep the class of an object in the
    semantic map, and are in no object's mask: together they are one ignored object.
    """

    num_things_classes: int
    num_stuff_classes: int

    def _ignored_of(self, sample: Any) -> InstanceData | None:
        found = super()._ignored_of(sample)
        regions = sample.get('gt_sem_seg')
        if (found is not None and len(found)) or regions is None or not self.num_stuff_classes:
            return found
        crowds = regions.sem_seg[0] < self.num_things_classes
        masks = sample.gt_instances.masks.to_tensor(torch.bool, crowds.device)
        height, width = (min(sizes) for sizes in zip(crowds.shape, masks.shape[1:], strict=True))
        crowds = crowds[:height, :width] & ~masks[:, :height, :width].any(0)
        if not crowds.any():
            return found
        pixels = crowds[None].to(torch.uint8).cpu().numpy()
        return InstanceData(masks=BitmapMasks(pixels, height, width))

    def _on_ignored(
        self, predictions: Tensor, ignored: InstanceData, img_meta: Mapping[str, Any]
    ) -> Tensor:
        height, width = img_meta['batch_input_shape']
        region = torch.zeros(height, width, device=predictions.device)
        if 'masks' in ignored:
            masks = ignored.masks.to_tensor(torch.float32, predictions.device).amax(0)
            region[: masks.shape[0], : masks.shape[1]] = masks
        else:
            for left, top, right, bottom in get_box_tensor(ignored.bboxes).round().int().tolist():
                region[max(top, 0) : bottom, max(left, 0) : right] = 1
        region = F.interpolate(region[None, None], predictions.shape[-2:], mode='area')[0, 0]
        inside = (predictions > 0).flatten(1).float()
        return inside @ region.flatten() > SHARE * inside.sum(1)


@MODELS.register_module(force=True)  # in place of the function of .lazy_registration
class IgnoreAwareDETRHead(_BoxTargets, DETRHead):
    """mmdet's ``DETRHead``. Unmatched queries on an ignored object have no classification loss.

    The arguments are those of ``DETRHead``.

    Args:
        num_classes: Number of classes, without the background.
        loss_cls: Config of the classification loss. ``bg_cls_weight`` is the weight of the
            background, relative to the ``class_weight`` of an object.
        embed_dims (int): Width of the decoder. Default: ``256``.
        num_reg_fcs (int): Number of linear layers before the box. Default: ``2``.
        loss_bbox (dict): Config of the loss of centre, width and height.
            Default: ``dict(type='L1Loss', loss_weight=5.0)``.
        loss_iou (dict): Config of the loss by overlap.
            Default: ``dict(type='GIoULoss', loss_weight=2.0)``.
        train_cfg (dict): ``assigner``, which matches queries and objects. Default: a
            ``HungarianAssigner`` with the costs of mmdet's DETR config.
        test_cfg (dict): ``max_per_img``, the number of boxes of an image that are kept.
            Default: ``dict(max_per_img=100)``.
        options: Other arguments of ``DETRHead``.

    Examples:
        ```python
        custom_imports = dict(imports=['cpvt_backbones'])
        model = dict(bbox_head=dict(type='IgnoreAwareDETRHead'))
        ```
    """

    def __init__(self, *, num_classes: int, loss_cls: Mapping[str, Any], **options: Any) -> None:
        # mmdet reads bg_cls_weight for DETRHead itself, not for classes that inherit from it.
        loss_cls = dict(loss_cls)
        weight = loss_cls.get('class_weight')
        background = loss_cls.pop('bg_cls_weight', weight)
        if weight is not None:
            loss_cls['class_weight'] = [weight] * num_classes + [background]
        super().__init__(num_classes=num_classes, loss_cls=loss_cls, **options)
        if weight is not None:
            self.bg_cls_weight = background


@MODELS.register_module(force=True)  # in place of the function of .lazy_registration
class IgnoreAwareDINOHead(_BoxTargets, DINOHead):
    """mmdet's ``DINOHead``. Unmatched queries on an ignored object have no classification loss.

    This holds for all layers of the decoder and for the proposals of the encoder. All arguments are
    those of ``DINOHead``.

    Examples:
        ```python
        custom_imports = dict(imports=['cpvt_backbones'])
        model = dict(bbox_head=dict(type='IgnoreAwareDINOHead'))
        ```
    """


@MODELS.register_module(force=True)  # in place of the function of .lazy_registration
class IgnoreAwareMask2FormerHead(MaskTargets, Mask2FormerHead):
    """mmdet's ``Mask2FormerHead``. Unmatched queries whose mask lies on ignored objects have no
    classification loss.

    All arguments are those of ``Mask2FormerHead``.

    Examples:
        ```python
        custom_imports = dict(imports=['cpvt_backbones'])
        model = dict(panoptic_head=dict(type='IgnoreAwareMask2FormerHead'))
        ```
    """

"""What a file computes: a model between its images and plain tensors, without lists, samples or data-dependent shapes.

One graph serves every batch size and image size, so nothing here may branch on a size.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_backbones.backbones.base import Backbone
from cpvt_backbones.inference.nms import nms_mask
from cpvt_backbones.layers import pad_to_multiple


class Preprocess(nn.Module):
    """What a toolbox's data preprocessor does to a batch at test time: normalise, then pad.

    Args:
        mean, std: Of each channel, in the order that the model sees.
        flip_channels: Whether the model sees the channels in the opposite order (RGB for BGR).
        divisor: Sides are padded, on the right and at the bottom, to a multiple of this.
        pad_value: What with, after normalisation.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        *,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        flip_channels: bool = False,
        divisor: int = 1,
        pad_value: float = 0.0,
    ) -> None:
        super().__init__()
        self.register_buffer('mean', torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer('std', torch.tensor(std).view(-1, 1, 1))
        self.flip_channels = flip_channels
        self.divisor = divisor
        self.pad_value = pad_value

    @classmethod
    def of(cls, preprocessor: Any) -> 'Preprocess':
        """That of a model of mmdet, mmseg or mmpretrain.

        Raises:
            ValueError: It brings images to a fixed size.
        """
        settings = vars(preprocessor)
        test_cfg = settings.get('test_cfg') or {}
        if test_cfg.get('size') is not None:
            raise ValueError(f'data_preprocessor.test_cfg must not set a size, got {test_cfg["size"]!r}')
        # mmseg pads to its size_divisor only in training.
        divisor = test_cfg.get('size_divisor') if 'test_cfg' in settings else settings.get('pad_size_divisor')
        normalisation = {}
        if settings.get('_enable_normalize', False):
            normalisation = {name: getattr(preprocessor, name).flatten().tolist() for name in ('mean', 'std')}
        return cls(
            **normalisation,
            flip_channels=bool(settings.get('_channel_conversion', settings.get('to_rgb', False))),
            divisor=divisor or 1,
            pad_value=float(settings.get('pad_val', settings.get('pad_value', 0))),
        )

    def normalise(self, pixels: Tensor) -> Tensor:
        """(B, 3, H, W) of any type to float32."""
        if self.flip_channels:
            pixels = pixels.flip(1)
        return (pixels.float() - self.mean) / self.std

    def pad(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) to (B, 3, H', W')."""
        return pad_to_multiple(images, self.divisor, value=self.pad_value) if self.divisor > 1 else images


class ExportGraph(nn.Module):
    """A model ready to be exported: a batch of images in, a tuple of tensors out.

    The model is copied, set to evaluation, and its backbone fused where it is this package's.

    Args:
        model: What is to be exported.
        preprocess: What the model's images go through.
        pixels: Take pixels, (B, 3, H, W), uint8, BGR as OpenCV reads them; else images already normalised, float32.

    Attributes:
        task: ``'features'``, ``'classification'``, ``'segmentation'`` or ``'detection'``.
        output_names: Name of each output, in order.
    """

    task: ClassVar[str]
    output_names: tuple[str, ...]

    def __init__(self, model: nn.Module, *, preprocess: Preprocess | None = None, pixels: bool = False) -> None:
        super().__init__()
        # Frozen, so that the choice of attention kernel does not depend on who asks for gradients.
        self.model: Any = deepcopy(model).eval().requires_grad_(False)
        self.preprocess = (preprocess or Preprocess()).to(next(model.parameters()).device)
        self.pixels = pixels
        if isinstance(model, Backbone):
            self.model = model.fuse()
        elif isinstance(backbone := getattr(model, 'backbone', None), Backbone):
            self.model.backbone = backbone.fuse()

    @property
    def settings(self) -> dict[str, Any]:
        """What whoever runs the file has to know, as plain data."""
        return dict(
            task=self.task,
            input='pixels' if self.pixels else 'normalised',
            mean=self.preprocess.mean.flatten().tolist(),
            std=self.preprocess.std.flatten().tolist(),
            flip_channels=self.preprocess.flip_channels,
            outputs=list(self.output_names),
        )

    def example(self, *, batch: int, height: int, width: int) -> Tensor:
        """Random images as the graph takes them."""
        images = torch.randint(0, 256, (batch, 3, height, width), dtype=torch.uint8, device=self.preprocess.mean.device)
        return images if self.pixels else self.preprocess.normalise(images)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """(B, 3, H, W) to the outputs that ``output_names`` lists."""
        inputs = self.preprocess.pad(self.preprocess.normalise(images) if self.pixels else images)
        return self.outputs(inputs, height=images.shape[2], width=images.shape[3])

    def outputs(self, inputs: Tensor, *, height: int, width: int) -> tuple[Tensor, ...]:
        """From what the model sees, perhaps padded, to the outputs for images of height x width px."""
        raise NotImplementedError


class Features(ExportGraph):
    """A backbone alone: a map (or vector) for each entry of its ``out_indices``."""

    task = 'features'

    def __init__(self, model: nn.Module, *, preprocess: Preprocess | None = None, pixels: bool = False) -> None:
        super().__init__(model, preprocess=preprocess, pixels=pixels)
        if not isinstance(model, Backbone) or _gives_pairs(model):
            raise ValueError(
                f'model must be a backbone of this package, without a distillation token, got {type(model).__name__}'
            )
        self.output_names = tuple(f'features_{i}' for i in range(len(model.out_strides)))

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | dict(
            strides=list(self.model.out_strides), channels=list(self.model.out_channels), out_type=self.model.out_type
        )

    def outputs(self, inputs: Tensor, *, height: int, width: int) -> tuple[Tensor, ...]:
        return self.model(inputs)


class Scores(ExportGraph):
    """An image classifier of mmpretrain: ``scores`` (B, classes), after softmax."""

    task = 'classification'
    output_names = ('scores',)

    def __init__(self, model: nn.Module, *, preprocess: Preprocess | None = None, pixels: bool = False) -> None:
        from mmpretrain.models import MultiLabelClsHead

        super().__init__(model, preprocess=preprocess, pixels=pixels)
        if isinstance(self.model.head, MultiLabelClsHead):
            raise ValueError(
                f'model.head must give an image one class, by softmax, got {type(self.model.head).__name__}'
            )

    def outputs(self, inputs: Tensor, *, height: int, width: int) -> tuple[Tensor, ...]:
        return (self.model(inputs, mode='tensor').softmax(dim=1),)


class ClassMaps(ExportGraph):
    """An EncoderDecoder of mmseg, Semantic FPN for one: ``class_map`` (B, H, W), int64.

    Args:
        model, preprocess, pixels: See :class:`ExportGraph`.
        logits: Hand out ``logits`` (B, classes, H, W) instead; to blend tiles or to see how sure it is.

    Raises:
        ValueError: A model that is tested in sliding windows.
    """

    task = 'segmentation'

    def __init__(
        self, model: nn.Module, *, preprocess: Preprocess | None = None, pixels: bool = False, logits: bool = False
    ) -> None:
        super().__init__(model, preprocess=preprocess, pixels=pixels)
        mode = self.model.test_cfg.get('mode', 'whole')
        if mode != 'whole':
            raise ValueError(f"model.test_cfg.mode must be 'whole', got {mode!r}: cut tiles outside the file")
        self.logits = logits
        self.output_names = ('logits',) if logits else ('class_map',)
        _replace_upsampling(self.model)

    @property
    def settings(self) -> dict[str, Any]:
        settings = super().settings | dict(num_channels=self.model.out_channels)
        if self.model.out_channels == 1:
            settings['threshold'] = self.model.decode_head.threshold
        return settings

    def outputs(self, inputs: Tensor, *, height: int, width: int) -> tuple[Tensor, ...]:
        size = inputs.shape[2:]
        logits = self.model.encode_decode(inputs, [dict(img_shape=size, pad_shape=size)])
        logits = logits.narrow(2, 0, height).narrow(3, 0, width)
        if self.model.out_channels == 1:
            logits = logits.sigmoid()  # mmseg too hands out a single channel as its probability
        if self.logits:
            return (logits,)
        if self.model.out_channels == 1:
            return ((logits[:, 0] > self.model.decode_head.threshold).long(),)
        return (logits.argmax(dim=1),)


class Detections(ExportGraph):
    """A RetinaNet of mmdet, with its non-maximum suppression.

    Outputs, N being the config's ``max_per_img``: ``boxes`` (B, N, 4; x1, y1, x2, y2 in px), ``scores`` (B, N),
    ``labels`` (B, N; int64), ``counts`` (B,): how many of the N are real, best first; the rest is zero.

    Anchors, convolutions and the decoding of boxes are mmdet's own code. What selects among them is written anew: every
    step has a fixed number of candidates, those below the threshold being marked instead of left out.

    Args:
        model, preprocess, pixels: See :class:`ExportGraph`.

    Raises:
        ValueError: Another head, or a test setting that this does not follow.
    """

    task = 'detection'
    output_names = ('boxes', 'scores', 'labels', 'counts')

    def __init__(self, model: nn.Module, *, preprocess: Preprocess | None = None, pixels: bool = False) -> None:
        from mmdet.models.dense_heads import RetinaHead

        super().__init__(model, preprocess=preprocess, pixels=pixels)
        head = getattr(self.model, 'bbox_head', None)
        if not isinstance(head, RetinaHead):
            found = (
                type(self.model).__name__ if head is None else f'{type(self.model).__name__} with {type(head).__name__}'
            )
            raise ValueError(f'model must be a detector with a RetinaHead, got {found}')
        if not head.use_sigmoid_cls:
            raise ValueError('model.bbox_head.loss_cls must have use_sigmoid=True, got False')
        test_cfg, nms = _check_test_cfg(head.test_cfg)
        self.nms_pre: int = test_cfg['nms_pre']
        self.max_per_img: int = test_cfg['max_per_img']
        self.score_threshold: float = test_cfg.get('score_thr', 0.0)
        self.min_size: float = test_cfg.get('min_bbox_size', -1)
        self.iou_threshold: float = nms['iou_threshold']
        self.class_agnostic: bool = nms.get('class_agnostic', False)

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | dict(
            strides=[stride[0] for stride in self.model.bbox_head.prior_generator.strides],
            score_threshold=self.score_threshold,
            iou_threshold=self.iou_threshold,
            max_per_img=self.max_per_img,
        )

    def outputs(self, inputs: Tensor, *, height: int, width: int) -> tuple[Tensor, ...]:
        head = self.model.bbox_head
        cls_scores, box_deltas = head(self.model.extract_feat(inputs))
        anchors = head.prior_generator.grid_priors(
            [level.shape[2:] for level in cls_scores], dtype=inputs.dtype, device=inputs.device
        )
        levels = [self._candidates(*level) for level in zip(cls_scores, box_deltas, anchors, strict=True)]
        scores, labels, deltas, priors = (torch.cat(parts, dim=1) for parts in zip(*levels, strict=True))
        boxes = head.bbox_coder.decode(priors.flatten(0, 1), deltas.flatten(0, 1), max_shape=(height, width))
        boxes = boxes.unflatten(0, scores.shape)  # (B, N, 4)
        if self.min_size >= 0:
            scores = torch.where(((boxes[..., 2:] - boxes[..., :2]) > self.min_size).all(dim=-1), scores, -1.0)
        return self._suppress(boxes, scores, labels)

    def _candidates(self, cls_scores: Tensor, deltas: Tensor, anchors: Tensor) -> tuple[Tensor, ...]:
        """The best ``nms_pre`` of a level; scores of -1 where there are fewer, or they are below the threshold.

        Args:
            cls_scores: (B, A * classes, h, w) logits.
            deltas: (B, A * 4, h, w).
            anchors: (h * w * A, 4).

        Returns:
            Scores and labels (B, nms_pre), deltas and anchors (B, nms_pre, 4).
        """
        num_classes = self.model.bbox_head.cls_out_channels
        scores = cls_scores.permute(0, 2, 3, 1).flatten(1).sigmoid()  # (B, h * w * A * classes)
        scores = F.pad(scores, (0, self.nms_pre), value=-1.0)  # so that even the smallest map has enough
        scores, index = scores.topk(self.nms_pre)
        scores = torch.where(scores > self.score_threshold, scores, -1.0)
        place = (index // num_classes).clamp(max=anchors.shape[0] - 1)
        deltas = deltas.permute(0, 2, 3, 1).flatten(1).unflatten(1, (-1, 4))  # (B, h * w * A, 4)
        return scores, index % num_classes, _take(deltas, place), anchors[place]

    def _suppress(self, boxes: Tensor, scores: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        apart = boxes
        if not self.class_agnostic:
            # As mmcv does it: each class on an island of its own, so that only boxes of one class overlap.
            largest = torch.where(scores[..., None] > 0, boxes, 0.0).amax(dim=(1, 2))
            apart = boxes + (labels * (largest[:, None] + 1))[..., None]
        scores = torch.where(nms_mask(apart, scores, self.iou_threshold), scores, -1.0)
        scores, index = F.pad(scores, (0, self.max_per_img), value=-1.0).topk(self.max_per_img)
        index = index.clamp(max=labels.shape[1] - 1)
        real = scores > 0
        boxes = torch.where(real[..., None], _take(boxes, index), 0.0)
        labels = torch.where(real, labels.gather(1, index), 0)
        return boxes, scores.clamp(min=0.0), labels, real.sum(dim=1)


def graph_of(model: nn.Module, *, part: str = 'model', pixels: bool = True, logits: bool = False) -> ExportGraph:
    """The graph that fits a model.

    Args:
        model: An image classifier, segmentor or detector as its toolbox builds it.
        part: ``'model'``, or ``'backbone'`` for the features alone.
        pixels: Do what the model's data preprocessor does within the graph.
        logits: Of a segmentor, hand out logits instead of classes.

    Raises:
        ValueError: A model of another kind, or one with settings that no graph follows.
    """
    if part not in ('model', 'backbone'):
        raise ValueError(f"part must be 'model' or 'backbone', got {part!r}")
    options: dict[str, Any] = dict(preprocess=Preprocess.of(model.data_preprocessor), pixels=pixels)
    if logits and (part == 'backbone' or not hasattr(model, 'encode_decode')):
        raise ValueError(f'logits must be False unless the model is a segmentor, got True for {type(model).__name__}')
    if part == 'backbone':
        return Features(model.backbone, **options)  # type: ignore[arg-type]
    if hasattr(model, 'encode_decode'):
        return ClassMaps(model, **options, logits=logits)
    if hasattr(model, 'bbox_head') or hasattr(model, 'roi_head'):
        return Detections(model, **options)
    if hasattr(model, 'head') and hasattr(model, 'extract_feat'):
        return Scores(model, **options)
    raise ValueError(
        "model must be mmpretrain's ImageClassifier, mmseg's EncoderDecoder or mmdet's RetinaNet, "
        f'got {type(model).__name__}'
    )


def _gives_pairs(model: Backbone) -> bool:
    return model.dist_token is not None and model.out_type == 'cls_token'


def _take(values: Tensor, index: Tensor) -> Tensor:
    """(B, N, 4) values at (B, K) places, (B, K, 4)."""
    return values.gather(1, index[..., None].expand(-1, -1, values.shape[2]))


def _check_test_cfg(test_cfg: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    for key in ('nms_pre', 'max_per_img'):
        if not isinstance(test_cfg.get(key), int) or test_cfg[key] < 1:
            raise ValueError(f'model.test_cfg.{key} must be an integer >= 1, got {test_cfg.get(key)!r}')
    nms = test_cfg.get('nms') or {}
    known = {'type', 'iou_threshold', 'class_agnostic', 'split_thr'}
    if nms.get('type', 'nms') != 'nms' or 'iou_threshold' not in nms or set(nms) - known:
        raise ValueError(
            "model.test_cfg.nms must be dict(type='nms', iou_threshold=...), with class_agnostic and split_thr if need "
            f'be, got {dict(nms)!r}'
        )
    return test_cfg, nms


def _replace_upsampling(model: nn.Module) -> None:
    """mmseg's Upsample computes its size in Python numbers, which a graph would hold on to."""
    from mmseg.models.utils import Upsample

    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, Upsample) and child.scale_factor:
                size = dict(mode=child.mode, align_corners=child.align_corners)
                setattr(module, name, nn.Upsample(scale_factor=child.scale_factor, **size))

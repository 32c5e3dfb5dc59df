"""Models rewritten as graphs: a batch of images in, plain tensors out, no data-dependent shapes.

One graph serves every batch size and image size, so no code here may branch on a size.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_backbones.backbones.base import Backbone
from cpvt_backbones.inference.exported import nms_mask
from cpvt_backbones.layers import pad_to_multiple
from cpvt_backbones.layers.checks import check_choice, check_int


class Preprocess(nn.Module):
    """A toolbox's data preprocessor at test time: normalisation, then padding.

    ``mean`` and ``std`` have one value a channel, in the model's order, which ``flip_channels`` makes of BGR. The right
    and the bottom are padded with ``pad_value`` to a multiple of ``divisor``.
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
        """Build from the data preprocessor of an mmdet, mmseg or mmpretrain model.

        Raises:
            ValueError: The preprocessor resizes images to a fixed size.
        """
        settings = vars(preprocessor)
        test_cfg = settings.get('test_cfg') or {}
        if test_cfg.get('size') is not None:
            raise ValueError(f'data_preprocessor.test_cfg must not set a size, got {test_cfg["size"]!r}')
        # mmseg pads to its size_divisor only in training.
        divisor = test_cfg.get('size_divisor') if 'test_cfg' in settings else settings.get('pad_size_divisor')
        normalised = ('mean', 'std') if settings.get('_enable_normalize') else ()
        return cls(
            **{name: getattr(preprocessor, name).flatten().tolist() for name in normalised},
            flip_channels=bool(settings.get('_channel_conversion', settings.get('to_rgb', False))),
            divisor=divisor or 1,
            pad_value=float(settings.get('pad_val', settings.get('pad_value', 0))),
        )

    def normalise(self, pixels: Tensor) -> Tensor:
        """Normalise (B, 3, H, W) pixels of any type to float32."""
        if self.flip_channels:
            pixels = pixels.flip(1)
        return (pixels.float() - self.mean) / self.std

    def pad(self, images: Tensor) -> Tensor:
        """Pad (B, 3, H, W) to (B, 3, H', W')."""
        return pad_to_multiple(images, self.divisor, value=self.pad_value) if self.divisor > 1 else images


class ExportGraph(nn.Module):
    """A copy of a model ready for export, in evaluation mode and fused: a batch of images in, a tuple of tensors out.

    With ``pixels`` it takes (B, 3, H, W) uint8 BGR, as OpenCV reads them, otherwise normalised float32 images.
    """

    task: ClassVar[str]  # 'features', 'classification', 'segmentation' or 'detection'
    output_names: tuple[str, ...]  # in order

    def __init__(self, model: nn.Module, *, preprocess: Preprocess | None = None, pixels: bool = False) -> None:
        super().__init__()
        # Frozen: the choice of attention kernel must not depend on requires_grad.
        self.model: Any = deepcopy(model).eval().requires_grad_(False)
        self.preprocess = (preprocess or Preprocess()).to(next(model.parameters()).device)
        self.pixels = pixels
        if isinstance(model, Backbone):
            self.model = model.fuse()
        elif isinstance(backbone := getattr(model, 'backbone', None), Backbone):
            self.model.backbone = backbone.fuse()

    @property
    def settings(self) -> dict[str, Any]:
        """Plain data that the file's runtime needs."""
        return dict(
            task=self.task,
            input='pixels' if self.pixels else 'normalised',
            mean=self.preprocess.mean.flatten().tolist(),
            std=self.preprocess.std.flatten().tolist(),
            flip_channels=self.preprocess.flip_channels,
            outputs=list(self.output_names),
        )

    def example(self, *, batch: int, height: int, width: int) -> Tensor:
        """Random images of the graph's input type."""
        images = torch.randint(0, 256, (batch, 3, height, width), dtype=torch.uint8, device=self.preprocess.mean.device)
        return images if self.pixels else self.preprocess.normalise(images)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Compute the outputs listed in ``output_names`` from (B, 3, H, W) images."""
        inputs = self.preprocess.pad(self.preprocess.normalise(images) if self.pixels else images)
        return self.outputs(inputs, height=images.shape[2], width=images.shape[3])

    def outputs(self, inputs: Tensor, *, height: int, width: int) -> tuple[Tensor, ...]:
        """Compute the outputs for images of height x width px from the normalised, padded inputs."""
        raise NotImplementedError


class Features(ExportGraph):
    """A backbone: one map (or vector) for each entry of its ``out_indices``."""

    task = 'features'

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__(model, **options)
        if not isinstance(model, Backbone) or (model.dist_token is not None and model.out_type == 'cls_token'):
            name = type(model).__name__
            raise ValueError(f'model must be a backbone of this package, without a distillation token, got {name}')
        self.output_names = tuple(f'features_{i}' for i in range(len(model.out_strides)))

    @property
    def settings(self) -> dict[str, Any]:
        strides, channels = list(self.model.out_strides), list(self.model.out_channels)
        return super().settings | dict(strides=strides, channels=channels, out_type=self.model.out_type)

    def outputs(self, inputs: Tensor, *, height: int, width: int) -> tuple[Tensor, ...]:
        return self.model(inputs)


class Scores(ExportGraph):
    """An mmpretrain image classifier: ``scores`` (B, classes), after softmax."""

    task = 'classification'
    output_names = ('scores',)

    def __init__(self, model: nn.Module, **options: Any) -> None:
        from mmpretrain.models import MultiLabelClsHead

        super().__init__(model, **options)
        head = self.model.head
        if isinstance(head, MultiLabelClsHead):
            raise ValueError(f'model.head must give an image one class, by softmax, got {type(head).__name__}')

    def outputs(self, inputs: Tensor, *, height: int, width: int) -> tuple[Tensor, ...]:
        return (self.model(inputs, mode='tensor').softmax(dim=1),)


class ClassMaps(ExportGraph):
    """An mmseg EncoderDecoder, e.g. Semantic FPN: ``class_map`` (B, H, W), int64, or ``logits`` (B, classes, H, W).

    Raises:
        ValueError: The model's test mode is a sliding window.
    """

    task = 'segmentation'

    def __init__(self, model: nn.Module, *, logits: bool = False, **options: Any) -> None:
        super().__init__(model, **options)
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
        if single := self.model.out_channels == 1:
            logits = logits.sigmoid()  # as mmseg does
        if self.logits:
            return (logits,)
        return ((logits[:, 0] > self.model.decode_head.threshold).long() if single else logits.argmax(dim=1),)


class Detections(ExportGraph):
    """An mmdet RetinaNet with its non-maximum suppression.

    Outputs, with N = ``max_per_img`` of the config: ``boxes`` (B, N, 4; x1, y1, x2, y2 in px), ``scores`` (B, N),
    ``labels`` (B, N; int64), ``counts`` (B,): number of valid boxes, best first; the rest is zero.

    Anchors, convolutions and box decoding are mmdet's code. The selection of candidates is rewritten with fixed
    shapes: a candidate below the threshold is marked, not removed.

    Raises:
        ValueError: Another head, or an unsupported test setting.
    """

    task = 'detection'
    output_names = ('boxes', 'scores', 'labels', 'counts')

    def __init__(self, model: nn.Module, **options: Any) -> None:
        from mmdet.models.dense_heads import RetinaHead

        super().__init__(model, **options)
        head = getattr(self.model, 'bbox_head', None)
        if not isinstance(head, RetinaHead):
            found = type(self.model).__name__ + ('' if head is None else f' with {type(head).__name__}')
            raise ValueError(f'model must be a detector with a RetinaHead, got {found}')
        if not head.use_sigmoid_cls:
            raise ValueError('model.bbox_head.loss_cls must have use_sigmoid=True, got False')
        test_cfg, nms = head.test_cfg, head.test_cfg.get('nms') or {}
        for key in ('nms_pre', 'max_per_img'):
            check_int(**{f'model.test_cfg.{key}': test_cfg.get(key)})
        known = {'type', 'iou_threshold', 'class_agnostic', 'split_thr'}
        if nms.get('type', 'nms') != 'nms' or 'iou_threshold' not in nms or set(nms) - known:
            accepted = "dict(type='nms', iou_threshold=...), optionally with class_agnostic and split_thr"
            raise ValueError(f'model.test_cfg.nms must be {accepted}, got {dict(nms)!r}')
        self.nms_pre: int = test_cfg['nms_pre']
        self.max_per_img: int = test_cfg['max_per_img']
        self.score_threshold: float = test_cfg.get('score_thr', 0.0)
        self.min_size: float = test_cfg.get('min_bbox_size', -1)
        self.iou_threshold: float = nms['iou_threshold']
        self.class_agnostic: bool = nms.get('class_agnostic', False)

    @property
    def settings(self) -> dict[str, Any]:
        names = ('score_threshold', 'iou_threshold', 'max_per_img')
        strides = [stride[0] for stride in self.model.bbox_head.prior_generator.strides]
        return super().settings | dict(strides=strides) | {name: getattr(self, name) for name in names}

    def outputs(self, inputs: Tensor, *, height: int, width: int) -> tuple[Tensor, ...]:
        head = self.model.bbox_head
        cls_scores, box_deltas = head(self.model.extract_feat(inputs))
        sizes = [level.shape[2:] for level in cls_scores]
        anchors = head.prior_generator.grid_priors(sizes, dtype=inputs.dtype, device=inputs.device)
        levels = [self._candidates(*level) for level in zip(cls_scores, box_deltas, anchors, strict=True)]
        scores, labels, deltas, priors = (torch.cat(parts, dim=1) for parts in zip(*levels, strict=True))
        boxes = head.bbox_coder.decode(priors.flatten(0, 1), deltas.flatten(0, 1), max_shape=(height, width))
        boxes = boxes.unflatten(0, scores.shape)  # (B, N, 4)
        if self.min_size >= 0:
            scores = torch.where(((boxes[..., 2:] - boxes[..., :2]) > self.min_size).all(dim=-1), scores, -1.0)
        return self._suppress(boxes, scores, labels)

    def _candidates(self, cls_scores: Tensor, deltas: Tensor, anchors: Tensor) -> tuple[Tensor, ...]:
        """Scores, labels (B, nms_pre), deltas and anchors (B, nms_pre, 4) of a level's best candidates.

        Missing ones and those below the threshold score -1. From logits (B, A * classes, h, w), deltas
        (B, A * 4, h, w) and anchors (h * w * A, 4).
        """
        num_classes = self.model.bbox_head.cls_out_channels
        scores = cls_scores.permute(0, 2, 3, 1).flatten(1).sigmoid()  # (B, h * w * A * classes)
        scores = F.pad(scores, (0, self.nms_pre), value=-1.0)  # topk needs nms_pre entries on the smallest map too
        scores, index = scores.topk(self.nms_pre)
        scores = torch.where(scores > self.score_threshold, scores, -1.0)
        place = (index // num_classes).clamp(max=anchors.shape[0] - 1)
        deltas = deltas.permute(0, 2, 3, 1).flatten(1).unflatten(1, (-1, 4))  # (B, h * w * A, 4)
        return scores, index % num_classes, _take(deltas, place), anchors[place]

    def _suppress(self, boxes: Tensor, scores: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        apart = boxes
        if not self.class_agnostic:
            # mmcv's batched_nms: shift each class by an offset so that only boxes of one class overlap.
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
    """Build the export graph of a model.

    Args:
        model: An image classifier, segmentor or detector as its toolbox builds it.
        part: ``'model'``, or ``'backbone'`` for the features alone.
        pixels: Include the model's data preprocessor in the graph.
        logits: For a segmentor, output logits instead of classes.

    Raises:
        ValueError: An unsupported model or setting.
    """
    check_choice(('model', 'backbone'), part=part)
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
    accepted = "mmpretrain's ImageClassifier, mmseg's EncoderDecoder or mmdet's RetinaNet"
    raise ValueError(f'model must be {accepted}, got {type(model).__name__}')


def _take(values: Tensor, index: Tensor) -> Tensor:
    """Gather (B, N, 4) values at (B, K) indices: (B, K, 4)."""
    return values.gather(1, index[..., None].expand(-1, -1, values.shape[2]))


def _replace_upsampling(model: nn.Module) -> None:
    """Replace mmseg's Upsample, which computes its size in Python numbers: the graph would store them as constants."""
    from mmseg.models.utils import Upsample

    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, Upsample) and child.scale_factor:
                size = dict(mode=child.mode, align_corners=child.align_corners)
                setattr(module, name, nn.Upsample(scale_factor=child.scale_factor, **size))

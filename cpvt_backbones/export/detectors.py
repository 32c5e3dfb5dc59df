"""mmdet's detectors as graphs with fixed shapes.

Candidates below the threshold are marked instead of removed. Anchors, convolutions and box decoding
are mmdet's code; the selection of boxes is rewritten.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_backbones.checks import check_choice, check_int
from cpvt_backbones.errors import InputError
from cpvt_backbones.export.exported import nms_mask
from cpvt_backbones.heads.eomt import MaskLayers

from .graphs import ClassMaps, ExportGraph, Features, Preprocess, Scores
from .masks import MaskQueries, refuse_masked_attention


class Selection:
    """Test settings of a head, and selection of its best boxes.

    Raises:
        ValueError: A setting is not supported.
    """

    def __init__(
        self, test_cfg: Any, *, name: str, limits: Sequence[str] = ('nms_pre', 'max_per_img')
    ) -> None:
        nms = test_cfg.get('nms') or {}
        check_int(**{f'{name}.{key}': test_cfg.get(key) for key in limits})
        known = {'type', 'iou_threshold', 'class_agnostic', 'split_thr'}
        if nms.get('type', 'nms') != 'nms' or 'iou_threshold' not in nms or set(nms) - known:
            accepted = (
                "dict(type='nms', iou_threshold=...), optionally with class_agnostic and split_thr"
            )
            raise InputError(f'{name}.nms must be {accepted}, got {dict(nms)!r}')
        self.nms_pre = test_cfg.get('nms_pre')
        self.max_per_img = test_cfg['max_per_img']
        self.score_threshold = test_cfg.get('score_thr', 0.0)
        self.min_size = test_cfg.get('min_bbox_size', -1)
        self.iou_threshold = nms['iou_threshold']
        self.class_agnostic = nms.get('class_agnostic', False)
        self.settings = dict(
            score_threshold=self.score_threshold,
            iou_threshold=self.iou_threshold,
            max_per_img=self.max_per_img,
        )

    def mark(self, scores: Tensor) -> Tensor:
        """Set scores that do not exceed the threshold to -1."""
        return torch.where(scores > self.score_threshold, scores, -1.0)

    def candidates(
        self, head: Any, maps: Sequence[Tensor], size: tuple[int, int], *, by_level: bool = False
    ) -> tuple[Tensor, ...]:
        """Select the best candidates of a dense head.

        Args:
            head: The head.
            maps: Its input maps.
            size: (height, width) of the images in px.
            by_level: Return levels instead of labels.

        Returns:
            Boxes (B, K, 4), scores (B, K), and labels or levels (B, K).
        """
        cls_scores, box_deltas = head(maps)
        sizes = [level.shape[2:] for level in cls_scores]
        anchors = head.prior_generator.grid_priors(
            sizes, dtype=box_deltas[0].dtype, device=maps[0].device
        )
        levels = []
        for scores, deltas, priors in zip(cls_scores, box_deltas, anchors, strict=True):
            levels.append(self._best(head, scores, deltas, priors))
        scores = torch.cat([level[0] for level in levels], dim=1)
        labels = torch.cat([level[1] for level in levels], dim=1)
        deltas = torch.cat([level[2] for level in levels], dim=1)
        priors = torch.cat([level[3] for level in levels], dim=1)
        if by_level:
            numbers = torch.arange(len(levels), device=labels.device)
            labels = numbers.repeat_interleave(self.nms_pre).expand_as(labels)
        boxes = head.bbox_coder.decode(priors.flatten(0, 1), deltas.flatten(0, 1), max_shape=size)
        boxes = boxes.unflatten(0, scores.shape)
        if self.min_size >= 0:
            scores = torch.where(
                ((boxes[..., 2:] - boxes[..., :2]) > self.min_size).all(dim=-1), scores, -1.0
            )
        return boxes, scores, labels

    def _best(
        self, head: Any, cls_scores: Tensor, deltas: Tensor, anchors: Tensor
    ) -> tuple[Tensor, ...]:
        """Select the best candidates of a level.

        Args:
            head: The head.
            cls_scores: Logits (B, A * classes, h, w).
            deltas: (B, A * 4, h, w).
            anchors: (h * w * A, 4).

        Returns:
            Scores and labels (B, nms_pre), deltas and anchors (B, nms_pre, 4). Missing candidates
            have the score -1.
        """
        scores = cls_scores.permute(0, 2, 3, 1).flatten(1).sigmoid()  # (B, h * w * A * classes)
        # topk needs nms_pre entries, also on the smallest map.
        scores = F.pad(scores, (0, self.nms_pre), value=-1.0)
        scores, index = scores.topk(self.nms_pre)
        anchor = (index // head.cls_out_channels).clamp(max=anchors.shape[0] - 1)
        deltas = deltas.permute(0, 2, 3, 1).flatten(1).unflatten(1, (-1, 4))  # (B, h * w * A, 4)
        deltas = deltas.gather(1, anchor[..., None].expand(-1, -1, 4))
        return self.mark(scores), index % head.cls_out_channels, deltas, anchors[anchor]

    def suppress(self, boxes: Tensor, scores: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """Apply non-maximum suppression; return the outputs of :class:`Detections`."""
        apart = boxes
        if not self.class_agnostic:
            # mmcv's batched_nms: shift each class by an offset so that only boxes of one class
            # overlap.
            largest = torch.where(scores[..., None] > 0, boxes, 0.0).amax(dim=(1, 2))
            apart = boxes + (labels * (largest[:, None] + 1))[..., None]
        scores = torch.where(nms_mask(apart, scores, self.iou_threshold), scores, -1.0)
        scores, index = F.pad(scores, (0, self.max_per_img), value=-1.0).topk(self.max_per_img)
        index = index.clamp(max=labels.shape[1] - 1)
        real = scores > 0
        chosen = boxes.gather(1, index[..., None].expand(-1, -1, 4))
        boxes = torch.where(real[..., None], chosen, 0.0)
        labels = torch.where(real, labels.gather(1, index), 0)
        return boxes, scores.clamp(min=0.0), labels, real.sum(dim=1)


class Detections(ExportGraph):
    """Graph of a RetinaNet of mmdet, with its non-maximum suppression.

    With N = ``max_per_img`` of the config, its outputs are:

    - ``boxes`` (B, N, 4; x1, y1, x2, y2 in px), best first;
    - ``scores`` (B, N), in [0, 1];
    - ``labels`` (B, N; int64), the index of the class;
    - ``counts`` (B,), the number of valid boxes per image. All later values are zero.

    Raises:
        ValueError: The model has another head, or a test setting that is not supported.
    """

    task = 'detection'
    output_names = ('boxes', 'scores', 'labels', 'counts')

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__(model, **options)
        _check_dense_head(self.model, 'bbox_head', 'RetinaHead')
        self.final = Selection(self.model.bbox_head.test_cfg, name='model.test_cfg')

    @property
    def settings(self) -> dict[str, Any]:
        strides = [stride[0] for stride in self.model.bbox_head.prior_generator.strides]
        return super().settings | dict(strides=strides) | self.final.settings

    def outputs(self, inputs: Tensor, *, height: int, width: int) -> tuple[Tensor, ...]:
        maps = self.model.extract_feat(inputs)
        boxes, scores, labels = self.final.candidates(self.model.bbox_head, maps, (height, width))
        return self.final.suppress(boxes, scores, labels)


class TwoStageDetections(ExportGraph):
    """Graph of a Faster, Mask or Cascade (Mask) R-CNN of mmdet.

    It has the outputs of :class:`Detections`. A mask head adds ``masks`` (B, N, h, w), the
    probabilities within each box.

    Raises:
        ValueError: The model has another head, or a test setting that is not supported.
    """

    task = 'detection'

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__(model, **options)
        _check_dense_head(self.model, 'rpn_head', 'RPNHead')
        roi_head = self.model.roi_head
        check_choice(
            ('StandardRoIHead', 'CascadeRoIHead'),
            **{'type(model.roi_head)': type(roi_head).__name__},
        )
        self.boxes = _stages(
            roi_head, 'bbox', 'ConvFCBBoxHead', 'Shared2FCBBoxHead', 'Shared4Conv1FCBBoxHead'
        )
        self.masks = _stages(roi_head, 'mask', 'FCNMaskHead') if roi_head.with_mask else []
        self.output_names = Detections.output_names
        if self.masks:
            self.output_names += ('masks',)
        self.proposals = Selection(self.model.rpn_head.test_cfg, name='model.test_cfg.rpn')
        self.final = Selection(
            roi_head.test_cfg, name='model.test_cfg.rcnn', limits=['max_per_img']
        )

    @property
    def settings(self) -> dict[str, Any]:
        settings = super().settings | self.final.settings
        if self.masks:
            settings['mask_threshold'] = self.model.roi_head.test_cfg['mask_thr_binary']
        return settings

    def outputs(self, inputs: Tensor, *, height: int, width: int) -> tuple[Tensor, ...]:
        size = (height, width)
        maps = self.model.extract_feat(inputs)
        boxes, scores, levels = self.proposals.candidates(
            self.model.rpn_head, maps, size, by_level=True
        )
        boxes, objectness, *_ = self.proposals.suppress(boxes, scores, levels)
        total: Any = 0
        for stage, (head, extractor) in enumerate(self.boxes, start=1):
            logits, deltas = head(_roi_features(extractor, maps, boxes))
            total = total + logits
            if stage < len(self.boxes):
                classes = logits[:, :-1].argmax(dim=1)
                boxes = head.regress_by_class(
                    boxes.flatten(0, 1), classes, deltas, dict(img_shape=size)
                )
                boxes = boxes.unflatten(0, objectness.shape)
        scores = (total / stage).softmax(dim=1)[:, :-1]  # drops the background
        scores = scores.unflatten(0, objectness.shape)  # (B, R, classes)
        scores = torch.where(objectness[..., None] > 0, self.final.mark(scores), -1.0)
        boxes = head.bbox_coder.decode(boxes.flatten(0, 1), deltas, max_shape=size)
        boxes = boxes.unflatten(1, (-1, 4)).unflatten(0, objectness.shape)
        boxes = boxes.expand(-1, -1, scores.shape[2], -1)  # (B, R, classes, 4)
        labels = torch.arange(scores.shape[2], device=scores.device).expand_as(scores)
        outputs = self.final.suppress(boxes.flatten(1, 2), scores.flatten(1), labels.flatten(1))
        if not self.masks:
            return outputs
        boxes, _, labels, _ = outputs
        total = 0
        for head, extractor in self.masks:
            total = total + head(_roi_features(extractor, maps, boxes)).sigmoid()
        # (B * N, classes or 1, h, w)
        index = labels.flatten()[:, None, None, None].expand(-1, -1, *total.shape[2:])
        if total.shape[1] == 1:
            index = index * 0
        masks = total.gather(1, index) / len(self.masks)
        return *outputs, masks[:, 0].unflatten(0, labels.shape)


def _roi_features(extractor: Any, maps: Sequence[Tensor], boxes: Tensor) -> Tensor:
    """Extract features (B * N, C, h, w) of boxes (B, N, 4), like mmdet's SingleRoIExtractor.

    Each box uses the map of its level.
    """
    from torchvision.ops import roi_align

    batch = torch.arange(boxes.shape[0], device=boxes.device)[:, None, None]
    batch = batch.expand(-1, boxes.shape[1], 1)
    rois = torch.cat((batch.to(boxes), boxes), dim=2).flatten(0, 1)  # (B * N, 5)
    levels = extractor.map_roi_levels(rois, len(extractor.roi_layers))[:, None]
    features: Any = None
    for level, layer in enumerate(extractor.roi_layers):
        # An empty box has no samples.
        own = torch.cat((rois[:, :1], torch.where(levels == level, rois[:, 1:], 0.0)), dim=1)
        found = roi_align(
            maps[level],
            own,
            layer.output_size,
            layer.spatial_scale,
            layer.sampling_ratio,
            layer.aligned,
        )
        if features is None:
            features = found
        else:
            features = torch.where(levels[..., None, None] == level, found, features)
    return features


def _stages(roi_head: Any, part: str, *kinds: str) -> list[tuple[Any, Any]]:
    """Return head and extractor of each stage; refuse subclasses of ``kinds``, which may differ."""
    parts = []
    for name, accepted in (
        (f'{part}_head', kinds),
        (f'{part}_roi_extractor', ('SingleRoIExtractor',)),
    ):
        one = getattr(roi_head, name)
        parts.append(list(one) if isinstance(one, nn.ModuleList) else [one])
        for stage in parts[-1]:
            check_choice(accepted, **{f'type(model.roi_head.{name})': type(stage).__name__})
    return list(zip(*parts, strict=True))


def _check_dense_head(model: Any, name: str, kind: str) -> None:
    from mmdet.models import dense_heads

    if not isinstance(head := getattr(model, name, None), getattr(dense_heads, kind)):
        found = type(model).__name__ + ('' if head is None else f' with {type(head).__name__}')
        raise InputError(f'model must be a detector with a {kind}, got {found}')
    if not head.use_sigmoid_cls:
        raise InputError(f'model.{name}.loss_cls must have use_sigmoid=True, got False')


def graph_of(
    model: nn.Module, *, part: str = 'model', pixels: bool = True, logits: bool = False
) -> ExportGraph:
    """Build the export graph of a model, for :func:`export`.

    Args:
        model: Image classifier, segmentor or detector as its toolbox builds it.
        part: ``'model'``, or ``'backbone'`` for its outputs only, maps or vectors.
        pixels: Include the model's data preprocessor in the graph.
        logits: Let a segmentor output logits instead of classes.

    Returns:
        The graph for this kind of model: :class:`Features`, :class:`Scores`, :class:`ClassMaps`,
        :class:`Detections`, :class:`TwoStageDetections` or :class:`MaskQueries`.

    Raises:
        ValueError: The model or one of its settings is not supported.

    Examples:
        >>> from cpvt_backbones.analysis.complexity import build_model
        >>> from cpvt_backbones.export import graph_of
        >>> from cpvt_backbones.inference import read_config
        >>> from cpvt_backbones.weights import find_shipped
        >>> shipped = find_shipped('cpvt_tiny_gap-imagenette')
        >>> model = build_model(read_config(shipped.config_file))
        >>> graph_of(model).task, graph_of(model, part='backbone').task
        ('classification', 'features')
    """
    check_choice(('model', 'backbone'), part=part)
    options: dict[str, Any] = dict(preprocess=Preprocess.of(model.data_preprocessor), pixels=pixels)
    if logits and (part == 'backbone' or not hasattr(model, 'encode_decode')):
        raise InputError(
            'logits must be False unless the model is a segmentor, got True for'
            f' {type(model).__name__}'
        )
    if part == 'backbone':
        return Features(model.backbone, **options)  # type: ignore[arg-type]
    refuse_masked_attention(model)
    if hasattr(model, 'encode_decode'):
        return ClassMaps(model, **options, logits=logits)
    if isinstance(getattr(model, 'panoptic_head', None), MaskLayers):
        return MaskQueries(model, **options)
    for head, graph in dict(roi_head=TwoStageDetections, bbox_head=Detections, head=Scores).items():
        if hasattr(model, head) and hasattr(model, 'extract_feat'):
            return graph(model, **options)
    accepted = (
        "mmpretrain's ImageClassifier, mmseg's EncoderDecoder, mmdet's RetinaNet or R-CNN, or EoMT"
    )
    raise InputError(f'model must be {accepted}, got {type(model).__name__}')

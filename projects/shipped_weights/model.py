"""An image classifier that learns at several sizes from labels and from the stored features of a
frozen CNN.

It needs mmpretrain; list this module in the ``custom_imports`` of a config that uses it, with
``projects`` in ``PYTHONPATH``.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from mmcv.transforms import BaseTransform
from mmengine.registry import MODELS, TRANSFORMS
from mmpretrain.models import ImageClassifier
from mmpretrain.structures import DataSample
from torch import Tensor, nn

from cpvt_backbones.checks import (
    check,
    check_fraction,
    check_int,
    is_int,
    is_sequence,
)
from cpvt_backbones.engine.cached_dataset import BatchRandomResizedCrop

from .views import MAP_CHANNELS, POOLED_CHANNELS, read_teacher, resize


@TRANSFORMS.register_module()
class OneHotLabel(BaseTransform):
    """Give an image a score for each of the student's classes, ``gt_score`` (classes,).

    Args:
        classes: Number of the student's classes.
        known: 1 for the image's label and 0 for all others; or, if ``False``, 0 for all.
    """

    def __init__(self, *, classes: int, known: bool = True) -> None:
        check_int(classes=classes)
        self.classes, self.known = classes, known

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        """Set ``gt_score``."""
        scores = np.zeros(self.classes, dtype=np.float32)
        if self.known:
            scores[results['gt_label']] = 1
        return results | dict(gt_score=scores)


@MODELS.register_module()
class FeatureDistillation(ImageClassifier):
    """mmpretrain's image classifier with four more losses, against a frozen EfficientNet-Lite0.

    They are the divergences from the teacher's probabilities of the student's classes and of all
    1,000, and the squared errors of two linear maps: of the pooled features to the teacher's, and
    of an earlier block's tokens to the teacher's map of stride 16. The targets of the errors are
    normalised over their channels. The student gets each crop of ``StoredViews``, flipped or not,
    at a size that is drawn for the batch.

    Each image needs a score for each class (:class:`OneHotLabel`). One without a label has the
    losses of the features and of all classes.

    Args:
        backbone: With ``out_type='featmap'`` and two ``out_indices``, the second the last block.
        neck: Pools the maps; the same model with ``out_type='avg_featmap'`` and no neck has the
            same weights.
        head: A linear classifier of mmpretrain.
        teacher: Checkpoint that ``projects/shipped_weights/make_teacher.py`` wrote.
        teacher_classes: The teacher's index of each class of the student.
        area: That of ``StoredViews``, which holds the teacher's features of these crops: it must be
            the same.
        sizes: Sides of the student's images in px.
        cutmix: Probability that a rectangle of whole cells of the teacher's map comes from another
            image of the batch, with its part of the map; labels, probabilities and pooled features
            are mixed by area.
        data_preprocessor, init_cfg: As in mmpretrain's ``ImageClassifier``.

    Raises:
        CheckpointError: ``teacher`` has not exactly the teacher's tensors.
        ValueError: A size or an index that is out of range.
    """

    def __init__(
        self,
        *,
        backbone: dict[str, Any],
        neck: dict[str, Any],
        head: dict[str, Any],
        teacher: str,
        teacher_classes: Sequence[int],
        area: tuple[float, float] = (0.25, 1.0),
        sizes: Sequence[int] = (64, 80, 96, 112),
        cutmix: float = 0.0,
        data_preprocessor: dict[str, Any] | None = None,
        init_cfg: Any = None,
    ) -> None:
        super().__init__(
            backbone, neck=neck, head=head, data_preprocessor=data_preprocessor, init_cfg=init_cfg
        )
        check(
            'a list of sides > 0',
            lambda v: is_sequence(v) and v and all(is_int(s) and s > 0 for s in v),
            sizes=sizes,
        )
        check_fraction(cutmix=cutmix)
        number = self.head.num_classes
        accepted = f'{number} indices in [0, 1000)'
        check(
            accepted,
            lambda v: len(v) == number and set(v) <= set(range(1000)),
            teacher_classes=teacher_classes,
        )
        self._teacher = [read_teacher(teacher).classifier]
        self.teacher_classes, self.sizes, self.cutmix = list(teacher_classes), tuple(sizes), cutmix
        self.crop = BatchRandomResizedCrop(size=max(sizes), area=area, flip=0)
        middle, last = self.backbone.out_channels
        self.to_teacher = nn.ModuleDict(
            dict(
                map=nn.Sequential(nn.LayerNorm(middle), nn.Linear(middle, MAP_CHANNELS)),
                pooled=nn.Linear(last, POOLED_CHANNELS),
                classes=nn.Linear(last, 1000),
            )
        )

    def batch(self, inputs: Tensor, data_samples: list[DataSample]) -> dict[str, Tensor]:
        """The crops of images (B, 3, H, W), and their targets.

        ``images`` (B, 3, S, S), ``labels`` and ``probabilities`` (B, classes), ``classes`` (B,
        1000), ``pooled`` (B, 1280), ``map`` (B, 112, 7, 7).
        """

        def stack(name: str) -> Tensor:
            values = torch.stack([getattr(sample, name) for sample in data_samples])
            return values.to(inputs.device, torch.float32)

        pooled, target_map = stack('target_pooled'), stack('target_map')
        scores = self._teacher[0].to(inputs.device)(pooled).float()
        batch = dict(images=self.crop.crop(inputs, stack('draw').cpu().T), map=target_map)
        batch |= dict(labels=stack('gt_score'), pooled=pooled)
        batch |= dict(
            probabilities=scores[:, self.teacher_classes].softmax(1), classes=scores.softmax(1)
        )
        flipped = (torch.rand(len(inputs)) < 0.5).to(inputs.device)[:, None, None, None]
        for name in ('images', 'map'):
            batch[name] = torch.where(flipped, batch[name].flip(3), batch[name])
        if torch.rand(()) < self.cutmix:
            mask = rectangle(target_map.shape[-1]).to(inputs.device)
            for name, value in batch.items():
                share = mask.mean() if value.ndim == 2 else F.interpolate(mask, value.shape[2:])
                batch[name] = share * value.flip(0) + (1 - share) * value
        return batch

    def loss(self, inputs: Tensor, data_samples: list[DataSample]) -> dict[str, Tensor]:
        """The five losses of one batch."""
        batch = self.batch(inputs, data_samples)
        side = self.sizes[int(torch.randint(len(self.sizes), ()))]
        maps = self.backbone(resize(batch['images'], side))
        pooled = self.neck(maps)
        scores = self.head(pooled).float().log_softmax(1)
        known = batch['labels'].sum(1)
        target_map = resize(batch['map'], maps[0].shape[2:]).permute(0, 2, 3, 1)
        return dict(
            loss_label=-(batch['labels'] * scores).sum() / known.sum().clamp(min=1),
            loss_probabilities=(known * _divergence(scores, batch['probabilities'])).sum()
            / known.sum().clamp(min=1),
            loss_classes=_divergence(
                self.to_teacher['classes'](pooled[-1]).float().log_softmax(1), batch['classes']
            ).mean(),
            loss_pooled=_error(self.to_teacher['pooled'](pooled[-1]), batch['pooled']),
            loss_map=_error(self.to_teacher['map'](maps[0].permute(0, 2, 3, 1)), target_map),
        )


def rectangle(cells: int) -> Tensor:
    """Ones in a rectangle of whole cells and zeros around it, (1, 1, cells, cells).

    The sides are the root of a share that is uniform in [0, 1) (CutMix, arXiv 1905.04899), rounded.
    """
    side = int((torch.rand(()).sqrt() * cells).round())
    top, left = (int(torch.randint(cells - side + 1, ())) for _ in range(2))
    mask = torch.zeros(1, 1, cells, cells)
    mask[:, :, top : top + side, left : left + side] = 1
    return mask


def _divergence(scores: Tensor, target: Tensor) -> Tensor:
    """Divergence (B,) of log probabilities (B, C) from a target."""
    return F.kl_div(scores, target, reduction='none').sum(1)


def _error(found: Tensor, target: Tensor) -> Tensor:
    """Mean squared error to the target (..., C), normalised over C."""
    return F.mse_loss(found.float(), F.layer_norm(target, target.shape[-1:]))

"""An image classifier that learns at several sizes from labels and from the features of a frozen CNN.

It needs mmpretrain; list this module in the ``custom_imports`` of a config that uses it, with ``projects`` in
``PYTHONPATH``.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import timm
import torch
import torch.nn.functional as F
from mmcv.transforms import BaseTransform
from mmengine.registry import MODELS, TRANSFORMS
from mmpretrain.models import ImageClassifier
from mmpretrain.structures import DataSample
from torch import Tensor, nn

from cpvt_backbones.checkpoints import load_weights
from cpvt_backbones.layers.checks import check, check_fraction, check_int, is_int, is_sequence, strict_keywords

TEACHER = 'tf_efficientnet_lite0'
MAP, MAP_CHANNELS, POOLED_CHANNELS = 3, 112, 1280
"""Of the teacher: timm's index of the map of stride 16, its channels, and those of the pooled features."""


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
@strict_keywords
class FeatureDistillation(ImageClassifier):
    """mmpretrain's image classifier with three more losses, against a frozen EfficientNet-Lite0.

    They are the divergence from the teacher's probabilities of the classes, and the squared errors of two linear maps:
    of the pooled features to the teacher's, and of an earlier block's tokens to the teacher's map of stride 16. The
    targets are normalised over their channels. The teacher gets each crop at one size, the student at a size that is
    drawn for the batch. The teacher is in no checkpoint.

    Each image needs a score for each class (:class:`OneHotLabel`). One without a label has the losses of the features.

    Args:
        backbone: With ``out_type='featmap'`` and two ``out_indices``, the second the last block.
        neck: Pools the maps; the same model with ``out_type='avg_featmap'`` and no neck has the same weights.
        head: A linear classifier of mmpretrain.
        teacher: Checkpoint that ``tools/make_teacher.py`` wrote.
        teacher_classes: The teacher's index of each class of the student.
        teacher_size: Side of the teacher's images in px.
        sizes: Sides of the student's images in px.
        mixup: Probability that a batch is mixed: ``x * l + flip(x) * (1 - l)`` for images and labels, with ``l`` of a
            beta distribution (0.8, 0.8). The teacher gets the mixed images, too.
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
        teacher_size: int = 96,
        sizes: Sequence[int] = (64, 80, 96, 112),
        mixup: float = 0.0,
        data_preprocessor: dict[str, Any] | None = None,
        init_cfg: Any = None,
    ) -> None:
        super().__init__(backbone, neck=neck, head=head, data_preprocessor=data_preprocessor, init_cfg=init_cfg)
        check_int(teacher_size=teacher_size)
        check(
            'a list of sides > 0', lambda v: is_sequence(v) and v and all(is_int(s) and s > 0 for s in v), sizes=sizes
        )
        check_fraction(mixup=mixup)
        number = self.head.num_classes
        accepted = f'{number} indices in [0, 1000)'
        check(accepted, lambda v: len(v) == number and set(v) <= set(range(1000)), teacher_classes=teacher_classes)
        # Building the teacher must not advance the generator: another teacher would draw other weights of the student.
        with torch.random.fork_rng():
            network = timm.create_model(TEACHER)
        load_weights(network, teacher, strict=True)
        self._teacher = [network.requires_grad_(False).eval().to(memory_format=torch.channels_last)]
        self.teacher_classes, self.teacher_size, self.sizes = list(teacher_classes), teacher_size, tuple(sizes)
        self.mixup = mixup
        middle, last = self.backbone.out_channels
        self.to_teacher = nn.ModuleDict(
            dict(
                map=nn.Sequential(nn.LayerNorm(middle), nn.Linear(middle, MAP_CHANNELS)),
                pooled=nn.Linear(last, POOLED_CHANNELS),
            )
        )

    @torch.no_grad()
    def targets(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map (B, 112, h, w), pooled features (B, 1280) and class probabilities (B, classes) of images (B, 3, H, W)."""
        network = self._teacher[0].to(images.device)
        pixels = images * self.data_preprocessor.std + self.data_preprocessor.mean
        inputs = (pixels / 127.5 - 1).contiguous(memory_format=torch.channels_last)
        last, (middle,) = network.forward_intermediates(inputs, indices=[MAP])
        pooled = last.mean((2, 3))
        scores = network.classifier(pooled)[:, self.teacher_classes]
        return middle.float(), pooled.float(), scores.float().softmax(1)

    def loss(self, inputs: Tensor, data_samples: list[DataSample]) -> dict[str, Tensor]:
        """``loss_label``, ``loss_probabilities``, ``loss_pooled`` and ``loss_map`` of one batch."""
        labels = torch.stack([sample.gt_score for sample in data_samples])
        if torch.rand(()) < self.mixup:
            share = torch.distributions.Beta(0.8, 0.8).sample().to(inputs.device)
            inputs, labels = (share * x + (1 - share) * x.flip(0) for x in (inputs, labels))
        known = labels.sum(1)
        target_map, target_pooled, probabilities = self.targets(_resize(inputs, self.teacher_size))
        side = self.sizes[int(torch.randint(len(self.sizes), ()))]
        maps = self.backbone(_resize(inputs, side))
        pooled = self.neck(maps)
        scores = self.head(pooled).float().log_softmax(1)
        divergence = F.kl_div(scores, probabilities, reduction='none').sum(1)
        target_map = _resize(target_map, maps[0].shape[2:], antialias=False).permute(0, 2, 3, 1)
        tokens = self.to_teacher['map'](maps[0].permute(0, 2, 3, 1))
        return dict(
            loss_label=-(labels * scores).sum() / known.sum().clamp(min=1),
            loss_probabilities=(known * divergence).sum() / known.sum().clamp(min=1),
            loss_pooled=_error(self.to_teacher['pooled'](pooled[-1]), target_pooled),
            loss_map=_error(tokens, target_map),
        )


def _error(found: Tensor, target: Tensor) -> Tensor:
    """Mean squared error to the target (..., C), normalised over C."""
    return F.mse_loss(found.float(), F.layer_norm(target, target.shape[-1:]))


def _resize(images: Tensor, size: Any, antialias: bool = True) -> Tensor:
    return F.interpolate(images, size, mode='bilinear', align_corners=False, antialias=antialias)

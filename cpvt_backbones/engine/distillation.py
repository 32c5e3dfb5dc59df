"""Hard distillation: a second head learns the labels that a frozen teacher predicts (DeiT, arXiv
2012.12877).

It needs mmpretrain; list this module in the ``custom_imports`` of a config that uses it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from mmpretrain.models import ImageClassifier
from mmpretrain.models.heads import DeiTClsHead
from mmpretrain.models.utils import ClsDataPreprocessor
from mmpretrain.registry import MODELS as MMPRETRAIN_MODELS
from mmpretrain.structures import DataSample
from torch import Tensor, nn

from cpvt_backbones.checkpoints import CheckpointError, load_weights
from cpvt_backbones.layers.checks import check_fraction, check_int, list_of_dicts


@MODELS.register_module()
class DistillationHead(DeiTClsHead):
    """Two linear classifiers, one for the labels and one for the teacher's labels.

    Predictions average their logits.

    With a distillation token (a backbone with ``with_dist_token=True, out_type='cls_token'``) each
    classifies its own token; without (``out_type='avg_featmap'``) both classify the same pooled
    vector. Arguments and parameter names are those of mmpretrain's ``DeiTClsHead``.
    """

    def pre_logits(self, feats: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Both vectors (B, C) to classify."""
        last = feats[-1]
        pair: tuple[Tensor, Tensor] = super().pre_logits(
            [last if isinstance(last, (tuple, list)) else (last, last)]
        )
        return pair

    def both_scores(self, feats: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Logits (B, classes) for the labels and for the teacher's labels."""
        first, second = self.pre_logits(feats)
        return self.layers.head(first), self.layers.head_dist(second)

    def forward(self, feats: Sequence[Any]) -> Tensor:
        """Mean of the logits of both classifiers, (B, classes)."""
        first, second = self.both_scores(feats)
        return (first + second) / 2


@MODELS.register_module()
class HardDistillation(ImageClassifier):
    """mmpretrain's image classifier, trained on labels and on a frozen teacher's predictions for
    the same images.

    The teacher gets the augmented batch in its own normalisation. It is built for the first loss,
    so a trained student runs without it. It stays in evaluation mode, gets no gradient, and is in
    no checkpoint. A teacher without weights, without normalisation, or with another number of
    classes is a ``ValueError``.

    Args:
        backbone, head: See :class:`DistillationHead`.
        teacher: Any classifier of mmpretrain as plain data, e.g. ``dict(type='TimmClassifier',
            model_name='regnety_160.deit_in1k', pretrained=True)``. Its ``data_preprocessor`` has
            ``mean``, ``std`` and ``to_rgb``; default: a timm model's own values.
        distillation_weight: Share of the teacher's loss, in [0, 1]. DeiT: 0.5.
        teacher_size: Side of the teacher's images in px; default: that of the student's.
        teacher_classes: The teacher's index of each class of the student; default: the same
            classes.
        neck, train_cfg, data_preprocessor, init_cfg: As in mmpretrain's ``ImageClassifier``.
    """

    def __init__(
        self,
        *,
        backbone: dict[str, Any],
        head: dict[str, Any],
        teacher: Mapping[str, Any],
        neck: dict[str, Any] | None = None,
        distillation_weight: float = 0.5,
        teacher_size: int | None = None,
        teacher_classes: Sequence[int] | None = None,
        train_cfg: dict[str, Any] | None = None,
        data_preprocessor: dict[str, Any] | None = None,
        init_cfg: Any = None,
    ) -> None:
        options = dict(train_cfg=train_cfg, data_preprocessor=data_preprocessor, init_cfg=init_cfg)
        super().__init__(backbone, neck=neck, head=head, **options)
        check_fraction(distillation_weight=distillation_weight)
        if teacher_size is not None:
            check_int(teacher_size=teacher_size)
        if not isinstance(self.head, DistillationHead):
            raise ValueError(
                f"head must be of type 'DistillationHead', got {type(self.head).__name__!r}"
            )
        if not (
            teacher.get('pretrained') or teacher.get('checkpoint_path') or _checkpoints(teacher)
        ):
            accepted = 'pretrained=True or checkpoint_path=... for a timm model'
            other = "init_cfg=dict(type='Pretrained', checkpoint=...)"
            raise ValueError(
                f'teacher must come with weights: {accepted}, else {other}; got {dict(teacher)!r}'
            )
        self.distillation_weight, self.teacher_size = distillation_weight, teacher_size
        self.teacher_classes = None if teacher_classes is None else list(teacher_classes)
        self.teacher_cfg = dict(teacher)
        # A list hides it from torch: it is in no state dict, not trained, and not wrapped by a
        # strategy.
        self._teacher: list[nn.Module] = []

    @property
    def teacher(self) -> nn.Module:
        """The teacher, built at first use."""
        if not self._teacher:
            # Building it must not advance the generator: a resumed training would draw other
            # numbers.
            with torch.random.fork_rng():
                teacher = MMPRETRAIN_MODELS.build(dict(self.teacher_cfg))
            for checkpoint in _checkpoints(self.teacher_cfg):
                try:
                    load_weights(teacher, checkpoint, strict=True)
                except CheckpointError as error:
                    raise CheckpointError(f'teacher: {error}') from error
            timm_cfg = getattr(getattr(teacher, 'model', None), 'pretrained_cfg', None)
            if timm_cfg and getattr(teacher.data_preprocessor, 'mean', None) is None:
                mean = [255 * value for value in timm_cfg['mean']]
                std = [255 * value for value in timm_cfg['std']]
                teacher.data_preprocessor = ClsDataPreprocessor(mean=mean, std=std, to_rgb=True)
            self._teacher.append(teacher.requires_grad_(False).eval())
        return self._teacher[0]

    @torch.no_grad()
    def teacher_labels(self, images: Tensor) -> Tensor:
        """Classes (B,) that the teacher predicts for images (B, 3, H, W) that are normalised for
        the student.
        """
        scores = self.teacher.to(images.device)(self._for_teacher(images), mode='tensor')
        if self.teacher_classes is not None:
            scores = scores[:, self.teacher_classes]
        classes = self.head.num_classes
        if scores.shape[1] != classes:
            found = f'got {scores.shape[1]}; teacher_classes selects among them'
            raise ValueError(f'teacher must know the {classes} classes of the student, {found}')
        return scores.argmax(dim=1)

    def loss(self, inputs: Tensor, data_samples: list[DataSample]) -> dict[str, Tensor]:
        """``loss_label``, of the batch's labels (mixed or not), and ``loss_teacher``, each times
        its share.
        """
        first, second = self.head.both_scores(self.extract_feat(inputs))
        loss_label = (1 - self.distillation_weight) * self.head._get_loss(first, data_samples)[
            'loss'
        ]
        loss_teacher = self.distillation_weight * F.cross_entropy(
            second, self.teacher_labels(inputs)
        )
        return dict(loss_label=loss_label, loss_teacher=loss_teacher)

    def _for_teacher(self, images: Tensor) -> Tensor:
        mean, std, rgb = _normalisation(self.data_preprocessor, 'data_preprocessor')
        images = images * std.to(images) + mean.to(images)
        preprocessor = self.teacher.get_submodule('data_preprocessor')
        mean, std, teacher_rgb = _normalisation(preprocessor, 'teacher.data_preprocessor')
        if rgb != teacher_rgb:
            images = images.flip(1)
        images = (images - mean.to(images)) / std.to(images)
        if self.teacher_size is not None:
            images = F.interpolate(
                images, self.teacher_size, mode='bicubic', align_corners=False, antialias=True
            )
        return images


def _checkpoints(teacher: Mapping[str, Any]) -> list[str]:
    entries = list_of_dicts('teacher.init_cfg', teacher.get('init_cfg'))
    return [entry['checkpoint'] for entry in entries if entry.get('type') == 'Pretrained']


def _normalisation(preprocessor: nn.Module, name: str) -> tuple[Tensor, Tensor, bool]:
    """Mean and standard deviation (3, 1, 1) of pixels in [0, 255]; True for RGB order."""
    mean, std = getattr(preprocessor, 'mean', None), getattr(preprocessor, 'std', None)
    if mean is None or std is None:
        raise ValueError(f'{name} must have mean and std, got mean={mean!r}, std={std!r}')
    return mean, std, bool(preprocessor.to_rgb)

"""Hard distillation (DeiT, arXiv 2012.12877): a second head learns a frozen teacher's labels.

It needs mmpretrain, which is imported when a config is built.
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

from cpvt_backbones.backbones import announced_sizes
from cpvt_backbones.backbones.padded import features_of_sizes
from cpvt_backbones.checkpoints import CheckpointError, classes_of, load_weights
from cpvt_backbones.checks import check_fraction, check_int, list_of_dicts
from cpvt_backbones.errors import InputError


@MODELS.register_module(force=True)  # replaces the function of .lazy_registration
class DistillationHead(DeiTClsHead):
    """Head of two linear classifiers: one learns the labels, the other the teacher's labels.

    A prediction is the mean of the two logits. If the backbone has a distillation token
    (``with_dist_token=True, out_type='cls_token'``), each classifier gets its own token. Otherwise
    (``out_type='avg_featmap'``), both get the same pooled vector.

    Its arguments and parameter names are those of mmpretrain's ``DeiTClsHead``. See
    :class:`HardDistillation` for the config of a training.

    Examples:
        A trained student, without its teacher:

        ```python
        custom_imports = dict(imports=['cpvt_backbones'])
        model = dict(
            type='ImageClassifier',
            backbone=dict(
                type='CPVT',
                arch='tiny',
                with_dist_token=True,
                out_type='cls_token',
            ),
            head=dict(
                type='DistillationHead',
                num_classes=1000,
                in_channels=192,
            ),
        )
        ```
    """

    def pre_logits(self, feats: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Return the two vectors (B, C) to classify, from the features of the backbone."""
        last = feats[-1]
        pair: tuple[Tensor, Tensor] = super().pre_logits(
            [last if isinstance(last, (tuple, list)) else (last, last)]
        )
        return pair

    def both_scores(self, feats: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Compute logits (B, classes) for the labels and for the teacher's labels."""
        first, second = self.pre_logits(feats)
        return self.layers.head(first), self.layers.head_dist(second)

    def forward(self, feats: Sequence[Any]) -> Tensor:
        """Compute the mean of the logits of both classifiers, (B, classes)."""
        first, second = self.both_scores(feats)
        return (first + second) / 2


@MODELS.register_module(force=True)  # replaces the function of .lazy_registration
class HardDistillation(ImageClassifier):
    """Image classifier that also learns a teacher's predictions (hard distillation, DeiT).

    A frozen teacher predicts a class for each training image, and the second classifier of
    :class:`DistillationHead` learns it (arXiv 2012.12877).

    The teacher gets the same augmented images, in its own normalisation. It is built for the first
    loss, so a trained student runs without it. It stays in evaluation mode and gets no gradient.
    Checkpoints do not contain it.

    Args:
        backbone: Config of the student's backbone; :class:`DistillationHead` explains ``out_type``.
        head: Config of a :class:`DistillationHead`.
        teacher: Config of any classifier of mmpretrain, with weights. Its ``data_preprocessor`` has
            ``mean``, ``std`` and ``to_rgb``; the default is a timm model's own values.
        neck: See mmpretrain's ``ImageClassifier``.
        distillation_weight: Share of the teacher's loss, in [0, 1]. DeiT uses 0.5.
        teacher_size: Side of the teacher's images in px; ``None`` for the side of the student's.
        teacher_classes: The teacher's index of each class of the student; ``None`` if both have the
            same classes.
        train_cfg: See mmpretrain's ``ImageClassifier``.
        data_preprocessor: See mmpretrain's ``ImageClassifier``.
        init_cfg: See mmpretrain's ``ImageClassifier``.

    Raises:
        ValueError: The teacher has no weights, no normalisation, or another number of classes than
            the student, or ``head`` has another type.

    Examples:
        ```python
        custom_imports = dict(imports=['cpvt_backbones'])
        model = dict(
            type='HardDistillation',
            backbone=dict(
                type='CPVT',
                arch='tiny',
                with_dist_token=True,
                out_type='cls_token',
            ),
            head=dict(
                type='DistillationHead',
                num_classes=1000,
                in_channels=192,
            ),
            teacher=dict(
                type='TimmClassifier',
                model_name='regnety_160.deit_in1k',
                pretrained=True,
            ),
        )
        ```
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
            raise InputError(
                f"head must be of type 'DistillationHead', got {type(self.head).__name__!r}"
            )
        if not (
            teacher.get('pretrained') or teacher.get('checkpoint_path') or _checkpoints(teacher)
        ):
            accepted = 'pretrained=True or checkpoint_path=... for a timm model'
            other = "init_cfg=dict(type='Pretrained', checkpoint=...)"
            raise InputError(
                f'teacher must come with weights: {accepted}, else {other}; got {dict(teacher)!r}'
            )
        self.distillation_weight, self.teacher_size = distillation_weight, teacher_size
        self.teacher_classes = None if teacher_classes is None else list(teacher_classes)
        self.teacher_cfg = dict(teacher)
        # A list hides the teacher from torch: state dicts do not contain it, and nothing trains or
        # wraps it.
        self._teacher: list[nn.Module] = []
        self._teacher_names: list[str] | None = None

    @property
    def teacher(self) -> nn.Module:
        """The teacher, which is built on first use.

        Raises:
            CheckpointError: The teacher's weights cannot be read or do not fit.
        """
        if not self._teacher:
            # Building it must not advance the generator, or a resumed training draws other numbers.
            with torch.random.fork_rng():
                teacher = MMPRETRAIN_MODELS.build(dict(self.teacher_cfg))
            for checkpoint in _checkpoints(self.teacher_cfg):
                try:
                    meta = load_weights(teacher, checkpoint, strict=True)
                except CheckpointError as error:
                    raise CheckpointError(f'teacher: {error}') from error
                self._teacher_names = classes_of(meta)
            timm_cfg = getattr(getattr(teacher, 'model', None), 'pretrained_cfg', None)
            if timm_cfg and getattr(teacher.data_preprocessor, 'mean', None) is None:
                mean = [255 * value for value in timm_cfg['mean']]
                std = [255 * value for value in timm_cfg['std']]
                teacher.data_preprocessor = ClsDataPreprocessor(mean=mean, std=std, to_rgb=True)
            self._teacher.append(teacher.requires_grad_(False).eval())
        return self._teacher[0]

    def taught_classes(self) -> list[str] | None:
        """Return the teacher's name of each class of the student; ``None`` if unknown.

        ``teacher_classes`` outside the teacher's classes raises ``IndexError``.
        """
        assert self.teacher is not None  # built, so that the names are known
        if self._teacher_names is None or self.teacher_classes is None:
            return self._teacher_names
        return [self._teacher_names[index] for index in self.teacher_classes]

    @torch.no_grad()
    def teacher_labels(self, images: Tensor) -> Tensor:
        """Predict classes (B,) by the teacher.

        Args:
            images: (B, 3, H, W), normalised for the student. In a padded batch, the teacher sees
                each image without its padding.

        Raises:
            ValueError: The teacher has another number of classes than the student.
        """
        sizes = announced_sizes(images)
        if sizes is None:
            scores = self._teacher_scores(images)
        else:
            (scores,) = features_of_sizes(
                lambda part: (self._teacher_scores(part),), images, sizes, None
            )
        if self.teacher_classes is not None:
            scores = scores[:, self.teacher_classes]
        classes = self.head.num_classes
        if scores.shape[1] != classes:
            found = f'got {scores.shape[1]}; teacher_classes selects among them'
            raise InputError(f'teacher must know the {classes} classes of the student, {found}')
        return scores.argmax(dim=1)

    def _teacher_scores(self, images: Tensor) -> Tensor:
        scores: Tensor = self.teacher.to(images.device)(self._for_teacher(images), mode='tensor')
        return scores

    def loss(self, inputs: Tensor, data_samples: list[DataSample]) -> dict[str, Tensor]:
        """Compute the two losses of a batch.

        Args:
            inputs: Images (B, 3, H, W), normalised.
            data_samples: Their labels, which a batch augmentation may have mixed.

        Returns:
            ``loss_label`` and ``loss_teacher``, each multiplied by its share.
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
    """Return mean and standard deviation (3, 1, 1) of pixels in [0, 255]; ``True`` for RGB."""
    mean, std = getattr(preprocessor, 'mean', None), getattr(preprocessor, 'std', None)
    if mean is None or std is None:
        raise InputError(f'{name} must have mean and std, got mean={mean!r}, std={std!r}')
    return mean, std, bool(preprocessor.to_rgb)

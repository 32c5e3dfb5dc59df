"""Mixins with which a data preprocessor passes the size of each image in a padded batch."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from cpvt_backbones.backbones import announce_sizes
from cpvt_backbones.errors import InputError

from .labels import Classes, check_labels

Sizes = list[tuple[int, int]]
Part = TypeVar('Part')


class ValidSizes:
    """Mixin of a data preprocessor that passes the size of each image to the backbone.

    In training, a data preprocessor pads the images of a batch to one size. This mixin announces
    the (height, width) in px of each image before padding, by
    :func:`cpvt_backbones.backbones.announce_sizes`. :class:`CPVT`, :class:`MultiScaleCPVT` and
    :class:`PyramidCPVT` look it up. Each image then has the same features as alone. Detectors,
    segmentors and classifiers pass the batch unchanged to the backbone, so no other setting is
    needed. The batch may be cast or copied in between, but passing only a part of it is an error.

    Validation and test pad nothing, because neck and head would see the padding. Settings that pad
    a batch are ignored there; only a segmentor pads by its ``test_cfg``. The images of a batch must
    have the same size. The loops of :class:`ResumableRunner` pass the images of one size at a time
    (:func:`predict_by_size`).

    The classes for the toolboxes, :class:`ValidSizesDetDataPreprocessor`,
    :class:`ValidSizesSegDataPreProcessor` and :class:`ValidSizesClsDataPreprocessor`, have this
    mixin. For a custom data preprocessor, put it first among the base classes:

    - It reads the height and width of each tensor (C, H, W) in ``data['inputs']``, without metainfo
      keys. Images in one tensor (B, C, H, W) count as unpadded.
    - It compares the metainfo key ``img_shape`` of each data sample before and after the call. If
      it has changed, the batch was resized, which is an error. A preprocessor that writes the
      padded size to ``img_shape`` needs the class attribute ``img_shape_means_resized = False``.
      Then only a batch that is smaller than an image is an error.
    - In validation and test, it sets the preprocessor's attributes in the class attribute
      ``test_options``, by default ``pad_size_divisor = 1``. With ``test_options = None``, the
      preprocessor may pad, and the padding counts as part of the image.
    - In training, it compares the labels with the classes of the head, before they go to the GPU.
      :class:`TrainingCheckHook` sets these classes.

    Examples:
        A custom data preprocessor. In a config, it is
        ``data_preprocessor=dict(type='MyPreprocessor')``.

        >>> import torch
        >>> from mmengine.model import ImgDataPreprocessor
        >>> from mmengine.registry import MODELS
        >>> from cpvt_backbones.backbones import announce_sizes, announced_sizes
        >>> from cpvt_backbones.engine import ValidSizes
        >>> @MODELS.register_module()
        ... class MyPreprocessor(ValidSizes, ImgDataPreprocessor):
        ...     pass
        >>> images = [torch.zeros(3, 40, 64), torch.zeros(3, 56, 33)]
        >>> batch = MyPreprocessor()(dict(inputs=images), training=True)['inputs']
        >>> batch.shape, announced_sizes(batch)
        (torch.Size([2, 3, 56, 64]), [(40, 64), (56, 33)])

        The same in training without the mixin:

        >>> class WithoutMixin(ImgDataPreprocessor):
        ...     def forward(self, data, training=False):
        ...         sizes = [tuple(x.shape[-2:]) for x in data['inputs']]
        ...         result = super().forward(data, training)
        ...         announce_sizes(result['inputs'], sizes)
        ...         return result
        >>> batch = WithoutMixin()(dict(inputs=images))['inputs']
        >>> announced_sizes(batch)
        [(40, 64), (56, 33)]
    """

    # False if the other base class also changes a sample's img_shape when it pads the image.
    img_shape_means_resized = True

    # Attributes that stop the other base class from padding in a test; None lets it pad.
    test_options: Mapping[str, Any] | None = {'pad_size_divisor': 1}

    classes: Classes | None = None
    """Classes of the model's head, for the check of labels; set by a training."""

    def forward(self, data: Any, training: bool = False) -> Any:
        """Preprocess like the other base class, and announce the sizes of the images.

        Args:
            data: Dict with ``inputs``, the images (C, H, W), and ``data_samples``, one per image.
                The latter may be missing if the other base class accepts that.
            training: ``True`` for a training batch, which is padded.

        Returns:
            The result of the other base class.

        Raises:
            ValueError: ``batch_augments`` resized the batch, or the images do not have as many
                channels as ``mean`` has values. In training, a label is outside the classes. In
                validation and test, the images have several sizes or were padded.
        """
        self._check_channels(data['inputs'])
        if training:
            self._check_labels(data.get('data_samples') or ())
        sizes = [tuple(image.shape[-2:]) for image in data['inputs']]
        if not training:
            _check_one_size(sizes)
        shapes = _img_shapes(data)
        result, valid = self._preprocess(data, training, sizes)
        inputs = result['inputs']
        batch = tuple(inputs.shape[-2:])
        shrunk = any(h > batch[0] or w > batch[1] for h, w in sizes)
        if shrunk or (self.img_shape_means_resized and _img_shapes(result) != shapes):
            fault = f'images of {sizes} px became a batch of {batch} px'
            raise InputError(
                f'data_preprocessor: {fault}; batch_augments that resize leave no valid sizes'
            )
        if not training and self.test_options is None:
            valid = [batch] * len(valid)
        elif not training and batch != sizes[0]:
            raise InputError(
                f'data_preprocessor: images of {sizes[0]} px were padded to {batch} px in a test,'
                f' where neck and head would see the padding; {type(self).__name__}.test_options'
                ' must name the attributes with which it pads nothing'
            )
        announce_sizes(inputs, valid)
        return result

    def _preprocess(self, data: Any, training: bool, sizes: Sizes) -> tuple[Any, Sizes]:
        """Return the result of the other base class, and the size of each image."""
        worker = self if training else with_attributes(self, self.test_options or {})
        return super(ValidSizes, worker).forward(data, training), sizes  # type: ignore[misc]

    def _check_labels(self, samples: Sequence[Any]) -> None:
        if self.classes is not None:
            check_labels(samples, self.classes)

    def _check_channels(self, images: Any) -> None:
        """Raise ``ValueError`` for images with another number of channels than ``mean``."""
        mean = getattr(self, 'mean', None)
        wanted = 1 if mean is None else mean.numel()
        found = {image.shape[-3] for image in images}
        if wanted > 1 and found != {wanted}:
            channels = ', '.join(map(str, sorted(found)))
            raise InputError(
                f'data_preprocessor: mean has {wanted} values, the images have {channels} channels'
            )


class AnyChannels(ValidSizes):
    """Mixin for mmdet and mmseg: mean and std for any number of channels, not only 1 or 3."""

    def __init__(
        self,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        **options: Any,
    ) -> None:
        if mean is None or std is None or len(mean) in (1, 3):
            super().__init__(mean=mean, std=std, **options)  # type: ignore[call-arg]
            return
        if len(std) != len(mean):
            raise InputError(
                f'data_preprocessor: std must have {len(mean)} values as mean, got {len(std)}'
            )
        super().__init__(mean=mean[:1], std=std[:1], **options)  # type: ignore[call-arg]
        self.mean, self.std = (torch.tensor(values).view(-1, 1, 1) for values in (mean, std))


class MixedSizes:
    """Batch augmentations of mmpretrain, with the size of each image after them.

    Mixup, CutMix and ResizeMix put pixels of one image into another. The augmentations get the
    batch with a further channel, which is 1 in the images and 0 in the padding. Afterwards, it is
    not 0 wherever there are pixels of an image.

    Args:
        augments: Function of the batch (B, C, H, W) and the scores (B, classes) that returns both.
        sizes: (height, width) in px of each image of the batch.

    Attributes:
        sizes (list[tuple[int, int]]): Size in px that covers all pixels mixed into each image.
    """

    def __init__(self, augments: Callable[[Tensor, Tensor], Any], sizes: Sizes) -> None:
        self.augments, self.sizes = augments, sizes

    def __call__(self, batch: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return the batch and the scores after the augmentations."""
        inside = batch.new_zeros(len(batch), 1, *batch.shape[2:])
        for image, (height, width) in zip(inside, self.sizes, strict=True):
            image[:, :height, :width] = 1
        mixed, scores = self.augments(torch.cat([batch, inside], dim=1), scores)
        filled = mixed[:, -1] != 0  # (B, H, W)
        ends = [_ends(filled.any(dim=2)), _ends(filled.any(dim=1))]
        self.sizes = [(height, width) for height, width in torch.stack(ends, dim=1).tolist()]
        return mixed[:, :-1].contiguous(), scores


def _ends(filled: Tensor) -> Tensor:
    """Return the length up to the last true entry in each row of (B, N)."""
    return (filled * torch.arange(1, filled.shape[1] + 1, device=filled.device)).amax(dim=1)


def with_attributes(part: Part, attributes: Mapping[str, Any]) -> Part:
    """Return a shallow copy with other attributes; calling it does not change the original."""
    changed = copy.copy(part)
    for name, value in attributes.items():
        setattr(changed, name, value)
    return changed


def _check_one_size(sizes: Sizes) -> None:
    if len(set(sizes)) > 1:
        raise InputError(
            f'data_preprocessor: the images of a test batch must have one size, got {sizes} px,'
            ' because neck and head would see the padding: set runner_type="ResumableRunner", or'
            ' batch_size=1 in val_dataloader and test_dataloader; without a runner, call'
            ' predict_by_size(model.test_step, batch)'
        )


def _img_shapes(data: Any) -> list[Any]:
    return [getattr(sample, 'img_shape', None) for sample in data.get('data_samples') or ()]

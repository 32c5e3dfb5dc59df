"""What a data preprocessor needs to pass the size of each image of a padded batch."""

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from mmengine.model import BaseModel
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from cpvt_backbones.errors import InputError

from .labels import Classes, check_labels, classes_of_head
from .prediction_by_size import predict_by_size


class ValidSizes:
    """Mixin of a data preprocessor that passes the size of each image to the backbone.

    A data preprocessor pads the images of a batch to one size. This mixin sets the attribute
    ``valid_sizes`` of the batch: the (height, width) in px of each image before padding.
    :class:`CPVT`, :class:`MultiScaleCPVT` and :class:`PyramidCPVT` read the attribute. The features
    of an image are then those that it has alone. Detectors, segmentors and classifiers hand the
    batch to the backbone unchanged, so no other setting is needed.

    The classes for the toolboxes, :class:`ValidSizesDetDataPreprocessor`,
    :class:`ValidSizesSegDataPreProcessor` and :class:`ValidSizesClsDataPreprocessor`, have this
    mixin. For a custom data preprocessor, put it first among the base classes:

    - It reads the height and width of each tensor (C, H, W) in ``data['inputs']``. No metainfo key
      is needed for the sizes. The images of one tensor (B, C, H, W) count as unpadded.
    - It compares the metainfo key ``img_shape`` of each data sample before and after the call. If
      it has changed, the batch was resized, which is an error. A preprocessor that writes the
      padded size to ``img_shape`` needs the class attribute ``img_shape_means_resized = False``.
      Then only a batch that is smaller than an image is noticed.
    - It sets ``result['inputs'].valid_sizes``, a list of (height, width).
    - In training it compares the labels, before they go to the GPU, with the classes of the head of
      the model that it is part of.
    - The validation and test steps of that model take the images of one size at a time
      (:func:`predict_by_size`), so that neck and heads see no padding to other images either.

    Examples:
        A custom data preprocessor. In a config, it is
        ``data_preprocessor=dict(type='MyPreprocessor')``.

        >>> import torch
        >>> from mmengine.model import ImgDataPreprocessor
        >>> from mmengine.registry import MODELS
        >>> from cpvt_backbones.engine import ValidSizes
        >>> @MODELS.register_module()
        ... class MyPreprocessor(ValidSizes, ImgDataPreprocessor):
        ...     pass
        >>> images = [torch.zeros(3, 40, 64), torch.zeros(3, 56, 33)]
        >>> batch = MyPreprocessor()(dict(inputs=images))['inputs']
        >>> batch.shape, batch.valid_sizes
        (torch.Size([2, 3, 56, 64]), [(40, 64), (56, 33)])

        The same without the mixin:

        >>> class WithoutMixin(ImgDataPreprocessor):
        ...     def forward(self, data, training=False):
        ...         sizes = [tuple(x.shape[-2:]) for x in data['inputs']]
        ...         result = super().forward(data, training)
        ...         result['inputs'].valid_sizes = sizes
        ...         return result
        >>> WithoutMixin()(dict(inputs=images))['inputs'].valid_sizes
        [(40, 64), (56, 33)]
    """

    # False: the other base class changes the img_shape of a sample when it pads the image, too.
    img_shape_means_resized = True

    _model: 'weakref.ref[nn.Module] | None' = None  # that this is part of
    _classes: Classes | None = None  # of its head, once a batch was seen

    def __getstate__(self) -> dict[str, Any]:
        """The state without the reference to the model, which cannot be pickled or copied."""
        return {key: value for key, value in vars(self).items() if key != '_model'}

    def forward(self, data: Any, training: bool = False) -> Any:
        """Preprocess as the other base class does, and set ``valid_sizes``.

        Args:
            data: Dict of ``inputs``, the images (C, H, W), and ``data_samples``, one per image. The
                latter may be missing where the other base class accepts that.
            training: True for a batch of the training.

        Returns:
            The result of the other base class, with the attribute ``valid_sizes`` on ``inputs``.

        Raises:
            ValueError: ``batch_augments`` resized the batch, the images have another number of
                channels than ``mean`` has values, or, in training, a label is no class.
        """
        self._check_channels(data['inputs'])
        if training:
            self._check_labels(data.get('data_samples') or ())
        sizes = [tuple(image.shape[-2:]) for image in data['inputs']]
        shapes = _img_shapes(data)
        result = super().forward(data, training)  # type: ignore[misc]
        inputs = result['inputs']
        shrunk = any(h > inputs.shape[-2] or w > inputs.shape[-1] for h, w in sizes)
        if shrunk or (self.img_shape_means_resized and _img_shapes(result) != shapes):
            fault = f'images of {sizes} px became a batch of {tuple(inputs.shape[-2:])} px'
            raise InputError(
                f'data_preprocessor: {fault}; batch_augments that resize leave no valid sizes'
            )
        inputs.valid_sizes = sizes
        return result

    def _check_labels(self, samples: Sequence[Any]) -> None:
        if self._classes is None:
            model = self._model() if self._model is not None else None
            self._classes = classes_of_head(model) if model is not None else None
        if self._classes is not None:
            check_labels(samples, self._classes)

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


def _introduce(model: nn.Module, name: str, part: Any) -> None:
    if isinstance(part, ValidSizes):
        part._model = weakref.ref(model)
        if isinstance(model, BaseModel):
            predict_by_size(model)


# A module does not know the one that it is part of. The head of that one counts the classes, and
# its test splits the batch.
register_module_module_registration_hook(_introduce)


class AnyChannels(ValidSizes):
    """Mixin for mmdet and mmseg: mean and std of any number of values; mmengine's have one or
    three.
    """

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


def _img_shapes(data: Any) -> list[Any]:
    return [getattr(sample, 'img_shape', None) for sample in data.get('data_samples') or ()]

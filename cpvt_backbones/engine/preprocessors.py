"""Data preprocessors that pass the size of each image of a padded batch to the backbone.

In a config of any toolbox::

    custom_imports = dict(imports=['cpvt_backbones', 'cpvt_backbones.engine.preprocessors'])
    model = dict(data_preprocessor=dict(type='ValidSizesDetDataPreprocessor'))  # or ...Seg...,
    ...Cls...

They add the attribute ``valid_sizes`` to the batch of images, which detectors and segmentors pass
to the backbone unchanged. Neck and heads still see a padded map, zero outside the images; with
:class:`cpvt_backbones.engine.PredictBySizeHook` predictions do not depend on the batch at all.
Images may have any number of channels, with one value of mean and std for each.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from mmengine.registry import MODELS

PARENTS = {
    'ValidSizesDetDataPreprocessor': ('mmdet.models.data_preprocessors', 'DetDataPreprocessor'),
    'ValidSizesSegDataPreProcessor': ('mmseg.models', 'SegDataPreProcessor'),
    'ValidSizesClsDataPreprocessor': ('mmpretrain.models.utils', 'ClsDataPreprocessor'),
}


class ValidSizes:
    """Mixin of a data preprocessor: sets ``inputs.valid_sizes`` to the sizes before padding."""

    img_shape_means_resized = (
        True  # a sample's img_shape changes with the image's size only, not with padding
    )

    def forward(self, data: Any, training: bool = False) -> Any:
        """Preprocess as the toolbox does, and add each image's (height, width).

        ``ValueError`` for a resized batch.
        """
        self._check_channels(data['inputs'])
        sizes = [tuple(image.shape[-2:]) for image in data['inputs']]
        shapes = _img_shapes(data)
        result = self._preprocess(data, training)
        inputs = result['inputs']
        shrunk = any(h > inputs.shape[-2] or w > inputs.shape[-1] for h, w in sizes)
        if shrunk or (self.img_shape_means_resized and _img_shapes(result) != shapes):
            fault = f'images of {sizes} px became a batch of {tuple(inputs.shape[-2:])} px'
            raise ValueError(
                f'data_preprocessor: {fault}; batch_augments that resize leave no valid sizes'
            )
        inputs.valid_sizes = sizes
        return result

    def _preprocess(self, data: Any, training: bool) -> Any:
        return super().forward(data, training)  # type: ignore[misc]

    def _check_channels(self, images: Any) -> None:
        """Raise ``ValueError`` for images with another number of channels than ``mean``."""
        mean = getattr(self, 'mean', None)
        wanted = 1 if mean is None else mean.numel()
        found = {image.shape[-3] for image in images}
        if wanted > 1 and found != {wanted}:
            channels = ', '.join(map(str, sorted(found)))
            raise ValueError(
                f'data_preprocessor: mean has {wanted} values, the images have {channels} channels'
            )


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
            raise ValueError(
                f'data_preprocessor: std must have {len(mean)} values as mean, got {len(std)}'
            )
        super().__init__(mean=mean[:1], std=std[:1], **options)  # type: ignore[call-arg]
        self.mean, self.std = (torch.tensor(values).view(-1, 1, 1) for values in (mean, std))


class ValidSizesSeg(AnyChannels):
    """Mixin for mmseg; testing takes images of several sizes, which mmseg's own preprocessor
    refuses.
    """

    img_shape_means_resized = False  # mmseg changes it for padding too
    pad_val: float
    test_cfg: dict[str, Any] | None

    def _preprocess(self, data: Any, training: bool) -> Any:
        if training or len({image.shape for image in data['inputs']}) == 1:
            return super()._preprocess(data, training)
        from mmseg.utils import stack_batch

        samples = self.cast_data(data).get('data_samples')  # type: ignore[attr-defined]
        padding, self.test_cfg = self.test_cfg or dict(size_divisor=1), None
        try:  # normalise each image alone, then pad all to one size
            parts = [
                super(ValidSizesSeg, self)._preprocess(dict(inputs=[i]), False)
                for i in data['inputs']
            ]
        finally:
            self.test_cfg = padding
        inputs, shapes = stack_batch(
            [part['inputs'][0] for part in parts], **padding, pad_val=self.pad_val
        )
        for sample, shape in zip(samples or (), shapes if samples else (), strict=True):
            sample.set_metainfo(shape)
        return dict(inputs=inputs, data_samples=samples)


def _img_shapes(data: Any) -> list[Any]:
    return [getattr(sample, 'img_shape', None) for sample in data.get('data_samples') or ()]


MIXINS: dict[str, type] = dict(mmdet=AnyChannels, mmseg=ValidSizesSeg)
for _name, (_module, _parent) in PARENTS.items():
    try:
        _base = getattr(import_module(_module), _parent)
    except ImportError:  # a toolbox that is not installed
        continue
    _mixin = MIXINS.get(_module.partition('.')[0], ValidSizes)
    MODELS.register_module(module=type(_name, (_mixin, _base), {'__doc__': _mixin.__doc__}))

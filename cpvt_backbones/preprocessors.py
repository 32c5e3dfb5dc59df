"""Data preprocessors that tell the backbone how large each image of a padded batch is.

One line of a config, for whichever toolbox it is written::

    custom_imports = dict(imports=['cpvt_backbones', 'cpvt_backbones.preprocessors'])
    model = dict(data_preprocessor=dict(type='ValidSizesDetDataPreprocessor'))  # or ...Seg..., ...Cls...

They do what the toolbox's own does, and hang ``valid_sizes`` on the batch of images: detectors and segmentors hand that
tensor to the backbone as it is, so none of them has to know. What is behind the backbone still sees a padded map, zero
where an image has no pixel; predictions that do not depend on the batch at all are made by
:class:`cpvt_backbones.engine.PredictBySizeHook`.
"""

from importlib import import_module
from typing import Any

from mmengine.registry import MODELS

PARENTS = {
    'ValidSizesDetDataPreprocessor': ('mmdet.models.data_preprocessors', 'DetDataPreprocessor'),
    'ValidSizesSegDataPreProcessor': ('mmseg.models', 'SegDataPreProcessor'),
    'ValidSizesClsDataPreprocessor': ('mmpretrain.models.utils', 'ClsDataPreprocessor'),
}


class ValidSizes:
    """Mixin of a data preprocessor: sizes before padding become ``inputs.valid_sizes``."""

    resizing_is_noted = True
    """Whether ``img_shape`` of the samples tells of a change of size, and of nothing else."""

    def forward(self, data: Any, training: bool = False) -> Any:
        """As the toolbox's, with (height, width) of each image hung on ``inputs``.

        Raises:
            ValueError: A batch augmentation has resized the images.
        """
        sizes = [tuple(image.shape[-2:]) for image in data['inputs']]
        noted = _noted_sizes(data)
        result = self._stock(data, training)
        inputs = result['inputs']
        too_small = any(h > inputs.shape[-2] or w > inputs.shape[-1] for h, w in sizes)
        if too_small or (self.resizing_is_noted and _noted_sizes(result) != noted):
            raise ValueError(
                f'data_preprocessor: images of {sizes} px became a batch of {tuple(inputs.shape[-2:])} px; '
                'batch_augments that resize leave no valid sizes'
            )
        inputs.valid_sizes = sizes
        return result

    def _stock(self, data: Any, training: bool) -> Any:
        return super().forward(data, training)  # type: ignore[misc]


class ValidSizesSeg(ValidSizes):
    """The same; and testing takes images of several sizes, which mmseg's own refuses."""

    resizing_is_noted = False  # padding is noted there as well
    pad_val: float
    test_cfg: dict[str, Any] | None

    def _stock(self, data: Any, training: bool) -> Any:
        if training or len({image.shape for image in data['inputs']}) == 1:
            return super()._stock(data, training)
        from mmseg.utils import stack_batch

        samples = self.cast_data(data).get('data_samples')  # type: ignore[attr-defined]
        padding, self.test_cfg = self.test_cfg or dict(size_divisor=1), None
        try:  # each normalised by itself, then padded together
            alone = [super(ValidSizesSeg, self)._stock(dict(inputs=[i]), False)['inputs'][0] for i in data['inputs']]
        finally:
            self.test_cfg = padding
        inputs, shapes = stack_batch(alone, **padding, pad_val=self.pad_val)
        for sample, shape in zip(samples or (), shapes if samples else (), strict=True):
            sample.set_metainfo(shape)
        return dict(inputs=inputs, data_samples=samples)


def _noted_sizes(data: Any) -> list[Any]:
    return [getattr(sample, 'img_shape', None) for sample in data.get('data_samples') or ()]


def _register() -> None:
    for name, (module, parent) in PARENTS.items():
        try:
            base = getattr(import_module(module), parent)
        except ImportError:  # a toolbox that is not installed
            continue
        mixin = ValidSizesSeg if module.startswith('mmseg') else ValidSizes
        MODELS.register_module(module=type(name, (mixin, base), {'__doc__': mixin.__doc__}))


_register()

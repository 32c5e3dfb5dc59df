"""Predictions that do not depend on the other images of a batch, with any detector, segmentor or
classifier.

A toolbox pads the images of a batch to one size. With ``valid_sizes`` a backbone ignores the
padding, but neck and heads still convolve, resize and normalise over it. Here the whole model gets
each image at its own size; images of one size go together. In a config: ``custom_hooks =
[dict(type='PredictBySizeHook')]``.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor, nn

from cpvt_backbones.checkpoints import unwrap
from cpvt_backbones.errors import InputError, InputTypeError
from cpvt_backbones.layers import group_by_shape


class PredictBySize:
    """Mixin of an mm model: ``predict`` splits the batch by image size."""

    def predict(
        self, inputs: Tensor, data_samples: Sequence[Any] | None = None, **options: Any
    ) -> Any:
        """Predict as the model does, with the images of one size at a time.

        Args:
            inputs: (B, 3, H, W), images padded on the right and at the bottom.
            data_samples: One for each image. Its metainfo key ``img_shape`` is the (height, width)
                of the image before padding. With ``None`` the batch is not split.
            options: Passed to the model.

        Returns:
            The predictions, in the order of the batch.
        """
        if data_samples is None:
            return super().predict(inputs, data_samples, **options)  # type: ignore[misc]
        sizes = [tuple(sample.img_shape[:2]) for sample in data_samples]
        if any(height > inputs.shape[2] or width > inputs.shape[3] for height, width in sizes):
            raise InputError(
                f'img_shape must be at most {tuple(inputs.shape[2:])}, as the batch, got {sizes}'
            )
        results: list[Any] = [None] * len(data_samples)
        for members in group_by_shape(sizes):
            height, width = sizes[members[0]]
            unpadded: dict[str, Any] = dict.fromkeys(
                ('batch_input_shape', 'pad_shape'), (height, width)
            )
            unpadded |= dict.fromkeys(('padding_size', 'img_padding_size'), (0, 0, 0, 0))
            samples = [data_samples[index] for index in members]
            for sample in samples:
                sample.set_metainfo(
                    {key: unpadded[key] for key in sample.metainfo.keys() & unpadded.keys()}
                )
            part = inputs[members, :, :height, :width]
            predicted = super().predict(part, samples, **options)  # type: ignore[misc]
            for index, result in zip(members, predicted, strict=True):
                results[index] = result
        return results


@cache
def _by_size(cls: type) -> type:
    return type(
        cls.__name__, (PredictBySize, cls), {'__doc__': cls.__doc__, '__module__': cls.__module__}
    )


def predict_by_size(model: nn.Module) -> nn.Module:
    """Make a built model predict each image without padding, in place.

    A toolbox pads the images of a batch to one size. Here ``model.predict`` gets the images of one
    size at a time, without padding. A prediction then does not depend on the other images of the
    batch. The sizes come from the metainfo key ``img_shape`` of the data samples. Training does not
    change.

    Args:
        model: Detector, segmentor or classifier of a toolbox, alone or in a wrapper of mmengine
            (distributed training, test-time augmentation).

    Returns:
        The same model.

    Raises:
        TypeError: ``model`` is no model of a toolbox.

    Examples:
        The first image has the prediction that it has alone:

        >>> import torch
        >>> from mmpretrain.structures import DataSample
        >>> from cpvt_backbones.analysis.complexity import build_model
        >>> from cpvt_backbones.engine import predict_by_size
        >>> from cpvt_backbones.inference import read_config
        >>> from cpvt_backbones.weights import find_shipped
        >>> shipped = find_shipped('cpvt_tiny_gap-imagenette')
        >>> model = build_model(read_config(shipped.config_file))
        >>> model = predict_by_size(model)
        >>> batch = torch.rand(2, 3, 56, 64)
        >>> one, other = (
        ...     DataSample(metainfo=dict(img_shape=size))
        ...     for size in [(40, 64), (56, 33)]  # before padding
        ... )
        >>> with torch.no_grad():
        ...     padded, _ = model.predict(batch, [one, other])
        ...     (alone,) = model.predict(batch[:1, :, :40], [one.clone()])
        >>> torch.allclose(padded.pred_score, alone.pred_score, atol=1e-6)
        True
    """
    inner = unwrap(model)
    if not isinstance(inner, BaseModel) or not hasattr(inner, 'predict'):
        raise InputTypeError(
            f'model must be an mm model with predict(), got {type(inner).__name__}'
        )
    if not isinstance(inner, PredictBySize):
        inner.__class__ = _by_size(inner.__class__)
    return model


@HOOKS.register_module()
class PredictBySizeHook(Hook):
    """Validates and tests without padding: predictions do not depend on the other images of a
    batch.

    Before a validation or a test, it calls :func:`predict_by_size` on the model. It works with the
    detectors, segmentors and classifiers of the toolboxes, and with any backbone.

    Examples:
        ```python
        # a list replaces that of _base_: _base_.custom_hooks + [...] adds
        custom_hooks = [dict(type='PredictBySizeHook')]
        ```
    """

    def before_val(self, runner: Runner) -> None:
        """Change the model."""
        predict_by_size(runner.model)

    before_test = before_val

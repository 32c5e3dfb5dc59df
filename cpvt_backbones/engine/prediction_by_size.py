"""Predictions that do not depend on the other images of a batch, with any detector, segmentor or
classifier.

A toolbox pads the images of a batch to one size. With ``valid_sizes`` a backbone ignores the
padding, but neck and heads still convolve, resize and normalise over it. Here a validation or test
step splits the batch before anything is padded: images of one size go together. A data preprocessor
with :class:`~cpvt_backbones.engine.ValidSizes` does it by itself. The recipes, which keep the
toolboxes' own, have ``default_hooks = dict(by_size=dict(type='PredictBySizeHook'))``.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import nn

from cpvt_backbones.checkpoints import unwrap
from cpvt_backbones.errors import InputTypeError
from cpvt_backbones.layers import group_by_shape


class PredictBySize:
    """Mixin of an mm model: validation and test steps split the batch by image size."""

    def val_step(self, data: Any) -> Any:
        """Predict as the model does, with the images of one size at a time.

        Args:
            data: A batch of the dataloader. It is split if its ``inputs`` are a list of images
                (C, H, W); all other values then have an entry for each image.

        Returns:
            The predictions, in the order of the batch.
        """
        return _by_size(super().val_step, data)  # type: ignore[misc]

    def test_step(self, data: Any) -> Any:
        """As :meth:`val_step`."""
        return _by_size(super().test_step, data)  # type: ignore[misc]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the toolbox's class, since the class of this object has no name to import."""
        return _new, type(self).__bases__[1:], vars(self)


def _by_size(step: Callable[[Any], Any], data: Any) -> Any:
    images = data.get('inputs') if isinstance(data, dict) else None
    if not isinstance(images, list | tuple):
        return step(data)
    groups = group_by_shape(image.shape for image in images)
    if len(groups) == 1:
        return step(data)
    results: list[Any] = [None] * len(images)
    for group in groups:
        part = {
            key: None if values is None else [values[index] for index in group]
            for key, values in data.items()
        }
        for index, result in zip(group, step(part), strict=True):
            results[index] = result
    return results


@cache
def _class_of(cls: type) -> type:
    return type(
        cls.__name__, (PredictBySize, cls), {'__doc__': cls.__doc__, '__module__': cls.__module__}
    )


def _new(cls: type) -> Any:
    return object.__new__(_class_of(cls))


def predict_by_size(model: nn.Module) -> nn.Module:
    """Let the validation and test steps of a built model split batches by image size, in place.

    A toolbox pads the images of a batch to one size. Here ``model.val_step`` and
    ``model.test_step`` take the images of one size at a time, before they are padded. A prediction
    is then the one that the image has alone. Training does not change, nor does a batch of one
    size.

    Args:
        model: Detector, segmentor or classifier of a toolbox, alone or in a wrapper of mmengine
            (distributed training, test-time augmentation). The wrappers of FSDP and DeepSpeed do
            not call these steps: with them, test one image at a time.

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
        >>> images = [torch.rand(3, 40, 64), torch.rand(3, 56, 33)]
        >>> samples = [DataSample(), DataSample()]
        >>> batch = dict(inputs=images, data_samples=samples)
        >>> one = dict(inputs=images[:1], data_samples=samples[:1])
        >>> with torch.no_grad():
        ...     first, _ = model.test_step(batch)
        ...     first = first.pred_score
        ...     (alone,) = model.test_step(one)
        >>> torch.equal(first, alone.pred_score)
        True
    """
    inner = unwrap(model)
    if not isinstance(inner, BaseModel):
        raise InputTypeError(f'model must be an mm model, got {type(inner).__name__}')
    if not isinstance(inner, PredictBySize):
        inner.__class__ = _class_of(inner.__class__)
    return model


@HOOKS.register_module()
class PredictBySizeHook(Hook):
    """Validates and tests without padding to other images: predictions do not depend on the batch.

    Before a validation or a test, it calls :func:`predict_by_size` on the model. It works with the
    detectors, segmentors and classifiers of the toolboxes, with any backbone and data preprocessor.
    A model with a ``ValidSizes...`` data preprocessor does not need it.

    Examples:
        ```python
        # beside the default hooks of _base_, which a dict does not replace
        default_hooks = dict(by_size=dict(type='PredictBySizeHook'))
        ```
    """

    def before_val(self, runner: Runner) -> None:
        """Change the model."""
        predict_by_size(runner.model)

    before_test = before_val

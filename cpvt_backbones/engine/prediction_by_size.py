"""Predictions of any detector, segmentor or classifier that do not depend on other images.

Toolboxes pad the images of a batch to one size. A backbone can ignore the padding, but neck and
heads still convolve, resize and normalise over it. So the loops of this module split a batch before
padding. Only images of the same size share a forward call in validation and test.

:class:`ResumableRunner` uses these loops. With mmengine's own runner, a config names them:
``val_cfg = dict(type='ValLoopBySize')`` and ``test_cfg = dict(type='TestLoopBySize')``.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from mmengine.model import BaseModel
from mmengine.registry import LOOPS
from mmengine.runner import TestLoop, ValLoop
from mmengine.runner.amp import autocast
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from cpvt_backbones.layers import group_by_shape


def predict_by_size(step: Callable[[Any], Any], data: Any) -> Any:
    """Predict the images of one size at a time.

    Each image then gets the same prediction as alone.

    Args:
        step: ``model.val_step`` or ``model.test_step`` of a detector, segmentor or classifier, or
            of a model for test-time augmentation.
        data: A batch of the data loader. It is split if its ``inputs`` are a list of images
            (C, H, W) of several sizes. All other values must then have one entry per image. For
            test-time augmentation, each value has one list per augmentation.

    Returns:
        The predictions, in the order of the batch.

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
        >>> images = [torch.rand(3, 40, 64), torch.rand(3, 56, 33)]
        >>> samples = [DataSample(), DataSample()]
        >>> batch = dict(inputs=images, data_samples=samples)
        >>> one = dict(inputs=images[:1], data_samples=samples[:1])
        >>> with torch.no_grad():
        ...     first, _ = predict_by_size(model.test_step, batch)
        ...     first = first.pred_score
        ...     (alone,) = model.test_step(one)
        >>> torch.equal(first, alone.pred_score)
        True
    """
    groups = _groups(data)
    if len(groups) < 2:
        return step(data)
    results: list[Any] = [None] * sum(map(len, groups))
    for group in groups:
        part = {key: _take(values, group) for key, values in data.items()}
        for index, result in zip(group, step(part), strict=True):
            results[index] = result
    return results


def _groups(data: Any) -> list[list[int]]:
    """Return the indices of the images of each size; empty if the batch cannot be split."""
    images = data.get('inputs') if isinstance(data, dict) else None
    if not isinstance(images, list | tuple) or not images:
        return []
    if isinstance(images[0], list | tuple):  # test-time augmentation
        views = zip(*images, strict=True)  # of each image
        return group_by_shape(tuple(view.shape for view in one) for one in views)
    return group_by_shape(image.shape for image in images)


def _take(values: Sequence[Any] | None, group: Sequence[int]) -> Any:
    if values is None:
        return None
    if values and isinstance(values[0], list | tuple):
        return [[view[index] for index in group] for view in values]
    return [values[index] for index in group]


def _is_split(model: nn.Module, data: Any) -> bool:
    """``True`` for a batch of several sizes, except with FSDP and DeepSpeed.

    Their processes must make the same number of forward calls.
    """
    return isinstance(model, BaseModel | DistributedDataParallel) and len(_groups(data)) > 1


@LOOPS.register_module()
class ValLoopBySize(ValLoop):
    """mmengine's ``ValLoop``, which predicts the images of one size at a time.

    The arguments are those of ``ValLoop``. With FSDP and DeepSpeed, batches are not split, so
    validate one image at a time.
    """

    @torch.no_grad()
    def run_iter(self, idx: int, data_batch: Any) -> None:
        """Validate on a batch."""
        runner = self.runner
        if not _is_split(runner.model, data_batch):
            super().run_iter(idx, data_batch)
            return
        runner.call_hook('before_val_iter', batch_idx=idx, data_batch=data_batch)
        with autocast(enabled=self.fp16):
            outputs = predict_by_size(runner.model.val_step, data_batch)
        self.evaluator.process(data_samples=outputs, data_batch=data_batch)
        runner.call_hook('after_val_iter', batch_idx=idx, data_batch=data_batch, outputs=outputs)


@LOOPS.register_module()
class TestLoopBySize(TestLoop):
    """mmengine's ``TestLoop``, which predicts the images of one size at a time.

    See :class:`ValLoopBySize`.
    """

    __test__ = False  # pytest collects classes by this first word

    @torch.no_grad()
    def run_iter(self, idx: int, data_batch: Any) -> None:
        """Test on a batch."""
        runner = self.runner
        if not _is_split(runner.model, data_batch):
            super().run_iter(idx, data_batch)
            return
        runner.call_hook('before_test_iter', batch_idx=idx, data_batch=data_batch)
        with autocast(enabled=self.fp16):
            outputs = predict_by_size(runner.model.test_step, data_batch)
        self.evaluator.process(data_samples=outputs, data_batch=data_batch)
        runner.call_hook('after_test_iter', batch_idx=idx, data_batch=data_batch, outputs=outputs)

"""Running a model on a batch: the only part of inference that depends on the toolbox."""

import copy
import hashlib
import io
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from importlib import import_module
from typing import Any, Protocol

import numpy as np
import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.registry import init_default_scope
from torch import Tensor

from cpvt_backbones.checkpoints import find_checkpoint, load_weights
from cpvt_backbones.toolboxes import SIZE_ARGUMENTS, config_classes, find_toolbox, step_name
from cpvt_backbones.weights import sha256_of

from .precision import choose_dtype, reduce_precision
from .sizes import GoodSizes, size_steps

TASKS = {'mmdet': 'detection', 'mmseg': 'segmentation', 'mmpretrain': 'classification'}


class Predictor(Protocol):
    """Runs batches of images of equal size, at that size.

    Attributes:
        task: ``'detection'``, ``'segmentation'`` or ``'classification'``.
        classes: Class names in order of label; ``None`` if unknown.
        palette: RGB of each class, or ``None``.
        fingerprint: Identifies the model and its weights.

    It may also have ``size_steps`` and ``sizes``, from :func:`~.sizes.size_steps` and
    :class:`~.sizes.GoodSizes`: its test scale, and where it is good.
    """

    task: str
    classes: Sequence[str] | None
    palette: Sequence[Sequence[int]] | None
    fingerprint: str

    def predict(self, images: list[np.ndarray]) -> list[dict[str, Any]]:
        """Detect or classify ``images``, (H, W, 3) uint8 BGR, all of one size.

        Returns arrays for each.

        Detection: ``boxes`` (N, 4; x1, y1, x2, y2 in px), ``scores`` (N,), ``labels`` (N,), and of
        an instance segmentor ``masks`` (N, H, W; bool). Classification: ``scores`` (classes,).
        """

    def logits(self, images: list[np.ndarray]) -> Tensor:
        """Segment: (B, C, H, W), float, on any device; ``images`` as for :meth:`predict`."""

    def to_classes(self, logits: Tensor) -> Tensor:
        """Convert a segmentor's logits (C, h, w) to classes (h, w)."""


class ToolboxPredictor:
    """A model of mmdet, mmseg or mmpretrain, built and run by the toolbox's own inferencer.

    See :class:`Inferencer`.

    ``checkpoint`` is a ``.pth`` or ``.safetensors`` file, an ``https://`` address, or the name of
    shipped weights; ``ValueError`` if it does not fit the model or has other classes than
    ``metainfo`` of the config's test set, or in another order; ``ImportError`` without the toolbox.
    ``dtype`` is the resolved one, and ``dtype_reason`` says why.
    """

    def __init__(
        self,
        *,
        cfg: Config,
        checkpoint: str | os.PathLike[str],
        device: str | None = None,
        dtype: str = 'float32',
    ) -> None:
        self.dtype, self.dtype_reason = choose_dtype(dtype, device or get_device())
        self._scope = find_toolbox(cfg).package
        file = str(find_checkpoint(checkpoint))
        self.task = TASKS[self._scope]
        self.fingerprint = _digest(cfg, file)
        cfg = copy.deepcopy(cfg)
        classes = config_classes(cfg)  # before the toolbox changes the config
        self.sizes, self.size_steps = GoodSizes.of(checkpoint), size_steps(cfg)
        _adapt_pipeline(cfg, keep=('Pad',) if self._scope == 'mmdet' else ())
        init_default_scope(
            self._scope
        )  # mmpretrain's inferencer keeps the scope of another toolbox
        with _quiet():
            self._inferencer = _build_inferencer(self._scope, cfg, file, device)
        self.model: Any = self._inferencer.model
        if self._scope == 'mmseg':
            self.model.postprocess_result = (
                _crop_logits  # the toolbox's also takes an argmax, the slowest step here
            )
        # Without these, the toolboxes use the classes of COCO or Cityscapes.
        stored = load_weights(self.model, file, classes=classes)
        meta = stored.get('dataset_meta') or cfg.test_dataloader.dataset.get('metainfo') or {}
        meta = {key.lower(): value for key, value in meta.items()}
        if self._scope == 'mmpretrain':
            meta.setdefault('classes', getattr(self._inferencer, 'classes', None))
        self.classes: Sequence[str] | None = meta.get('classes')
        if self.dtype != 'float32':
            reduce_precision(self.model, getattr(torch, self.dtype))
        no_palette = isinstance(palette := meta.get('palette'), str)  # mmdet writes 'random'
        self.palette: Sequence[Sequence[int]] | None = None if no_palette else palette

    def predict(self, images: list[np.ndarray]) -> list[dict[str, Any]]:
        """See :class:`Predictor`."""
        samples = self._run(images)
        if self.task == 'classification':
            return [dict(scores=sample.pred_score.cpu().numpy()) for sample in samples]
        names = dict(boxes='bboxes', scores='scores', labels='labels', masks='masks')
        return [
            {
                name: torch.as_tensor(getattr(found, key)).cpu().numpy()
                for name, key in names.items()
                if key in found
            }
            for found in (sample.pred_instances for sample in samples)
        ]

    def logits(self, images: list[np.ndarray]) -> Tensor:
        """See :class:`Predictor`. A model of a single channel returns its probability."""
        return self._run(images)

    def to_classes(self, logits: Tensor) -> Tensor:
        """See :class:`Predictor`."""
        return (
            first_maximum(logits)
            if len(logits) > 1
            else logits[0] > self.model.decode_head.threshold
        )

    def _run(self, images: list[np.ndarray]) -> Any:
        (batch,) = self._inferencer.preprocess(images, batch_size=len(images))
        return self._inferencer.forward(
            batch[1] if self._scope == 'mmdet' else batch
        )  # mmdet's has the images too


def _crop_logits(logits: Tensor, samples: Sequence[Any]) -> Tensor:
    """Logits (B, C, H, W) without padding, which mmseg's data preprocessors add on the right and at
    the bottom.
    """
    height, width = samples[0].ori_shape
    logits = logits[..., :height, :width].float()
    return logits if logits.shape[1] > 1 else logits.sigmoid()


def first_maximum(logits: Tensor) -> Tensor:
    """``logits.argmax(0)`` of (C, h, w), which on a CPU takes a multiple of the time."""
    if logits.device.type != 'cpu' or len(logits) > 255 or logits.dtype != torch.float32:
        return logits.argmax(0)
    channels = logits.numpy()
    best, classes = channels[0].copy(), np.zeros(channels.shape[1:], np.uint8)
    for index, channel in enumerate(channels):
        np.maximum(classes, (channel > best).view(np.uint8) * np.uint8(index), out=classes)
        np.maximum(best, channel, out=best)
    return torch.from_numpy(classes)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the toolboxes: optional packages, registries, classes (set below), keys (load_weights
    checks them).
    """
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), ExitStack() as stack:
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.WARNING)
        warnings.simplefilter('ignore')
        yield


def _digest(cfg: Config, checkpoint: str) -> str:
    # Without what does not change the model.
    settings = {
        key: value
        for key, value in cfg.to_dict().items()
        if key not in ('work_dir', 'launcher', 'filename')
    }
    weights = bytes.fromhex(sha256_of(checkpoint))
    return hashlib.sha256(repr(settings).encode() + weights).hexdigest()


def _adapt_pipeline(cfg: Config, keep: Sequence[str] = ()) -> None:
    """Drop the steps of the test pipeline that load annotations, and those but ``keep`` that set
    the size.
    """
    dataset = cfg.get('test_dataloader', {}).get('dataset', {})
    steps = [step for step in dataset.get('pipeline', ()) if step_name(step) != 'LoadAnnotations']
    names = [step_name(step) for step in steps]
    if 'LoadImageFromFile' not in names:
        raise ValueError(
            f'cfg.test_dataloader.dataset.pipeline must have a LoadImageFromFile, got {names}'
        )
    first = names.index('LoadImageFromFile')
    steps[first]['type'] = 'LoadImageFromFile'  # mmseg's inferencer compares this text
    steps = [
        step for step in steps if step_name(step) not in SIZE_ARGUMENTS or step_name(step) in keep
    ]
    # Detectors need the scale factor that Resize records.
    steps.insert(first + 1, dict(type='mmcv.Resize', scale_factor=1.0))
    dataset.pipeline = steps


def _build_inferencer(scope: str, cfg: Config, checkpoint: str, device: str | None) -> Any:
    apis = import_module(f'{scope}.apis')
    if scope == 'mmpretrain':  # whose inferencer chooses no GPU itself
        return apis.ImageClassificationInferencer(
            model=cfg, pretrained=checkpoint, device=device or get_device()
        )
    kind = apis.MMSegInferencer if scope == 'mmseg' else apis.DetInferencer
    return kind(model=cfg, weights=checkpoint, device=device, show_progress=False)

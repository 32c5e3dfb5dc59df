"""What runs a batch: the one part of inference that knows what a model is made of."""

import copy
import hashlib
import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.registry import init_default_scope
from torch import Tensor

from cpvt_backbones.checkpoints import load_weights
from cpvt_backbones.engine.launch import find_toolbox
from cpvt_backbones.weights import shipped_file

# What forces an image to a size or cuts it, in the test pipelines of the three toolboxes.
_GEOMETRY = (
    'Resize',
    'FixScaleResize',
    'FixShapeResize',
    'ResizeEdge',
    'ResizeShortestEdge',
    'ResizeToMultiple',
    'CenterCrop',
    'EfficientNetCenterCrop',
    'Pad',
)
TASKS = {'mmdet': 'detection', 'mmseg': 'segmentation', 'mmpretrain': 'classification'}


class Predictor(Protocol):
    """Runs batches of images of equal size, at that size.

    Attributes:
        task: ``'detection'``, ``'segmentation'`` or ``'classification'``.
        classes: Names of the classes, in order of label; ``None`` if they are unknown.
        palette: RGB of each class, or ``None``.
        fingerprint: Text that changes when the model or its weights do.
    """

    task: str
    classes: Sequence[str] | None
    palette: Sequence[Sequence[int]] | None
    fingerprint: str

    def predict(self, images: list[np.ndarray]) -> list[dict[str, Any]]:
        """Detection and classification: one prediction for each image.

        Args:
            images: (H, W, 3) uint8 BGR, all of one size.

        Returns:
            list[dict]: Of a detector ``boxes`` (N, 4; x1, y1, x2, y2 in px), ``scores`` (N,), ``labels`` (N,), and
            ``masks`` (N, H, W; bool) if it has them, arrays all. Of a classifier ``scores`` (classes,).
        """
        ...

    def logits(self, images: list[np.ndarray]) -> Tensor:
        """Segmentation: (B, C, H, W), float, on any device; ``images`` as above."""
        ...

    def to_classes(self, logits: Tensor) -> Tensor:
        """Segmentation: logits (C, h, w) to classes (h, w)."""
        ...


class ToolboxPredictor:
    """A model of mmdet, mmseg or mmpretrain, built and run by the toolbox's own inferencer.

    Args:
        cfg: Config of a detector, segmentor or classifier; it is not changed.
        checkpoint: The weights: ``.pth``, ``.safetensors``, or the name of weights that come with the package.
        device: ``'cpu'``, ``'cuda:1'``; ``None`` for a GPU if there is one.
        keep_geometry: Keep what the config's test pipeline does to the size.

    Raises:
        FileNotFoundError: No such checkpoint.
        ValueError: The config's ``default_scope`` names no toolbox; the checkpoint does not fit the model.
        ImportError: The toolbox is not installed.
    """

    def __init__(
        self,
        *,
        cfg: Config,
        checkpoint: str | os.PathLike[str],
        device: str | None = None,
        keep_geometry: bool = False,
    ) -> None:
        self._scope = find_toolbox(cfg).package
        file = shipped_file(checkpoint)
        if not file.is_file():
            raise FileNotFoundError(f'checkpoint: there is no file {str(checkpoint)!r}')
        self.task = TASKS[self._scope]
        self.fingerprint = _digest(cfg, file)
        cfg = copy.deepcopy(cfg)
        for step in cfg.get('test_dataloader', {}).get('dataset', {}).get('pipeline', ()):
            if _name(step) == 'LoadImageFromFile':  # mmseg's inferencer looks for it by name
                step['type'] = 'LoadImageFromFile'
        if not keep_geometry:
            _drop_geometry(cfg)
        init_default_scope(self._scope)  # mmpretrain's own leaves that of whichever toolbox came before
        with warnings.catch_warnings():  # that it takes COCO's or Cityscapes' classes, which is mended below
            warnings.filterwarnings('ignore', message='dataset_meta or class names are not saved')
            self._inferencer = _BUILDERS[self._scope](cfg, str(file), device)
        self.model: Any = self._inferencer.model
        meta = _dataset_meta(load_weights(self.model, file), cfg)
        if self._scope == 'mmpretrain':
            meta.setdefault('classes', getattr(self._inferencer, 'classes', None))
        self.classes: Sequence[str] | None = meta.get('classes')
        palette = meta.get('palette')
        # mmdet's word for no palette is 'random'.
        self.palette: Sequence[Sequence[int]] | None = None if isinstance(palette, str) else palette

    def predict(self, images: list[np.ndarray]) -> list[dict[str, Any]]:
        """See :class:`Predictor`."""
        samples = self._run(images)
        if self.task == 'classification':
            return [dict(scores=sample.pred_score.cpu().numpy()) for sample in samples]
        predictions = []
        for sample in samples:
            found = sample.pred_instances
            prediction = dict(boxes=found.bboxes, scores=found.scores, labels=found.labels)
            if 'masks' in found:
                prediction['masks'] = found.masks
            predictions.append({key: torch.as_tensor(value).cpu().numpy() for key, value in prediction.items()})
        return predictions

    def logits(self, images: list[np.ndarray]) -> Tensor:
        """See :class:`Predictor`. A model with a single channel gives its probability instead of a logit."""
        return torch.stack([sample.seg_logits.data for sample in self._run(images)])

    def to_classes(self, logits: Tensor) -> Tensor:
        """See :class:`Predictor`."""
        return logits.argmax(0) if len(logits) > 1 else logits[0] > self.model.decode_head.threshold

    def _run(self, images: list[np.ndarray]) -> list[Any]:
        (batch,) = self._inferencer.preprocess(images, batch_size=len(images))
        # mmdet's comes with the images themselves.
        return self._inferencer.forward(batch[1] if self._scope == 'mmdet' else batch)


def _digest(cfg: Config, checkpoint: str | os.PathLike[str]) -> str:
    # Where a run is kept says nothing about the model.
    words = {key: value for key, value in cfg.to_dict().items() if key not in ('work_dir', 'launcher', 'filename')}
    weights = hashlib.sha256(Path(checkpoint).read_bytes()).digest()
    return hashlib.sha256(repr(words).encode() + weights).hexdigest()


def _dataset_meta(stored: dict[str, Any], cfg: Config) -> dict[str, Any]:
    """Classes and palette that a checkpoint was trained with, or that the config's test set names.

    The toolboxes would otherwise take COCO's or Cityscapes'.
    """
    meta = stored.get('dataset_meta') or cfg.test_dataloader.dataset.get('metainfo') or {}
    return {key.lower(): value for key, value in meta.items()}


def _name(step: dict[str, Any]) -> str:
    # 'Resize', 'mmcv.Resize', 'torchvision/Resize', or in a config in Python's own style the class
    kind = step['type']
    return kind.__name__ if isinstance(kind, type) else re.split(r'[./]', str(kind))[-1]


def _drop_geometry(cfg: Config) -> None:
    dataset = cfg.get('test_dataloader', {}).get('dataset', {})
    pipeline = [step for step in dataset.get('pipeline', ()) if _name(step) not in _GEOMETRY]
    load = next((i for i, step in enumerate(pipeline) if _name(step) == 'LoadImageFromFile'), None)
    if load is None:
        names = [_name(step) for step in dataset.get('pipeline', ())]
        raise ValueError(f'cfg.test_dataloader.dataset.pipeline must have a LoadImageFromFile, got {names}')
    # Not simply nothing: detectors ask for the scale factor that Resize notes down.
    resize = dict(type='mmcv.Resize', scale_factor=1.0)
    dataset.pipeline = [*pipeline[: load + 1], resize, *pipeline[load + 1 :]]


def _build_detector(cfg: Config, checkpoint: str, device: str | None) -> Any:
    from mmdet.apis import DetInferencer

    # Only its images are new; the annotations of the config's test set have no part in this.
    pipeline = cfg.test_dataloader.dataset.pipeline
    cfg.test_dataloader.dataset.pipeline = [step for step in pipeline if _name(step) != 'LoadAnnotations']
    return DetInferencer(model=cfg, weights=checkpoint, device=device, show_progress=False)


def _build_segmentor(cfg: Config, checkpoint: str, device: str | None) -> Any:
    from mmseg.apis import MMSegInferencer

    return MMSegInferencer(model=cfg, weights=checkpoint, device=device, show_progress=False)


def _build_classifier(cfg: Config, checkpoint: str, device: str | None) -> Any:
    from mmpretrain import ImageClassificationInferencer

    # The others' choose a GPU by themselves.
    return ImageClassificationInferencer(model=cfg, pretrained=checkpoint, device=device or get_device())


_BUILDERS = {'mmdet': _build_detector, 'mmseg': _build_segmentor, 'mmpretrain': _build_classifier}

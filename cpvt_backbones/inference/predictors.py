"""Running a model on a batch: the only part of inference that depends on the toolbox."""

import copy
import hashlib
import os
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
from cpvt_backbones.engine.pipelines import SIZE_ARGUMENTS, step_name
from cpvt_backbones.weights import shipped_file

TASKS = {'mmdet': 'detection', 'mmseg': 'segmentation', 'mmpretrain': 'classification'}


class Predictor(Protocol):
    """Runs batches of images of equal size, at that size.

    Attributes:
        task: ``'detection'``, ``'segmentation'`` or ``'classification'``.
        classes: Class names in order of label; ``None`` if unknown.
        palette: RGB of each class, or ``None``.
        fingerprint: Identifies the model and its weights.
    """

    task: str
    classes: Sequence[str] | None
    palette: Sequence[Sequence[int]] | None
    fingerprint: str

    def predict(self, images: list[np.ndarray]) -> list[dict[str, Any]]:
        """Detect or classify.

        Args:
            images: (H, W, 3) uint8 BGR, all of one size.

        Returns:
            list[dict]: Arrays for each image. Detection: ``boxes`` (N, 4; x1, y1, x2, y2 in px), ``scores`` (N,),
            ``labels`` (N,), and of an instance segmentor ``masks`` (N, H, W; bool). Classification: ``scores``
            (classes,).
        """
        ...

    def logits(self, images: list[np.ndarray]) -> Tensor:
        """Segment: (B, C, H, W), float, on any device; ``images`` as for :meth:`predict`."""
        ...

    def to_classes(self, logits: Tensor) -> Tensor:
        """Convert a segmentor's logits (C, h, w) to classes (h, w)."""
        ...


class ToolboxPredictor:
    """A model of mmdet, mmseg or mmpretrain, built and run by the toolbox's own inferencer.

    Args:
        cfg: Config of a detector, segmentor or classifier; not modified.
        checkpoint: ``.pth``, ``.safetensors``, or the name of shipped weights.
        device: ``'cpu'``, ``'cuda:1'``; ``None`` for a GPU if available.
        keep_geometry: Keep the steps of the config's test pipeline that set the size.

    Raises:
        FileNotFoundError: The checkpoint does not exist.
        ValueError: The config's ``default_scope`` is no toolbox, or the checkpoint does not fit the model.
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
            if step_name(step) == 'LoadImageFromFile':  # mmseg's inferencer looks for exactly this
                step['type'] = 'LoadImageFromFile'
        if not keep_geometry:
            _drop_geometry(cfg)
        init_default_scope(self._scope)  # mmpretrain's inferencer keeps the scope of another toolbox
        with warnings.catch_warnings():  # that the classes of COCO or Cityscapes are used; corrected below
            warnings.filterwarnings('ignore', message='dataset_meta or class names are not saved')
            self._inferencer = _build_inferencer(self._scope, cfg, str(file), device)
        self.model: Any = self._inferencer.model
        meta = _dataset_meta(load_weights(self.model, file), cfg)
        if self._scope == 'mmpretrain':
            meta.setdefault('classes', getattr(self._inferencer, 'classes', None))
        self.classes: Sequence[str] | None = meta.get('classes')
        palette = meta.get('palette')
        # mmdet writes 'random' for no palette.
        self.palette: Sequence[Sequence[int]] | None = None if isinstance(palette, str) else palette

    def predict(self, images: list[np.ndarray]) -> list[dict[str, Any]]:
        """See :class:`Predictor`."""
        samples = self._run(images)
        if self.task == 'classification':
            return [dict(scores=sample.pred_score.cpu().numpy()) for sample in samples]
        predictions = []
        for sample in samples:
            instances = sample.pred_instances
            prediction = dict(boxes=instances.bboxes, scores=instances.scores, labels=instances.labels)
            if 'masks' in instances:
                prediction['masks'] = instances.masks
            predictions.append({key: torch.as_tensor(value).cpu().numpy() for key, value in prediction.items()})
        return predictions

    def logits(self, images: list[np.ndarray]) -> Tensor:
        """See :class:`Predictor`. A model of a single channel returns its probability."""
        return torch.stack([sample.seg_logits.data for sample in self._run(images)])

    def to_classes(self, logits: Tensor) -> Tensor:
        """See :class:`Predictor`."""
        return logits.argmax(0) if len(logits) > 1 else logits[0] > self.model.decode_head.threshold

    def _run(self, images: list[np.ndarray]) -> list[Any]:
        (batch,) = self._inferencer.preprocess(images, batch_size=len(images))
        # mmdet's preprocess returns the original images as well.
        return self._inferencer.forward(batch[1] if self._scope == 'mmdet' else batch)


def _digest(cfg: Config, checkpoint: Path) -> str:
    # Without what does not change the model.
    settings = {key: value for key, value in cfg.to_dict().items() if key not in ('work_dir', 'launcher', 'filename')}
    weights = hashlib.sha256(checkpoint.read_bytes()).digest()
    return hashlib.sha256(repr(settings).encode() + weights).hexdigest()


def _dataset_meta(stored: dict[str, Any], cfg: Config) -> dict[str, Any]:
    """Classes and palette from a checkpoint's ``meta``, else from the config's test set.

    The toolboxes fall back to those of COCO or Cityscapes.
    """
    meta = stored.get('dataset_meta') or cfg.test_dataloader.dataset.get('metainfo') or {}
    return {key.lower(): value for key, value in meta.items()}


def _drop_geometry(cfg: Config) -> None:
    dataset = cfg.get('test_dataloader', {}).get('dataset', {})
    names = [step_name(step) for step in dataset.get('pipeline', ())]
    if 'LoadImageFromFile' not in names:
        raise ValueError(f'cfg.test_dataloader.dataset.pipeline must have a LoadImageFromFile, got {names}')
    pipeline = [step for step, name in zip(dataset.pipeline, names, strict=True) if name not in SIZE_ARGUMENTS]
    position = [step_name(step) for step in pipeline].index('LoadImageFromFile') + 1
    # Detectors need the scale factor that Resize records.
    pipeline.insert(position, dict(type='mmcv.Resize', scale_factor=1.0))
    dataset.pipeline = pipeline


def _build_inferencer(scope: str, cfg: Config, checkpoint: str, device: str | None) -> Any:
    if scope == 'mmpretrain':
        from mmpretrain import ImageClassificationInferencer

        # The other inferencers choose a GPU themselves.
        return ImageClassificationInferencer(model=cfg, pretrained=checkpoint, device=device or get_device())
    if scope == 'mmseg':
        from mmseg.apis import MMSegInferencer

        return MMSegInferencer(model=cfg, weights=checkpoint, device=device, show_progress=False)
    from mmdet.apis import DetInferencer

    # There are no annotations to load for new images.
    pipeline = cfg.test_dataloader.dataset.pipeline
    cfg.test_dataloader.dataset.pipeline = [step for step in pipeline if step_name(step) != 'LoadAnnotations']
    return DetInferencer(model=cfg, weights=checkpoint, device=device, show_progress=False)

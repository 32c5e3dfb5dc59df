"""One inferencer for detectors, segmentors and classifiers, at the size an image has."""

import copy
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config

from cpvt_backbones.engine.launch import find_toolbox

IMAGE_SUFFIXES = ('.bmp', '.jpeg', '.jpg', '.png', '.ppm', '.tif', '.tiff', '.webp')
# What forces an image to a size or cuts it, in the test pipelines of the three toolboxes.
_GEOMETRY = ('Resize', 'ResizeEdge', 'CenterCrop', 'EfficientNetCenterCrop', 'Pad')


class Inferencer:
    """A trained model that takes images of any size.

    Whatever the config's test pipeline does to the size is left out, unless ``scale`` says otherwise: the image
    goes in as it is.

    Args:
        cfg: Config of a detector, segmentor or classifier; it is not changed.
        checkpoint: The weights.
        device: ``'cpu'``, ``'cuda:1'``; ``None`` for a GPU if there is one.
        scale: ``None``: the image's own size. ``'config'``: as the config's test pipeline has it. (width, height) in
            px: as large as fits in there, its shape kept.

    Raises:
        FileNotFoundError: No such checkpoint.
        ValueError: ``scale`` is something else, or the config's ``default_scope`` names no toolbox.
    """

    def __init__(
        self,
        *,
        cfg: Config,
        checkpoint: str | os.PathLike[str],
        device: str | None = None,
        scale: tuple[int, int] | str | None = None,
    ) -> None:
        self.scope = find_toolbox(cfg).package
        if not Path(checkpoint).is_file():
            raise FileNotFoundError(f'checkpoint: there is no file {str(checkpoint)!r}')
        cfg = copy.deepcopy(cfg)
        if scale != 'config':
            _set_scale(cfg, scale)
        self._inferencer = _BUILDERS[self.scope](cfg, str(checkpoint), device)

    def __call__(
        self, image: str | os.PathLike[str], *, score_threshold: float = 0.3, draw: bool = False
    ) -> tuple[dict[str, Any], np.ndarray | None]:
        """Predict on one image.

        Args:
            image: Image file.
            score_threshold: Boxes that score less are left out.
            draw: Draw the prediction on the image.

        Returns:
            tuple: The prediction as plain data, and the drawing (RGB, uint8, the image's size) or ``None``. The
            prediction of a detector: ``boxes`` ([[x1, y1, x2, y2]] in px), ``scores``, ``labels``, ``classes``. Of a
            segmentor: ``index_map``, an uint8 array (H, W). Of a classifier: ``label``, ``class``, ``score``.
        """
        predict = {'mmdet': self._detect, 'mmseg': self._segment, 'mmpretrain': self._classify}[self.scope]
        return predict(str(image), score_threshold, draw)

    def _detect(self, image: str, score_threshold: float, draw: bool) -> tuple[dict[str, Any], np.ndarray | None]:
        result = self._inferencer(
            image, return_datasamples=True, return_vis=draw, pred_score_thr=score_threshold, no_save_pred=True
        )
        found = result['predictions'][0].pred_instances
        found = found[found.scores >= score_threshold]
        names = self._inferencer.model.dataset_meta['classes']
        labels = found.labels.tolist()
        prediction = dict(
            boxes=found.bboxes.tolist(),
            scores=found.scores.tolist(),
            labels=labels,
            classes=[names[label] for label in labels],
        )
        return prediction, result['visualization'][0] if draw else None

    def _segment(self, image: str, _: float, draw: bool) -> tuple[dict[str, Any], np.ndarray | None]:
        # Labels written into the picture hide small regions; the legend is the palette.
        result = self._inferencer(image, return_vis=draw, opacity=0.6, with_labels=False)
        return dict(index_map=result['predictions'].astype(np.uint8)), result['visualization'] if draw else None

    def _classify(self, image: str, _: float, draw: bool) -> tuple[dict[str, Any], np.ndarray | None]:
        # Not through its __call__, which shows a progress bar for every call.
        (batch,) = self._inferencer.preprocess([image])
        (sample,) = self._inferencer.forward(batch)
        label = int(sample.pred_score.argmax())
        names = self._inferencer.classes
        prediction = {
            'label': label,
            'class': names[label] if names else None,
            'score': float(sample.pred_score[label]),
        }
        return prediction, self._draw_class(image, sample) if draw else None

    def _draw_class(self, image: str, sample: Any) -> np.ndarray:
        from mmcv.image import imread
        from mmpretrain.visualization import UniversalVisualizer

        if self._inferencer.visualizer is None:
            self._inferencer.visualizer = UniversalVisualizer()
        visualizer = self._inferencer.visualizer
        visualizer.visualize_cls(
            imread(image, channel_order='rgb'), sample, classes=self._inferencer.classes, draw_gt=False
        )
        return visualizer.get_image()


def find_images(inputs: Sequence[str | os.PathLike[str]]) -> Iterator[Path]:
    """The image files that ``inputs`` name.

    Args:
        inputs: Image files, and folders whose images are taken in order of name.

    Yields:
        pathlib.Path: Each image file.

    Raises:
        FileNotFoundError: An input does not exist, or is a folder without images.
    """
    for path in map(Path, inputs):
        if path.is_dir():
            images = sorted(file for file in path.iterdir() if file.suffix.lower() in IMAGE_SUFFIXES)
            if not images:
                raise FileNotFoundError(f'inputs: no image ({", ".join(IMAGE_SUFFIXES)}) in folder {str(path)!r}')
            yield from images
        elif path.is_file():
            yield path
        else:
            raise FileNotFoundError(f'inputs: there is no file or folder {str(path)!r}')


def _set_scale(cfg: Config, scale: tuple[int, int] | str | None) -> None:
    resize: dict[str, Any]
    if scale is None:
        # Not simply nothing: detectors ask for the scale factor that Resize notes down.
        resize = dict(type='mmcv.Resize', scale_factor=1.0)
    elif not isinstance(scale, str) and len(scale) == 2 and min(scale) >= 1:
        resize = dict(type='mmcv.Resize', scale=tuple(scale), keep_ratio=True)
    else:
        raise ValueError(f"scale must be None (the image's own), 'config' or (width, height), got {scale!r}")
    dataset = cfg.test_dataloader.dataset
    pipeline = [step for step in dataset.pipeline if step['type'].split('.')[-1] not in _GEOMETRY]
    load = next(i for i, step in enumerate(pipeline) if step['type'].split('.')[-1] == 'LoadImageFromFile')
    dataset.pipeline = [*pipeline[: load + 1], resize, *pipeline[load + 1 :]]


def _build_detector(cfg: Config, checkpoint: str, device: str | None) -> Any:
    from mmdet.apis import DetInferencer

    # Only its images are new; the annotations of the config's test set have no part in this.
    pipeline = cfg.test_dataloader.dataset.pipeline
    cfg.test_dataloader.dataset.pipeline = [s for s in pipeline if s['type'].split('.')[-1] != 'LoadAnnotations']
    return DetInferencer(model=cfg, weights=checkpoint, device=device, show_progress=False)


def _build_segmentor(cfg: Config, checkpoint: str, device: str | None) -> Any:
    from mmseg.apis import MMSegInferencer

    return MMSegInferencer(model=cfg, weights=checkpoint, device=device, show_progress=False)


def _build_classifier(cfg: Config, checkpoint: str, device: str | None) -> Any:
    from mmpretrain import ImageClassificationInferencer

    return ImageClassificationInferencer(model=cfg, pretrained=checkpoint, device=device)


_BUILDERS = {'mmdet': _build_detector, 'mmseg': _build_segmentor, 'mmpretrain': _build_classifier}

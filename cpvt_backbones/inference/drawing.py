"""Drawing of predictions on their images."""

from importlib import import_module
from typing import Any

import numpy as np
import torch

from .images import fit
from .predictors import Predictor
from .tasks import decode_mask, resize_classes

MAX_SIDE = 2048
"""Larger images are drawn at this size: drawing costs far more a pixel than reading."""
OPACITY = 0.6
"""Of a class's colour over the image, for segmentation."""


def require_drawing(task: str) -> None:
    """Raise ``ImportError`` unless the toolbox that draws this task is installed."""
    module = dict(detection='mmdet.visualization', classification='mmpretrain.visualization').get(task)
    try:
        if module:
            import_module(module)
    except ImportError as error:
        raise ImportError(
            f'drawing a {task} needs {module}, which does not import ({error}); do without: vis=False or --no-vis'
        ) from error


def make_preview(image: np.ndarray) -> np.ndarray:
    """Copy an image to draw on, BGR to RGB, reduced to sides of at most ``MAX_SIDE``."""
    return fit(image, (MAX_SIDE, MAX_SIDE) if max(image.shape) > MAX_SIDE else None)[..., ::-1].copy()


def draw_prediction(
    preview: np.ndarray, prediction: dict[str, Any], predictor: Predictor, *, size: tuple[int, int]
) -> np.ndarray:
    """Draw boxes and classes as the toolboxes do, and a map of classes in their colours.

    Args:
        preview: (h, w, 3), uint8, RGB, from :func:`make_preview`; so is the result.
        prediction: Of :class:`Inferencer`, in px of an image of ``size`` (width, height).
        predictor: Has the classes and colours.
    """
    if predictor.task == 'detection':
        return _draw_boxes(preview, prediction, predictor, np.array(preview.shape[1::-1]) / size)
    if predictor.task == 'segmentation':
        return _draw_seg_map(preview, prediction['seg_map'], predictor)
    return _draw_class(preview, prediction, predictor)


def _draw_boxes(rgb: np.ndarray, prediction: dict[str, Any], predictor: Predictor, factors: np.ndarray) -> np.ndarray:
    from mmdet.structures import DetDataSample
    from mmdet.visualization import DetLocalVisualizer
    from mmengine.structures import InstanceData

    boxes = np.array(prediction['boxes'], np.float32).reshape(-1, 4) * np.tile(factors, 2).astype(np.float32)
    instances = InstanceData(
        bboxes=torch.from_numpy(boxes),
        scores=torch.tensor(prediction['scores']),
        labels=torch.tensor(prediction['labels'], dtype=torch.long),
    )
    if prediction.get('masks'):
        height, width = rgb.shape[:2]
        instances.masks = np.stack([decode_mask(mask, height=height, width=width) for mask in prediction['masks']])
    visualizer = DetLocalVisualizer()
    visualizer.dataset_meta = dict(classes=predictor.classes, palette=predictor.palette)
    # Scores equal to the visualizer's threshold are not drawn.
    visualizer.add_datasample('', rgb, DetDataSample(pred_instances=instances), draw_gt=False, pred_score_thr=-1.0)
    return visualizer.get_image()


def _draw_seg_map(rgb: np.ndarray, seg_map: np.ndarray, predictor: Predictor) -> np.ndarray:
    seg_map = resize_classes(seg_map, height=rgb.shape[0], width=rgb.shape[1])
    if predictor.palette is None:
        palette = np.random.default_rng(0).integers(0, 256, (int(seg_map.max()) + 1, 3))
    else:
        palette = np.array(predictor.palette)
    return np.round((1 - OPACITY) * rgb + OPACITY * palette[seg_map]).astype(np.uint8)


def _draw_class(rgb: np.ndarray, prediction: dict[str, Any], predictor: Predictor) -> np.ndarray:
    from mmpretrain.structures import DataSample
    from mmpretrain.visualization import UniversalVisualizer

    scores = torch.zeros(prediction['label'] + 1)
    scores[prediction['label']] = prediction['score']
    sample = DataSample().set_pred_score(scores).set_pred_label(prediction['label'])
    visualizer = UniversalVisualizer()
    visualizer.visualize_cls(rgb, sample, classes=predictor.classes, draw_gt=False)
    return visualizer.get_image()

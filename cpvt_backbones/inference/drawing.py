"""Pictures of predictions."""

from importlib import import_module
from typing import Any

import numpy as np
import torch

from .predictors import Predictor
from .rle import decode_mask
from .sizing import fit, resize_classes

# Larger images are drawn smaller: the pixels of a picture cost many times what those of the image do.
PICTURE_SIDE = 2048
# Share of a class's colour in a segmentation's picture; the rest is the image.
OPACITY = 0.6


def require_drawing(task: str) -> None:
    """Raise ``ImportError`` if what draws this task's pictures is not installed."""
    drawn_by = dict(detection='mmdet.visualization', classification='mmpretrain.visualization').get(task)
    try:
        if drawn_by:
            import_module(drawn_by)
    except ImportError as error:
        raise ImportError(
            f'pictures of a {task} are drawn by {drawn_by}, which does not import ({error}); '
            'leave them out: draw=False, pictures=False, --no-pictures'
        ) from error


def make_preview(image: np.ndarray) -> np.ndarray:
    """A copy of an image to draw on, RGB for BGR, with no side above ``PICTURE_SIDE``."""
    return fit(image, (PICTURE_SIDE, PICTURE_SIDE) if max(image.shape) > PICTURE_SIDE else None)[..., ::-1].copy()


def draw_prediction(
    preview: np.ndarray, prediction: dict[str, Any], predictor: Predictor, *, size: tuple[int, int]
) -> np.ndarray:
    """Draw a prediction: boxes and classes as the toolboxes do, a class map in its colours.

    Args:
        preview: (h, w, 3), uint8, RGB, from :func:`make_preview`.
        prediction: From :class:`Inferencer`.
        predictor: Its classes and colours are used.
        size: Width and height in px of the image that the prediction is of.

    Returns:
        numpy.ndarray: (h, w, 3), uint8, RGB.
    """
    if predictor.task == 'detection':
        return _draw_boxes(preview, prediction, predictor, np.array(preview.shape[1::-1]) / size)
    if predictor.task == 'segmentation':
        return _draw_class_map(preview, prediction['index_map'], predictor)
    return _draw_class(preview, prediction, predictor)


def _draw_boxes(rgb: np.ndarray, prediction: dict[str, Any], predictor: Predictor, factors: np.ndarray) -> np.ndarray:
    from mmdet.structures import DetDataSample
    from mmdet.visualization import DetLocalVisualizer
    from mmengine.structures import InstanceData

    boxes = np.array(prediction['boxes'], np.float32).reshape(-1, 4) * np.tile(factors, 2).astype(np.float32)
    found = InstanceData(
        bboxes=torch.from_numpy(boxes),
        scores=torch.tensor(prediction['scores']),
        labels=torch.tensor(prediction['labels'], dtype=torch.long),
    )
    if prediction.get('masks'):
        height, width = rgb.shape[:2]
        found.masks = np.stack([decode_mask(mask, height=height, width=width) for mask in prediction['masks']])
    visualizer = DetLocalVisualizer()
    visualizer.dataset_meta = dict(classes=predictor.classes, palette=predictor.palette)
    # Its threshold is not reached by a score that equals it.
    visualizer.add_datasample('', rgb, DetDataSample(pred_instances=found), draw_gt=False, pred_score_thr=-1.0)
    return visualizer.get_image()


def _draw_class_map(rgb: np.ndarray, index_map: np.ndarray, predictor: Predictor) -> np.ndarray:
    height, width = rgb.shape[:2]
    index_map = resize_classes(index_map, height=height, width=width)
    if predictor.palette is None:
        palette = np.random.default_rng(0).integers(0, 256, (int(index_map.max()) + 1, 3))
    else:
        palette = np.array(predictor.palette)
    return np.round((1 - OPACITY) * rgb + OPACITY * palette[index_map]).astype(np.uint8)


def _draw_class(rgb: np.ndarray, prediction: dict[str, Any], predictor: Predictor) -> np.ndarray:
    from mmpretrain.structures import DataSample
    from mmpretrain.visualization import UniversalVisualizer

    visualizer = UniversalVisualizer()
    scores = torch.zeros(prediction['label'] + 1)
    scores[prediction['label']] = prediction['score']
    sample = DataSample().set_pred_score(scores).set_pred_label(prediction['label'])
    visualizer.visualize_cls(rgb, sample, classes=predictor.classes, draw_gt=False)
    return visualizer.get_image()

"""Drawing of predictions on their images."""

from importlib import import_module

import numpy as np
import torch

from .predictors import Predictor
from .tasks import Prediction, decode_mask, resize_classes

OPACITY = 0.6  # of a class's colour over the image


def require_drawing(task: str) -> None:
    """Raise ``ImportError`` unless the toolbox that draws this task is installed."""
    module = dict(detection='mmdet.visualization', classification='mmpretrain.visualization').get(task, 'numpy')
    try:
        import_module(module)
    except ImportError as error:
        raise ImportError(f'vis must be False (--no-vis): {module} does not import ({error})') from error


def draw_prediction(
    rgb: np.ndarray, prediction: Prediction, predictor: Predictor, *, size: tuple[int, int]
) -> np.ndarray:
    """Draw boxes or the class as the toolbox does, or a map of classes in their colours.

    Args:
        rgb: (h, w, 3), uint8, from :func:`make_preview`; like the result.
        prediction: In px of an image of ``size`` (width, height).
        predictor: Has the classes and colours.
    """
    if predictor.task == 'detection':
        return _draw_boxes(rgb, prediction, predictor, np.array(rgb.shape[1::-1]) / size)
    if predictor.task == 'segmentation':
        return _draw_seg_map(rgb, prediction['seg_map'], predictor)
    return _draw_class(rgb, prediction, predictor)


def _draw_boxes(rgb: np.ndarray, prediction: Prediction, predictor: Predictor, factors: np.ndarray) -> np.ndarray:
    from mmdet.structures import DetDataSample
    from mmdet.visualization import DetLocalVisualizer
    from mmengine.structures import InstanceData

    boxes = np.array(prediction['boxes'], np.float32).reshape(-1, 4) * np.tile(factors, 2).astype(np.float32)
    labels = torch.tensor(prediction['labels'], dtype=torch.long)
    instances = InstanceData(bboxes=torch.from_numpy(boxes), scores=torch.tensor(prediction['scores']), labels=labels)
    if prediction.get('masks'):
        height, width = rgb.shape[:2]
        instances.masks = np.stack([decode_mask(mask, height=height, width=width) for mask in prediction['masks']])
    visualizer = DetLocalVisualizer()
    visualizer.dataset_meta = dict(classes=predictor.classes, palette=predictor.palette)
    # Scores equal to the visualizer's threshold are not drawn.
    sample = DetDataSample(pred_instances=instances)
    visualizer.add_datasample('', rgb, sample, draw_gt=False, pred_score_thr=-1.0)
    return visualizer.get_image()


def _draw_seg_map(rgb: np.ndarray, seg_map: np.ndarray, predictor: Predictor) -> np.ndarray:
    seg_map = resize_classes(seg_map, height=rgb.shape[0], width=rgb.shape[1])
    if predictor.palette is None:
        palette = np.random.default_rng(0).integers(0, 256, (int(seg_map.max()) + 1, 3))
    else:
        palette = np.array(predictor.palette)
    return np.round((1 - OPACITY) * rgb + OPACITY * palette[seg_map]).astype(np.uint8)


def _draw_class(rgb: np.ndarray, prediction: Prediction, predictor: Predictor) -> np.ndarray:
    from mmpretrain.structures import DataSample
    from mmpretrain.visualization import UniversalVisualizer

    scores = torch.zeros(prediction['label'] + 1)
    scores[prediction['label']] = prediction['score']
    sample = DataSample().set_pred_score(scores).set_pred_label(prediction['label'])
    visualizer = UniversalVisualizer()
    visualizer.visualize_cls(rgb, sample, classes=predictor.classes, draw_gt=False)
    return visualizer.get_image()

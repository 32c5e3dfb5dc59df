"""Predictions of detectors, segmentors and classifiers, from whole images or tiles; pictures of them."""

from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import product
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from .images import ImageError, LoadedImage
from .predictors import Predictor
from .tiles import Bounds, Span, TileGrid, blend_seg_map, bounding_boxes, is_cut, make_grid, merge_groups

Prediction = dict[str, Any]
Rle = dict[str, Any]  # an instance mask as COCO's run lengths, plain data: size, counts
OnTiles = Callable[[int, int], None]  # number of tiles done, and their total
OPACITY = 0.6  # of a class's colour over the image


def predict_batch(predictor: Predictor, batch: list[LoadedImage], score_thr: float, bounds: Bounds) -> list[Prediction]:
    """Predict on whole images of equal size; raise ``ValueError`` for NaN and infinite outputs."""
    images = [loaded.image for loaded in batch]
    if predictor.task == 'segmentation':
        logits = predictor.logits(images)
        return [_segmentation(predictor, one, loaded, bounds) for one, loaded in zip(logits, batch, strict=True)]
    outputs = predictor.predict(images)
    if predictor.task == 'classification':
        return [_classification(predictor, output['scores']) for output in outputs]
    return [
        _detection(predictor, _select(output, loaded.image.shape[:2], score_thr), loaded)
        for output, loaded in zip(outputs, batch, strict=True)
    ]


def predict_tiled(
    predictor: Predictor, loaded: LoadedImage, score_thr: float, bounds: Bounds, on_tiles: OnTiles | None
) -> Prediction:
    """Predict on one image in overlapping tiles; raise ``ImageError`` for a classifier."""
    if predictor.task == 'classification':
        too_large = f'{loaded.pixels} pixels, more than max_pixels={bounds.max_pixels}'
        raise ImageError(loaded.name, f'{too_large}; a classifier cannot be tiled: set scale or long_side')
    height, width = loaded.image.shape[:2]
    grid = make_grid(height, width, tile_size=bounds.tile_size, overlap=bounds.overlap)
    if predictor.task == 'segmentation':
        tiles = (logits for _, _, logits in _run_tiles(predictor.logits, loaded.image, grid, bounds, on_tiles))
        seg_map = blend_seg_map(tiles, grid, to_classes=lambda logits: _to_classes(predictor, logits))
        width, height = loaded.size
        return dict(seg_map=resize_classes(seg_map, height=height, width=width))
    found = []
    for rows, columns, output in _run_tiles(predictor.predict, loaded.image, grid, bounds, on_tiles):
        part = _select(output, (height, width), score_thr, left=columns[0], top=rows[0])
        part['cut'] = is_cut(part['boxes'], rows=rows, columns=columns, height=height, width=width)
        part['tiles'] = np.tile((columns[0], rows[0], columns[1], rows[1]), (len(part['boxes']), 1))
        found.append(part)
    return _detection(predictor, _merge(found), loaded)


def _run_tiles(
    run: Callable[[list[np.ndarray]], Any], image: np.ndarray, grid: TileGrid, bounds: Bounds, on_tiles: OnTiles | None
) -> Iterator[tuple[Span, Span, Any]]:
    spans = list(product(grid.rows, grid.columns))
    (_, tile_height), (_, tile_width) = spans[0]
    step = bounds.batch_of(tile_height * tile_width)
    for first in range(0, len(spans), step):
        batch = spans[first : first + step]
        outputs = run([image[top:bottom, left:right] for (top, bottom), (left, right) in batch])
        if on_tiles is not None:
            on_tiles(first + len(batch), len(spans))
        for (rows, columns), output in zip(batch, outputs, strict=True):
            yield rows, columns, output


def _check_finite(**values: Any) -> None:
    for name, array in values.items():
        if not np.isfinite(array).all():
            raise ValueError(f'{name} must be finite, got NaN or infinite values')


def _to_classes(predictor: Predictor, logits: Tensor) -> np.ndarray:
    # The maximum is NaN if any logit is. A model may exclude a class by -inf.
    _check_finite(logits=float(logits.max()))
    dtype = np.uint8 if len(logits) <= 255 else np.uint16
    return predictor.to_classes(logits).cpu().numpy().astype(dtype)


def _segmentation(predictor: Predictor, logits: Tensor, loaded: LoadedImage, bounds: Bounds) -> Prediction:
    width, height = loaded.size
    if logits.shape[1:] == (height, width):
        return dict(seg_map=_to_classes(predictor, logits))
    # Resized logits are held for at most max_pixels at a time.
    step = max(1, bounds.max_pixels // width)
    bands = ((top, min(top + step, height)) for top in range(0, height, step))
    resized = (resize_logits(logits, rows, height=height, width=width) for rows in bands)
    return dict(seg_map=np.concatenate([_to_classes(predictor, band) for band in resized]))


def _classification(predictor: Predictor, scores: np.ndarray) -> Prediction:
    _check_finite(scores=scores)
    label = int(scores.argmax())
    name = predictor.classes[label] if predictor.classes else None
    return {'label': label, 'class': name, 'score': float(scores[label])}


def _select(
    output: dict[str, Any], shape: tuple[int, int], score_thr: float, *, left: int = 0, top: int = 0
) -> dict[str, Any]:
    """Select the boxes of at least ``score_thr``; move them from a tile at (left, top) to its image of ``shape``."""
    _check_finite(boxes=output['boxes'], scores=output['scores'])
    good = np.flatnonzero(output['scores'] >= score_thr)
    selected: dict[str, Any] = {name: output[name][good] for name in ('boxes', 'scores', 'labels')}
    selected['boxes'] = selected['boxes'] + np.array([left, top, left, top], np.float32)
    if 'masks' in output:
        height, width = shape
        masks = (output['masks'][i] for i in good)
        selected['masks'] = [encode_mask(mask, left=left, top=top, height=height, width=width) for mask in masks]
    return selected


def _merge(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge the boxes and masks of all tiles to one per object."""
    keys = ('boxes', 'scores', 'labels', 'cut', 'tiles')
    boxes, scores, labels, cut, tiles = (np.concatenate([part[key] for part in parts]) for key in keys)
    groups = merge_groups(boxes, scores, labels, cut, tiles)
    best = [group[0] for group in groups]
    merged: dict[str, Any] = dict(boxes=bounding_boxes(boxes, groups), scores=scores[best], labels=labels[best])
    if 'masks' in parts[0]:
        from pycocotools import mask as coco_mask  # type: ignore[import-untyped]

        masks = [mask for part in parts for mask in part['masks']]
        merged['masks'] = [_plain(coco_mask.merge([masks[i] for i in group])) for group in groups]
    return merged


def _detection(predictor: Predictor, found: dict[str, Any], loaded: LoadedImage) -> Prediction:
    (width, height), shape = loaded.size, loaded.image.shape
    factors = np.tile([width / shape[1], height / shape[0]], 2)
    prediction = dict(boxes=(found['boxes'] * factors).tolist(), scores=found['scores'].tolist())
    prediction['labels'] = found['labels'].tolist()
    prediction['classes'] = [predictor.classes[i] if predictor.classes else None for i in prediction['labels']]
    if 'masks' in found:
        prediction['masks'] = found['masks']
    if 'masks' in found and shape[:2] != (height, width):
        resized = (decode_mask(mask, height=height, width=width) for mask in found['masks'])
        prediction['masks'] = [encode_mask(mask, height=height, width=width) for mask in resized]
    return prediction


def resize_classes(seg_map: np.ndarray, *, height: int, width: int) -> np.ndarray:
    """Resize a uint8 or uint16 map of classes: each pixel takes the class of the nearest centre."""
    if seg_map.shape == (height, width):
        return seg_map
    return cv2.resize(seg_map, (width, height), interpolation=cv2.INTER_NEAREST_EXACT)


def resize_logits(logits: Tensor, rows: Span, *, height: int, width: int) -> Tensor:
    """Resize logits (C, h, w) bilinearly (``align_corners=False``); return the given rows of (C, height, width)."""
    positions = (torch.arange(*rows, device=logits.device) + 0.5) * (logits.shape[1] / height) - 0.5
    positions = positions.clamp(0, logits.shape[1] - 1)
    above = positions.floor().long()
    below = (above + 1).clamp(max=logits.shape[1] - 1)
    share = (positions - above)[:, None]
    band = logits[:, above].float() * (1 - share) + logits[:, below].float() * share
    return functional.interpolate(band[None], (band.shape[1], width), mode='bilinear', align_corners=False)[0]


def encode_mask(mask: np.ndarray, *, height: int, width: int, left: int = 0, top: int = 0) -> Rle:
    """Encode a mask (h, w; bool) at (left, top) of an image of (height, width)."""
    from pycocotools import mask as coco_mask

    # Run lengths follow the columns, so that columns without mask are part of one run and need no memory.
    columns = np.zeros((height, mask.shape[1]), bool, order='F')
    columns[top : top + mask.shape[0]] = mask
    changes = np.flatnonzero(np.diff(columns.ravel(order='F'), prepend=False, append=False))
    counts = np.diff(np.concatenate(([0], changes + left * height, [height * width])))
    return _plain(coco_mask.frPyObjects(dict(size=[height, width], counts=counts.tolist()), height, width))


def decode_mask(mask: Rle, *, height: int, width: int) -> np.ndarray:
    """Decode a mask to (height, width), bool."""
    from pycocotools import mask as coco_mask

    return resize_classes(coco_mask.decode(mask), height=height, width=width).astype(bool)


def _plain(mask: Rle) -> Rle:
    # pycocotools returns numpy sides and bytes, which JSON lacks.
    return dict(size=[int(side) for side in mask['size']], counts=mask['counts'].decode())


def require_drawing(task: str) -> None:
    """Raise ``ImportError`` unless the toolbox that draws this task is installed."""
    module = dict(detection='mmdet.visualization', classification='mmpretrain.visualization').get(task, 'numpy')
    try:
        import_module(module)
    except ImportError as error:
        raise ImportError(f'vis must be False (--no-vis): {module} does not import ({error})') from error


def draw_prediction(rgb: np.ndarray, prediction: Prediction, predictor: Predictor, size: tuple[int, int]) -> np.ndarray:
    """Draw boxes or the class as the toolbox does, or a class map in the classes' colours.

    ``rgb`` (h, w, 3), from :func:`make_preview`, shows the image of ``size`` (width, height) px that was predicted.
    """
    if predictor.task == 'classification':
        return _draw_class(rgb, prediction, predictor)
    height, width = rgb.shape[:2]
    if predictor.task == 'detection':
        return _draw_boxes(rgb, prediction, predictor, np.tile([width / size[0], height / size[1]], 2))
    seg_map = resize_classes(prediction['seg_map'], height=height, width=width)
    random = np.random.default_rng(0).integers(0, 256, (int(seg_map.max()) + 1, 3))
    palette = random if predictor.palette is None else np.array(predictor.palette)
    return np.round((1 - OPACITY) * rgb + OPACITY * palette[seg_map]).astype(np.uint8)


def _draw_boxes(rgb: np.ndarray, prediction: Prediction, predictor: Predictor, factors: np.ndarray) -> np.ndarray:
    from mmdet.structures import DetDataSample
    from mmdet.visualization import DetLocalVisualizer
    from mmengine.structures import InstanceData

    boxes = np.array(prediction['boxes'], np.float32).reshape(-1, 4) * factors.astype(np.float32)
    labels = torch.tensor(prediction['labels'], dtype=torch.long)
    instances = InstanceData(bboxes=torch.from_numpy(boxes), scores=torch.tensor(prediction['scores']), labels=labels)
    if prediction.get('masks'):
        height, width = rgb.shape[:2]
        instances.masks = np.stack([decode_mask(mask, height=height, width=width) for mask in prediction['masks']])
    visualizer = DetLocalVisualizer()
    visualizer.dataset_meta = dict(classes=predictor.classes, palette=predictor.palette)
    sample = DetDataSample(pred_instances=instances)
    # Scores equal to the visualizer's threshold are not drawn.
    visualizer.add_datasample('', rgb, sample, draw_gt=False, pred_score_thr=-1.0)
    return visualizer.get_image()


def _draw_class(rgb: np.ndarray, prediction: Prediction, predictor: Predictor) -> np.ndarray:
    from mmpretrain.structures import DataSample
    from mmpretrain.visualization import UniversalVisualizer

    scores = torch.zeros(prediction['label'] + 1)
    scores[prediction['label']] = prediction['score']
    sample = DataSample().set_pred_score(scores).set_pred_label(prediction['label'])
    visualizer = UniversalVisualizer()
    visualizer.visualize_cls(rgb, sample, classes=predictor.classes, draw_gt=False)
    return visualizer.get_image()

"""From batches and tiles to predictions: detection, segmentation, classification."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
from torch import Tensor

from .batching import Bounds, Loaded
from .predictors import Predictor
from .reading import ImageError
from .rle import encode_mask, merge_masks, resize_mask
from .sizing import resize_classes, resize_logits
from .tiling import Grid, Span, blend_class_map, is_cut, make_grid, merge_groups

Prediction = dict[str, Any]
OnTiles = Callable[[int, int], None]


def predict_batch(
    predictor: Predictor, batch: list[Loaded], *, score_threshold: float, bounds: Bounds
) -> list[Prediction]:
    """Predict on whole images.

    Args:
        predictor: Runs the model.
        batch: Images of equal size.
        score_threshold: Boxes that score less are left out.
        bounds: What may be held in memory.

    Returns:
        list[dict]: The prediction of each, as :class:`Inferencer` describes.
    """
    images = [loaded.image for loaded in batch]
    if predictor.task == 'segmentation':
        logits = predictor.logits(images)
        return [_class_map(predictor, one, loaded, bounds) for one, loaded in zip(logits, batch, strict=True)]
    outputs = predictor.predict(images)
    if predictor.task == 'classification':
        return [_classification(predictor, output['scores']) for output in outputs]
    return [
        _detection(predictor, _found(output, loaded.image.shape[:2], score_threshold), loaded)
        for output, loaded in zip(outputs, batch, strict=True)
    ]


def predict_tiled(
    predictor: Predictor, loaded: Loaded, *, score_threshold: float, bounds: Bounds, on_tiles: OnTiles | None = None
) -> Prediction:
    """Predict on one image in overlapping tiles.

    Args:
        predictor: Runs the model.
        loaded: The image.
        score_threshold: Boxes that score less are left out, before boxes are merged.
        bounds: Size and overlap of tiles, and what may be held in memory.
        on_tiles: Called with the number of tiles done and their total.

    Returns:
        dict: The prediction, as :class:`Inferencer` describes.

    Raises:
        ImageError: A classifier has one answer for an image, not one a tile.
    """
    if predictor.task == 'classification':
        raise ImageError(
            loaded.name,
            f'{loaded.pixels} pixels for a classifier, more than max_pixels={bounds.max_pixels}; '
            'a class is of the whole image, which is not tiled: give scale or long_side',
        )
    height, width = shape = loaded.image.shape[:2]
    grid = make_grid(height, width, tile_size=bounds.tile_size, overlap=bounds.overlap)
    if predictor.task == 'segmentation':
        tiles = _run_tiles(predictor.logits, loaded.image, grid, bounds, on_tiles)
        class_map = blend_class_map(
            (logits for _, _, logits in tiles), grid, to_classes=lambda logits: _to_classes(predictor, logits)
        )
        width, height = loaded.size
        return dict(index_map=resize_classes(class_map, height=height, width=width))
    found = []
    for rows, columns, output in _run_tiles(predictor.predict, loaded.image, grid, bounds, on_tiles):
        part = _found(output, shape, score_threshold, left=columns[0], top=rows[0])
        part['cut'] = is_cut(part['boxes'], rows=rows, columns=columns, height=height, width=width)
        part['tiles'] = np.tile((columns[0], rows[0], columns[1], rows[1]), (len(part['boxes']), 1))
        found.append(part)
    return _detection(predictor, _merge(found), loaded)


def _run_tiles(
    run: Callable[[list[np.ndarray]], Any], image: np.ndarray, grid: Grid, bounds: Bounds, on_tiles: OnTiles | None
) -> Iterator[tuple[Span, Span, Any]]:
    spans = list(product(grid.rows, grid.columns))
    step = bounds.images_of(grid.tile_pixels)
    for first in range(0, len(spans), step):
        batch = spans[first : first + step]
        outputs = run([image[top:bottom, left:right] for (top, bottom), (left, right) in batch])
        if on_tiles is not None:
            on_tiles(first + len(batch), len(spans))
        for (rows, columns), output in zip(batch, outputs, strict=True):
            yield rows, columns, output


def _to_classes(predictor: Predictor, logits: Tensor) -> np.ndarray:
    dtype = np.uint8 if len(logits) <= 255 else np.uint16
    return predictor.to_classes(logits).cpu().numpy().astype(dtype)


def _class_map(predictor: Predictor, logits: Tensor, loaded: Loaded, bounds: Bounds) -> Prediction:
    width, height = loaded.size
    if logits.shape[1:] == (height, width):
        return dict(index_map=_to_classes(predictor, logits))
    # Logits at the image's own size, of no more rows at a time than a forward may have pixels.
    step = max(1, bounds.max_pixels // width)
    bands = ((top, min(top + step, height)) for top in range(0, height, step))
    return dict(
        index_map=np.concatenate(
            [_to_classes(predictor, resize_logits(logits, rows, height=height, width=width)) for rows in bands]
        )
    )


def _classification(predictor: Predictor, scores: np.ndarray) -> Prediction:
    label = int(scores.argmax())
    return {
        'label': label,
        'class': predictor.classes[label] if predictor.classes else None,
        'score': float(scores[label]),
    }


def _found(
    output: dict[str, Any], shape: tuple[int, int], score_threshold: float, *, left: int = 0, top: int = 0
) -> dict[str, Any]:
    """What scores enough, moved from a tile at (left, top) to the image of ``shape`` that it is of."""
    good = np.flatnonzero(output['scores'] >= score_threshold)
    found: dict[str, Any] = dict(
        boxes=output['boxes'][good] + np.array([left, top, left, top], np.float32),
        scores=output['scores'][good],
        labels=output['labels'][good],
    )
    if 'masks' in output:
        height, width = shape
        masks = (output['masks'][i] for i in good)
        found['masks'] = [encode_mask(mask, left=left, top=top, height=height, width=width) for mask in masks]
    return found


def _merge(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """One box, or one mask, for what several tiles have seen."""
    keys = ('boxes', 'scores', 'labels', 'cut', 'tiles')
    boxes, scores, labels, cut, tiles = (np.concatenate([part[key] for part in parts]) for key in keys)
    groups = merge_groups(boxes, scores, labels, cut, tiles)
    best = [group[0] for group in groups]
    corners = [(boxes[group, :2].min(0), boxes[group, 2:].max(0)) for group in groups]
    merged: dict[str, Any] = dict(
        boxes=np.array(corners, np.float32).reshape(-1, 4), scores=scores[best], labels=labels[best]
    )
    if 'masks' in parts[0]:
        masks = [mask for part in parts for mask in part['masks']]
        merged['masks'] = [merge_masks([masks[i] for i in group]) for group in groups]
    return merged


def _detection(predictor: Predictor, found: dict[str, Any], loaded: Loaded) -> Prediction:
    width, height = loaded.size
    factors = np.array([width / loaded.image.shape[1], height / loaded.image.shape[0]])
    labels = found['labels'].tolist()
    prediction = dict(
        boxes=(found['boxes'] * np.tile(factors, 2)).tolist(),
        scores=found['scores'].tolist(),
        labels=labels,
        classes=[predictor.classes[label] if predictor.classes else None for label in labels],
    )
    if 'masks' in found:
        prediction['masks'] = [resize_mask(mask, height=height, width=width) for mask in found['masks']]
    return prediction

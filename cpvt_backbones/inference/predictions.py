"""Conversion of model outputs for whole images or tiles to predictions as plain data."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from cpvt_backbones.errors import InputError
from cpvt_backbones.images import ImageError
from cpvt_backbones.images.windows import Block, Scene, nearest, no_class, resize_classes

from .panoptic import segments_of
from .predictors import Predictor
from .tiles import (
    SAME_OBJECT,
    Bounds,
    blend_tiles,
    bounding_boxes,
    is_cut,
    make_grid,
    make_panels,
    merge_groups,
    tile_order,
)

MASK_PIXELS = 2**32 - 1  # limit of pycocotools, which counts in uint32

Prediction = dict[str, Any]
Rle = dict[str, Any]  # an instance mask as COCO's run lengths, plain data: size, counts
OnTiles = Callable[[int, int], None]  # number of tiles done, and their total


@dataclass(frozen=True)
class LoadedImage:
    """An image ready for the model."""

    index: int  # among the inputs
    name: str
    size: tuple[int, int]  # width and height in px, before scaling
    image: Any  # (h, w, 3), scaled; an array, or read by windows if it is tiled
    preview: np.ndarray | None = None  # to draw on
    stamp: list[int] | None = None  # file_stamp() before reading
    error: Exception | None = None  # why it could not be read
    file: Scene | None = None  # the open TIFF or JPEG 2000 file
    map_path: Path | None = None  # destination of a class map that is written in blocks
    dark: bool = False  # see keeps_to_twelve_bits

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(getattr(array, 'nbytes', 0) for array in (self.image, self.preview))

    @property
    def pixels(self) -> int:
        """Pixels of the model's input."""
        return self.image.shape[0] * self.image.shape[1]


def run_batch(
    predictor: Predictor,
    batch: list[LoadedImage],
    *,
    score_thr: float,
    bounds: Bounds,
    on_tiles: OnTiles | None,
) -> list[Any]:
    """Run the model on images of equal size, in tiles if needed.

    Args:
        predictor: The model.
        batch: Images of equal size; only one if it needs tiles.
        score_thr: Minimum score of a box.
        bounds: Limits of a forward call.
        on_tiles: Function that gets the number of finished tiles and their total.

    Returns:
        One output per image, for :func:`finish_prediction`.
    """
    if batch[0].pixels > bounds.max_pixels:
        return [predict_tiled(predictor, batch[0], score_thr, bounds, on_tiles)]
    images = [loaded.image for loaded in batch]
    if predictor.task == 'segmentation':
        return list(predictor.logits(images))
    limit = getattr(predictor, 'merge_pixels', None)
    if limit is None:
        return predictor.predict(images)
    merging: Any = predictor.predict  # which takes sizes, too
    limit = max(limit, batch[0].pixels)
    return merging(images, sizes=[merged_size(loaded.size, limit) for loaded in batch])


def merged_size(size: tuple[int, int], limit: int) -> tuple[int, int]:
    """Return the (height, width) at which the masks of queries are merged.

    It is that of the image, as publishers evaluate, with at most ``limit`` px. The masks are then
    resized further. At the size of the model's input, their borders would be coarser.

    Args:
        size: (width, height) of the image in px.
        limit: Maximum number of pixels.

    Examples:
        >>> from cpvt_backbones.inference.predictions import merged_size
        >>> merged_size((640, 480), 1 << 20), merged_size((4000, 3000), 1 << 20)
        ((480, 640), (886, 1182))
    """
    factor = min(1.0, (limit / prod(size)) ** 0.5)
    width, height = (max(1, int(side * factor)) for side in size)
    return height, width


def finish_prediction(
    predictor: Predictor, output: Any, loaded: LoadedImage, score_thr: float, bounds: Bounds
) -> tuple[Prediction, float | None]:
    """Convert an output of :func:`run_batch` to a prediction and a detector's highest score.

    The other arguments are those of :func:`run_batch`. The score may be below ``score_thr``; it is
    ``None`` without boxes.

    Raises:
        ValueError: The output has NaN or infinite values.
    """
    if loaded.pixels > bounds.max_pixels:  # predict_tiled has finished it
        return output
    if predictor.task == 'segmentation':
        return _segmentation(predictor, output, loaded, bounds), None
    if predictor.task == 'classification':
        return _classification(predictor, output['scores']), None
    if predictor.task == 'panoptic':
        width, height = loaded.size
        ids = resize_classes(output['panoptic'], height=height, width=width)
        return segments_of(ids, predictor.classes), None
    # Masks that were merged at another size than that of the model's input.
    shape = output['masks'].shape[1:] if 'masks' in output else loaded.image.shape[:2]
    found = _select(output, loaded, score_thr, shape=shape)
    return _detection(predictor, found, loaded, shape), _highest([output])


def predict_tiled(
    predictor: Predictor,
    loaded: LoadedImage,
    score_thr: float,
    bounds: Bounds,
    on_tiles: OnTiles | None,
) -> tuple[Prediction, float | None]:
    """Predict on one image in overlapping tiles; return the same as :func:`finish_prediction`.

    The arguments are those of :func:`run_batch`.

    Raises:
        ImageError: The model is a classifier, or it predicts panoptic segments, whose parts in
            neighbouring tiles would become several segments.
    """
    if predictor.task in ('classification', 'panoptic'):
        too_large = f'{loaded.pixels} pixels, more than max_pixels={bounds.max_pixels}'
        what = 'a classifier' if predictor.task == 'classification' else 'a panoptic segmentor'
        advice = f'{what} cannot be tiled: set scale or long_side'
        raise ImageError(loaded.name, f'{too_large}; {advice}')
    if predictor.task == 'segmentation':
        return _segment_tiles(predictor, loaded, bounds, on_tiles), None
    height, width = loaded.image.shape[:2]
    grid = make_grid(height, width, tile_size=bounds.tile_size, overlap=bounds.overlap)
    outputs, parts, tiles = [], [], []
    for rows, columns, output in _run_tiles(
        predictor.predict, loaded.image, list(product(grid.rows, grid.columns)), bounds, on_tiles
    ):
        if 'masks' in output:
            _check_mask_size(loaded)  # before the first tile instead of after the last
        at = dict(left=columns[0], top=rows[0])
        part = _select(output, loaded, score_thr, shape=(height, width), **at)
        parts.append(part)
        tile = (columns[0], rows[0], columns[1], rows[1])
        tiles.append(np.tile(tile, (len(part.boxes), 1)))
        outputs.append(dict(scores=output['scores']))
    merged = _merge(
        parts,
        np.concatenate(tiles),
        height=height,
        width=width,
        threshold=getattr(predictor, 'nms_threshold', None) or SAME_OBJECT,
    )
    return _detection(predictor, merged, loaded, (height, width)), _highest(outputs)


def _segment_tiles(
    predictor: Predictor, loaded: LoadedImage, bounds: Bounds, on_tiles: OnTiles | None
) -> Prediction:
    height, width = loaded.image.shape[:2]
    grid = make_grid(height, width, tile_size=bounds.tile_size, overlap=bounds.overlap)
    panels = make_panels(grid, channels=len(predictor.classes or range(256)))
    order = tile_order(grid, panels)
    tiles = _run_tiles(predictor.logits, loaded.image, order, bounds, on_tiles)
    blocks = blend_tiles(
        (logits for _, _, logits in tiles),
        grid,
        panels,
        to_classes=lambda logits: _to_classes(predictor, logits),
    )
    return _class_map(_resize_blocks(blocks, (height, width), loaded.size), loaded)


def _run_tiles(
    run: Callable[[list[np.ndarray]], Any],
    image: Any,
    spans: list[Any],
    bounds: Bounds,
    on_tiles: OnTiles | None,
) -> Iterator[tuple[Any, Any, Any]]:
    """Yield the rows and columns of each tile with the output of the model."""
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
            raise InputError(f'{name} must be finite, got NaN or infinite values')


def _highest(outputs: list[dict[str, Any]]) -> float | None:
    scores = [float(output['scores'].max()) for output in outputs if len(output['scores'])]
    return max(scores, default=None)


# -- class maps


def _to_classes(predictor: Predictor, logits: Tensor) -> np.ndarray:
    # The maximum is NaN if any logit is NaN. A model may exclude a class by -inf. NumPy, because
    # torch would start a pool of threads in each calling thread.
    values: Any = logits.detach().float().numpy() if logits.device.type == 'cpu' else logits
    _check_finite(logits=float(values.max()))
    dtype = np.uint8 if len(logits) <= 255 else np.uint16
    return predictor.to_classes(logits).cpu().numpy().astype(dtype)


def _segmentation(
    predictor: Predictor, logits: Tensor, loaded: LoadedImage, bounds: Bounds
) -> Prediction:
    width, height = loaded.size
    step = max(1, bounds.max_pixels // width)  # rows of resized logits in memory at a time

    def blocks() -> Iterator[Block]:
        for top in range(0, height, step):
            rows = top, min(top + step, height)
            band = resize_logits(
                logits,
                rows,
                height=height,
                width=width,
                align_corners=getattr(predictor, 'align_corners', False),
            )
            yield rows, (0, width), _to_classes(predictor, band)

    return _class_map(blocks(), loaded)


def _class_map(blocks: Iterator[Block], loaded: LoadedImage) -> Prediction:
    if loaded.file is not None:
        blocks = _without_missing(blocks, loaded.file)
    if loaded.file is not None and loaded.map_path is not None:
        return dict(seg_map=loaded.file.write_map(blocks, loaded.map_path))
    seg_map: np.ndarray | None = None
    for rows, columns, classes in blocks:
        if seg_map is None:
            seg_map = np.empty(loaded.size[::-1], classes.dtype)
        seg_map[slice(*rows), slice(*columns)] = classes
    return dict(seg_map=seg_map)


def _without_missing(blocks: Iterator[Block], file: Scene) -> Iterator[Block]:
    """Set pixels without data to "no class" in the blocks of a class map of the file's size."""
    for rows, columns, classes in blocks:
        missing = file.missing(rows, columns) if classes.size else None
        if missing is not None and missing.any():
            classes = classes.copy()
            classes[missing] = no_class(classes.dtype)
        yield rows, columns, classes


def _resize_blocks(
    blocks: Iterator[Block], shape: tuple[int, int], size: tuple[int, int]
) -> Iterator[Block]:
    """Resize the blocks of a class map of ``shape`` to ``size`` (width, height).

    Values equal :func:`resize_classes` on the whole map.
    """
    if shape == size[::-1]:
        yield from blocks
        return
    rows, columns = nearest(shape[0], size[1]), nearest(shape[1], size[0])
    for vertical, horizontal, classes in blocks:
        top, bottom = np.searchsorted(rows, vertical).tolist()
        left, right = np.searchsorted(columns, horizontal).tolist()
        lines = classes[rows[top:bottom] - vertical[0]]
        yield (top, bottom), (left, right), lines[:, columns[left:right] - horizontal[0]]


def resize_logits(
    logits: Tensor,
    rows: tuple[int, int],
    *,
    height: int,
    width: int,
    align_corners: bool = False,
) -> Tensor:
    """Resize logits (C, h, w) bilinearly, like ``torch.nn.functional.interpolate``.

    Args:
        logits: (C, h, w).
        rows: Start and stop of the rows of (C, height, width) that are computed.
        height: Height of the result in px.
        width: Width of the result in px.
        align_corners: See ``torch.nn.functional.interpolate``.
    """
    if logits.shape[1:] == (height, width):
        return logits[:, slice(*rows)]
    positions = torch.arange(*rows, device=logits.device, dtype=torch.float32)
    if align_corners:
        positions = positions * ((logits.shape[1] - 1) / max(1, height - 1))
    else:
        positions = (positions + 0.5) * (logits.shape[1] / height) - 0.5
    positions = positions.clamp(0, logits.shape[1] - 1)
    above = positions.floor().long()
    below = (above + 1).clamp(max=logits.shape[1] - 1)
    share = (positions - above)[:, None]
    band = logits[:, above].float() * (1 - share) + logits[:, below].float() * share
    size = band.shape[1], width
    return functional.interpolate(band[None], size, mode='bilinear', align_corners=align_corners)[0]


# -- the class of an image


def _classification(predictor: Predictor, scores: np.ndarray) -> Prediction:
    _check_finite(scores=scores)
    label = int(scores.argmax())
    name = predictor.classes[label] if predictor.classes else None
    return {'label': label, 'class': name, 'score': float(scores[label])}


# -- boxes and masks


@dataclass
class _Found:
    """Boxes of an image in px of the model's output, with their scores, labels and masks."""

    boxes: np.ndarray  # (N, 4), x1, y1, x2, y2
    scores: np.ndarray  # (N,)
    labels: np.ndarray  # (N,)
    masks: list[Rle] | None  # in px of the image before scaling; None without a mask head


def _select(
    output: Any,
    loaded: LoadedImage,
    score_thr: float,
    *,
    shape: tuple[int, int],
    left: int = 0,
    top: int = 0,
) -> _Found:
    """Select the boxes with a score of at least ``score_thr``.

    ``shape`` is the (height, width) of the output. Boxes of a tile at (left, top) are moved to
    their position in the image.
    """
    _check_finite(boxes=output['boxes'], scores=output['scores'])
    good = np.flatnonzero(output['scores'] >= score_thr)
    masks = None
    if 'masks' in output:
        width, height = loaded.size
        crops = (_crop(output['masks'][i], left, top) for i in good)
        masks = [
            encode_mask(mask, left=columns[0], top=rows[0], height=height, width=width)
            for rows, columns, mask in _resize_blocks(crops, shape, loaded.size)
        ]
    boxes = output['boxes'][good] + np.array([left, top, left, top], np.float32)
    return _Found(boxes, output['scores'][good], output['labels'][good], masks)


def _crop(mask: np.ndarray, left: int, top: int) -> Block:
    """Crop a mask to its set pixels; return their rows and columns in the image, and the part."""
    rows, columns = _extent(mask, axis=1), _extent(mask, axis=0)
    part = mask[slice(*rows), slice(*columns)]
    return (top + rows[0], top + rows[1]), (left + columns[0], left + columns[1]), part


def _extent(mask: np.ndarray, *, axis: int) -> tuple[int, int]:
    """Return start and stop of the set pixels of a mask after reduction along ``axis``."""
    at = np.flatnonzero(mask.any(axis=axis))
    return (int(at[0]), int(at[-1]) + 1) if len(at) else (0, 0)


def _merge(
    parts: list[_Found], tiles: np.ndarray, *, height: int, width: int, threshold: float
) -> _Found:
    """Merge the boxes of all tiles of an image; ``tiles`` (N, 4) holds each box's tile."""
    boxes = np.concatenate([part.boxes for part in parts])
    scores = np.concatenate([part.scores for part in parts])
    labels = np.concatenate([part.labels for part in parts])
    cut = is_cut(boxes, tiles, height=height, width=width)
    groups = merge_groups(boxes, scores, labels, cut, tiles, threshold=threshold)
    best = [group[0] for group in groups]
    masks = None
    if parts[0].masks is not None:
        from pycocotools import mask as coco_mask

        every = [mask for part in parts for mask in part.masks or ()]
        masks = [_plain(coco_mask.merge([every[i] for i in group])) for group in groups]
    return _Found(bounding_boxes(boxes, groups), scores[best], labels[best], masks)


def _detection(
    predictor: Predictor, found: _Found, loaded: LoadedImage, shape: tuple[int, int]
) -> Prediction:
    height, width = shape
    factors = np.tile([loaded.size[0] / width, loaded.size[1] / height], 2)
    labels = found.labels.tolist()
    names = predictor.classes
    prediction: Prediction = dict(
        boxes=(found.boxes * factors).tolist(),
        scores=found.scores.tolist(),
        labels=labels,
        classes=[names[label] if names else None for label in labels],
    )
    if found.masks is not None:
        prediction['masks'] = found.masks
    return prediction


def encode_mask(mask: np.ndarray, *, height: int, width: int, left: int = 0, top: int = 0) -> Rle:
    """Encode a mask (h, w; bool) at (left, top) of an image of (height, width).

    Raises:
        ValueError: The image has 2^32 pixels or more.
    """
    from pycocotools import mask as coco_mask

    if height * width > MASK_PIXELS:
        raise InputError(f'mask: {_too_large(height, width)}')

    # Run lengths are column-major. Rows of zeros above and below keep each run within a column.
    padded = np.pad(mask, ((1, 1), (0, 0))).ravel(order='F')
    changes = np.flatnonzero(np.diff(padded, prepend=False))
    columns, rows = np.divmod(changes, mask.shape[0] + 2)
    at = (left + columns) * height + top + rows - 1
    # A run that ends a column and a run that starts the next column are one.
    joined = np.flatnonzero(at[1:] == at[:-1])
    at = np.delete(at, np.append(joined, joined + 1))
    counts = np.diff(np.concatenate(([0], at, [height * width])))
    runs = dict(size=[height, width], counts=counts.tolist())
    return _plain(coco_mask.frPyObjects(runs, height, width))


def _check_mask_size(loaded: LoadedImage) -> None:
    """Raise ``ImageError`` for an image that is too large for run lengths."""
    width, height = loaded.size
    if height * width > MASK_PIXELS:
        raise ImageError(loaded.name, _too_large(height, width))


def _too_large(height: int, width: int) -> str:
    return (
        f"COCO's run lengths of instance masks count at most {MASK_PIXELS:,} px, the image of"
        f' {width} x {height} px has {height * width:,}: cut it into parts, or take a detector'
        ' without masks'
    )


def decode_mask(mask: Rle, *, height: int, width: int) -> np.ndarray:
    """Decode a mask to (height, width), bool."""
    from pycocotools import mask as coco_mask

    return resize_classes(coco_mask.decode(mask), height=height, width=width).astype(bool)


def _plain(mask: Rle) -> Rle:
    # pycocotools returns numpy sides and bytes, which JSON lacks.
    return dict(size=[int(side) for side in mask['size']], counts=mask['counts'].decode())

"""What the page asks of a model: one image at one size, at five sizes, its attention and its
features.
"""

import base64
import io
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from cpvt_backbones.analysis.attention_maps import (
    attention_layers,
    attention_weights,
    cell_side,
    map_of_query,
    query_at,
)
from cpvt_backbones.analysis.features import principal_colours
from cpvt_backbones.inference import Inferencer
from cpvt_backbones.inference.drawing import OPACITY, class_colours, make_preview
from cpvt_backbones.inference.images import READ_LIMIT, read_image
from cpvt_backbones.inference.inferencer import MAX_PIXELS
from cpvt_backbones.inference.outputs import coco_entries
from cpvt_backbones.inference.predictions import Prediction, decode_mask, resize_classes
from cpvt_backbones.inference.sizes import Scale, fit

from .follow import follow_objects
from .models import Job, Model

SMALLEST_SIDE, LARGEST_FACTOR = (
    64,
    4,
)  # px, and of the image's own size: bounds of the size that the model sees
FACTORS = (0.5, 0.75, 1.0, 1.5, 2.0)  # of the second tab's sizes
COMPARED_SIDE = 1024  # px, the longer side of class maps that are compared
EXPLAINED = (
    128,
    256,
    384,
    512,
    768,
    1024,
)  # px; attention weights take 2 * 4 * heads * tokens^2 bytes


def read(job: Job, file: Path, read_limit: int) -> tuple[np.ndarray, float]:
    """Read the image of a request, (H, W, 3), BGR; also the seconds."""
    job.tell('reading')
    started = time.perf_counter()
    return read_image(file, name='image', read_limit=read_limit), time.perf_counter() - started


def predict(
    job: Job, model: Model, image: np.ndarray, *, size: int | None, score: float, tile: int
) -> dict[str, Any]:
    """Predict at one size."""
    inferencer = model.inferencer(scale=_scale(image, size), tile=tile)
    found, facts = _predict(job, inferencer, image, score)
    job.tell('drawing')
    started = time.perf_counter()
    height, width = image.shape[:2]
    result = dict(facts, **_shown(inferencer, found, height=height, width=width))
    if 'boxes' in found:
        result['coco'] = _coco(inferencer, found, height=height, width=width)
    result['seconds']['draw'] = time.perf_counter() - started
    return result


def compare_sizes(
    job: Job, model: Model, image: np.ndarray, *, size: int | None, score: float, tile: int
) -> dict[str, Any]:
    """Predict at five sizes around one, and follow each object."""
    height, width = image.shape[:2]
    scale = _scale(image, size)
    if size is None:
        size = max(model.inferencer(scale=scale, tile=tile).sizing.size_of(width, height))
    sides = [max(SMALLEST_SIDE, round(factor * size)) for factor in FACTORS]
    sides = [min(side, max(SMALLEST_SIDE, LARGEST_FACTOR * max(height, width))) for side in sides]
    panels, predictions = [], []
    for number, side in enumerate(sides, start=1):
        job.grids.clear()
        inferencer = model.inferencer(scale=(side, side), tile=tile)
        found, facts = _predict(job, inferencer, image, score, part=number, parts=len(sides))
        small = min(1.0, COMPARED_SIDE / max(height, width))
        shown = _shown(
            inferencer,
            found,
            height=max(1, round(small * height)),
            width=max(1, round(small * width)),
        )
        panels.append(dict(facts, **shown))
        predictions.append(found)
    return dict(sizes=panels, objects=_follow(inferencer, panels, predictions))


def explain_attention(
    job: Job, model: Model, image: np.ndarray, *, side: int, x: int, y: int, layer: int
) -> dict[str, Any]:
    """Where each head of a layer attends to from a pixel of the image."""
    seen, images = _explained(job, model, image, side)
    layers = [*attention_layers(model.extractor)]
    if not -len(layers) <= layer < len(layers):
        raise ValueError(
            f'layer must be in [{-len(layers)}, {len(layers) - 1}] for this model, got {layer}'
        )
    (height, width), own = seen.shape[:2], image.shape
    if not (0 <= x < own[1] and 0 <= y < own[0]):
        raise ValueError(f'x and y must lie within {own[1]} x {own[0]} px, got {x}, {y}')
    found = attention_weights(model.extractor, images, layers[layer])
    at = dict(x=x * width // own[1], y=y * height // own[0])
    weights = map_of_query(found, query_at(found, **at, height=height, width=width))[0]
    reach = -(-found.grid[0] // found.key_grid[0]) * cell_side(
        found.grid, height=height, width=width
    )
    rounded = [
        [[float(f'{weight:.3g}') for weight in row] for row in head] for head in weights.tolist()
    ]
    facts = dict(seen=[width, height], grid=found.grid, key_grid=found.key_grid, cell=reach)
    return dict(
        facts, layer=layers[layer].removeprefix('backbone.'), layers=len(layers), heads=rounded
    )


def show_features(job: Job, model: Model, image: np.ndarray, *, side: int) -> dict[str, Any]:
    """Three principal components of each level's features as colours."""
    seen, images = _explained(job, model, image, side)
    height, width = seen.shape[:2]
    with torch.no_grad():
        maps = model.extractor(images)
    levels = []
    for (level,) in maps:
        grid = (level.shape[1], level.shape[2])
        colours = Image.fromarray(np.uint8(principal_colours(level).numpy() * 255 + 0.5))
        cell = cell_side(grid, height=height, width=width)
        levels.append(
            dict(grid=grid, channels=level.shape[0], cell=cell, picture=encode_png(colours))
        )
    return dict(seen=[width, height], levels=levels)


def show_upright(job: Job, image: np.ndarray) -> dict[str, Any]:
    """The image as a browser shows it, for the formats that browsers cannot read."""
    job.tell('drawing')
    height, width = image.shape[:2]
    return dict(
        width=width, height=height, picture=encode_png(Image.fromarray(make_preview(image)))
    )


def encode_png(image: Image.Image, **options: Any) -> str:
    """A PNG file in base64."""
    stream = io.BytesIO()
    image.save(stream, format='PNG', compress_level=1, **options)
    return base64.b64encode(stream.getvalue()).decode()


def _scale(image: np.ndarray, size: int | None) -> Scale:
    height, width = image.shape[:2]
    if size is None:  # tiles that are asked for do not change the size of smaller images
        return None if height * width > MAX_PIXELS else 'config'
    largest = max(SMALLEST_SIDE, LARGEST_FACTOR * max(height, width))
    if not SMALLEST_SIDE <= size <= largest:
        raise ValueError(
            f'size must be in [{SMALLEST_SIDE}, {largest}] px for this image, got {size}'
        )
    return size, size


def _predict(
    job: Job, inferencer: Inferencer, image: np.ndarray, score: float, **part: int
) -> tuple[Prediction, dict[str, Any]]:
    job.tell('forward', **part)
    height, width = image.shape[:2]
    seen, tiles = inferencer.sizing.size_of(width, height), [0]
    if seen[0] * seen[1] > READ_LIMIT:
        raise ValueError(
            f'size: {seen[0]} x {seen[1]} px are more than {READ_LIMIT} pixels; choose a'
            ' smaller one'
        )

    def on_tiles(done: int, total: int) -> None:
        tiles[0] = total
        job.tell('forward', **(part or dict(part=done, parts=total)))

    started = time.perf_counter()
    ((_, result),) = inferencer.stream([image], score_thr=score, on_tiles=on_tiles)
    if result.error is not None:
        raise result.error
    assert result.prediction is not None
    facts: dict[str, Any] = dict(
        width=width, height=height, seen=seen, grids=[*job.grids], tiles=tiles[0]
    )
    facts['task'], facts['note'] = (
        inferencer.predictor.task,
        inferencer.sizing.warning((width, height), seen),
    )
    return result.prediction, dict(facts, seconds=dict(forward=time.perf_counter() - started))


def _shown(inferencer: Inferencer, found: Prediction, *, height: int, width: int) -> dict[str, Any]:
    """What the page draws over an image of this size: boxes, an overlay, and the classes that
    occur.
    """
    names = inferencer.predictor.classes
    if 'class' in found:
        return dict(
            classes=[dict(name=found['class'] or str(found['label']), score=found['score'])]
        )
    if 'seg_map' in found:
        index = resize_classes(found['seg_map'], height=height, width=width)
        # By bands: bincount takes eight bytes a pixel.
        count = len(names) if names else int(index.max()) + 1
        bands = np.array_split(index, -(-index.size // (1 << 22)))
        pixels = np.sum([np.bincount(band.ravel(), minlength=count) for band in bands], axis=0)
        labels = [int(i) for i in np.argsort(-pixels, kind='stable') if pixels[i]]
        numbers = {
            label: dict(pixels=int(pixels[label]), share=float(pixels[label] / index.size))
            for label in labels
        }
    else:
        labels = sorted({*found['labels']}, key=found['labels'].index)  # the best box first
        numbers = {label: dict(count=found['labels'].count(label)) for label in labels}
    colours = class_colours(inferencer.predictor)[: max(len(names or ()) - 1, *labels, 0) + 1]
    named = {
        i: dict(name=names[i] if names else str(i), colour=colours[i].tolist()) for i in labels
    }
    result: dict[str, Any] = dict(classes=[dict(label=i, **named[i], **numbers[i]) for i in labels])
    if 'seg_map' in found:
        result['overlay'] = _overlay(index, colours, np.full(len(colours), round(255 * OPACITY)))
        if len(colours) > 256:
            result['index'] = encode_png(Image.fromarray(index))
        return result
    columns = zip(found['boxes'], found['scores'], found['labels'], strict=True)
    result['boxes'] = [dict(box=box, score=score, label=i, **named[i]) for box, score, i in columns]
    if found.get('masks'):
        index = np.zeros((height, width), np.uint16)  # label + 1, the best on top
        for label, mask in zip(found['labels'][::-1], found['masks'][::-1], strict=True):
            index[decode_mask(mask, height=height, width=width)] = label + 1
        alphas = np.r_[0, np.full(len(colours), round(255 * OPACITY))]
        result['overlay'] = _overlay(index, np.vstack(([[0, 0, 0]], colours)), alphas)
    return result


def _overlay(index: np.ndarray, colours: np.ndarray, alphas: np.ndarray) -> str:
    """A PNG of classes (H, W) in their colours (N, 3) and opacities (N,).

    Its pixels are the classes if N <= 256.
    """
    if len(colours) > 256:
        return encode_png(
            Image.fromarray(np.column_stack((colours, alphas)).astype(np.uint8)[index])
        )
    image = Image.fromarray(index.astype(np.uint8))
    image.putpalette(colours.astype(np.uint8).tobytes())
    return encode_png(image, transparency=alphas.astype(np.uint8).tobytes())


def _coco(inferencer: Inferencer, found: Prediction, *, height: int, width: int) -> dict[str, Any]:
    entries = enumerate(coco_entries(1, found), start=1)
    areas = [(x2 - x1) * (y2 - y1) for x1, y1, x2, y2 in found['boxes']]
    annotations = [dict(id=i, area=areas[i - 1], iscrowd=0, **entry) for i, entry in entries]
    categories = [
        dict(id=i, name=name) for i, name in enumerate(inferencer.predictor.classes or ())
    ]
    images = [dict(id=1, file_name='image', height=height, width=width)]
    return dict(images=images, categories=categories, annotations=annotations)


def _follow(
    inferencer: Inferencer, panels: Sequence[dict[str, Any]], predictions: Sequence[Prediction]
) -> list[dict[str, Any]]:
    """Score of each object at each size: of a box, of the class of the image, or the share of a
    class of its pixels.
    """
    if inferencer.predictor.task == 'detection':
        colours = {entry['label']: entry for panel in panels for entry in panel['classes']}
        return [
            {**one, **{key: colours[one['label']][key] for key in ('name', 'colour')}}
            for one in follow_objects(predictions)
        ]
    found: dict[str, dict[str, Any]] = {}
    for i, panel in enumerate(panels):
        for entry in panel['classes']:
            one = found.setdefault(
                entry['name'],
                dict(name=entry['name'], colour=entry.get('colour'), scores=[None] * len(panels)),
            )
            one['scores'][i] = entry.get('share', entry.get('score'))
    return [*found.values()]


def _explained(
    job: Job, model: Model, image: np.ndarray, side: int
) -> tuple[np.ndarray, torch.Tensor]:
    """The image as the backbone sees it, (H, W, 3), and normalised, (1, 3, H, W)."""
    job.tell('forward')
    seen = fit(image, (side, side))
    return seen, model.extractor.normalise([np.ascontiguousarray(seen[..., ::-1])])

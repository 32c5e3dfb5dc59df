"""Comparison of an exported file with its model at several image sizes and batch sizes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import torch

from cpvt_backbones.export.exported import ExportedModel
from cpvt_backbones.inference.predictors import Predictor
from cpvt_backbones.options import VERIFIED_BATCHES, VERIFIED_SIZES

from .graphs import ExportGraph

FEATURE_TOLERANCE = (
    1e-4  # largest difference of features and scores in fp32; of logits, relative to the largest
)
Images = list[np.ndarray]
Prediction = dict[str, Any]
Reference = Callable[[Images], list[Prediction]]


@dataclass(frozen=True)
class Comparison:
    """The result of one batch, through the file and through PyTorch."""

    batch: int
    height: int
    width: int
    measure: str  # name of the compared quantity
    difference: float  # largest found
    tolerance: float  # largest accepted
    compared: int  # number of values, pixels or boxes
    problem: str = ''  # any other disagreement

    @property
    def agrees(self) -> bool:
        """True if file and model agree within the tolerance."""
        return not self.problem and self.difference <= self.tolerance


def reference_of(graph: ExportGraph, predictor: Predictor) -> Reference:
    """The prediction function of the original model, run by the toolbox's own code.

    It takes (H, W, 3) uint8 BGR images of one size and predicts as :meth:`ExportedModel.predict`
    does. ``predictor`` runs the model that ``graph`` was made from.
    """
    if graph.task == 'features':
        return features_of(graph, predictor.model.backbone)  # type: ignore[attr-defined]
    if graph.task != 'segmentation':
        return predictor.predict
    return lambda images: [
        dict(seg_map=predictor.to_classes(one).cpu().numpy(), logits=one.cpu().numpy())
        for one in predictor.logits(images)
    ]


def features_of(graph: ExportGraph, backbone: torch.nn.Module) -> Reference:
    """The feature extraction of a backbone, as a reference for its graph."""
    backbone = backbone.eval()

    def extract(images: Images) -> list[dict[str, Any]]:
        pixels = torch.from_numpy(np.stack(images).transpose(0, 3, 1, 2)).to(
            graph.preprocess.mean.device
        )
        with torch.no_grad():
            outputs = backbone(graph.preprocess.pad(graph.preprocess.normalise(pixels)))
        return [
            dict(features=[output[i].cpu().numpy() for output in outputs])
            for i in range(len(images))
        ]

    return extract


def verify(
    exported: ExportedModel,
    reference: Reference,
    *,
    sizes: Sequence[tuple[int, int]] = VERIFIED_SIZES,
    batches: Sequence[int] = VERIFIED_BATCHES,
    photos: Sequence[np.ndarray] = (),
) -> Iterator[Comparison]:
    """Compare a file with the model it was exported from, once for each size and batch size.

    Args:
        exported: The file.
        reference: Prediction function of the model, see :func:`reference_of`.
        sizes: Heights and widths in px.
        batches: Batch sizes.
        photos: (H, W, 3) uint8 BGR images, resized and used in turn; generated images if empty.
    """
    rng = np.random.default_rng(0)
    logits = exported.task == 'segmentation' and 'logits' in exported.metadata['outputs']
    kind = 'logits' if logits else exported.task
    measure, tolerance = MEASURES[kind]
    for height, width in sizes:
        for batch in batches:
            images = [_image(rng, photos, i, height, width) for i in range(batch)]
            expected = reference(images)
            if logits:
                found = [dict(logits=one) for one in exported.logits(images).numpy()]
            else:
                found = exported.predict(images)
            try:
                pairs = zip(found, expected, strict=True)
                differences, counts = zip(*(_compare(kind, *pair) for pair in pairs), strict=True)
                # All images of a batch have one size: the mean of their shares is that of their
                # pixels.
                difference = (
                    float(np.mean(differences)) if kind == 'segmentation' else max(differences)
                )
                outcome: tuple[Any, ...] = difference, tolerance, sum(counts)
            except ValueError as error:
                outcome = np.inf, tolerance, 0, str(error)
            yield Comparison(batch, height, width, measure, *outcome)


def _image(
    rng: np.random.Generator, photos: Sequence[np.ndarray], index: int, height: int, width: int
) -> np.ndarray:
    """A photo, or noise of four scales, resized."""
    if photos:
        return cv2.resize(photos[index % len(photos)], (width, height))
    layers = [
        cv2.resize(
            rng.integers(0, 256, (-(-height // cell), -(-width // cell), 3), np.uint8),
            (width, height),
        )
        for cell in (1, 8, 32, 128)
    ]
    return np.mean(layers, axis=0).astype(np.uint8)


def _compare(kind: str, found: Prediction, expected: Prediction) -> tuple[float, int]:
    """Difference of two predictions, and the number of values or boxes.

    ``ValueError`` if more than values differs.
    """
    if kind == 'detection':
        if len(found['boxes']) != len(expected['boxes']):
            raise ValueError(f'{len(found["boxes"])} boxes instead of {len(expected["boxes"])}')
        if not np.isfinite(difference := match_boxes(found, expected)):
            raise ValueError('boxes, labels or scores differ')
        return difference, len(expected['boxes'])
    name = dict(classification='scores', segmentation='seg_map').get(kind, kind)
    maps = [one[name] if kind == 'features' else [one[name]] for one in (found, expected)]
    differences, count = [0.0], 0
    for one, other in zip(*maps, strict=True):
        if one.shape != other.shape:
            raise ValueError(f'shape {one.shape} instead of {other.shape}')
        difference = (one != other).mean() if kind == 'segmentation' else np.abs(one - other).max()
        if not np.isfinite(difference):
            raise ValueError('not finite')
        differences.append(
            float(difference) / (max(1.0, float(np.abs(other).max())) if kind == 'logits' else 1)
        )
        count += other.size
    return max(differences), count


def match_boxes(found: Prediction, expected: Prediction) -> float:
    """Largest coordinate difference in px between two predictions with the same number of boxes.

    Boxes with nearly equal scores may swap places, so each expected box takes the nearest unmatched
    one with its label and, within ``FEATURE_TOLERANCE``, its score; infinite without one. Its mask
    may differ in one pixel in a hundred of the box.
    """
    left, worst = np.ones(len(found['boxes']), dtype=bool), 0.0
    for i, box in enumerate(expected['boxes']):
        score, label = expected['scores'][i], expected['labels'][i]
        gaps = np.abs(found['boxes'] - box).max(axis=1)
        same = (
            left
            & (found['labels'] == label)
            & (np.abs(found['scores'] - score) <= FEATURE_TOLERANCE)
        )
        distance = np.where(same & np.isfinite(gaps), gaps, np.inf)
        nearest = int(distance.argmin())
        if 'masks' in expected and (area := np.prod(box[2:] - box[:2])):
            if np.count_nonzero(found['masks'][nearest] != expected['masks'][i]) > max(
                1, 1e-2 * area
            ):
                return np.inf
        left[nearest] = False
        worst = max(worst, float(distance[nearest]))
    return worst


MEASURES = {  # compared quantity and its tolerance, by task
    'features': ('features', FEATURE_TOLERANCE),
    'logits': ('logits, relative', FEATURE_TOLERANCE),
    'classification': ('scores', FEATURE_TOLERANCE),
    'segmentation': ('share of pixels', 1e-3),
    'detection': ('boxes, px', 1e-2),
}

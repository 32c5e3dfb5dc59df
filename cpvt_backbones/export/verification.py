"""Comparison of an exported file with its model at several image sizes and batch sizes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import torch

from cpvt_backbones.inference.exported import ExportedModel
from cpvt_backbones.inference.predictors import Predictor
from cpvt_backbones.options import VERIFIED_BATCHES, VERIFIED_SIZES

from .graphs import ExportGraph

FEATURE_TOLERANCE = 1e-4
"""Largest absolute difference of features and scores in fp32; for logits, relative to the largest logit."""

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

    It takes (H, W, 3) uint8 BGR images of one size and predicts as :meth:`ExportedModel.predict` does. ``predictor``
    runs the model that ``graph`` was made from.
    """
    if graph.task == 'features':
        return features_of(graph, predictor.model.backbone)  # type: ignore[attr-defined]
    if graph.task != 'segmentation':
        return predictor.predict

    def segment(images: Images) -> list[dict[str, Any]]:
        logits = predictor.logits(images)
        return [dict(seg_map=predictor.to_classes(one).cpu().numpy(), logits=one.cpu().numpy()) for one in logits]

    return segment


def features_of(graph: ExportGraph, backbone: torch.nn.Module) -> Reference:
    """The feature extraction of a backbone, as a reference for its graph."""
    backbone = backbone.eval()

    def extract(images: Images) -> list[dict[str, Any]]:
        pixels = torch.from_numpy(np.stack(images).transpose(0, 3, 1, 2)).to(graph.preprocess.mean.device)
        with torch.no_grad():
            outputs = backbone(graph.preprocess.pad(graph.preprocess.normalise(pixels)))
        return [dict(features=[output[i].cpu().numpy() for output in outputs]) for i in range(len(images))]

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
    measure, tolerance, compare = MEASURES['logits' if logits else exported.task]
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
                differences, counts = zip(*(compare(*pair) for pair in pairs), strict=True)
            except _MismatchError as error:
                yield Comparison(batch, height, width, measure, np.inf, tolerance, 0, str(error))
                continue
            # All images of a batch have one size: the mean of their shares is that of their pixels.
            difference = float(np.mean(differences)) if compare is _compare_maps else max(differences)
            yield Comparison(batch, height, width, measure, difference, tolerance, sum(counts))


def _image(rng: np.random.Generator, photos: Sequence[np.ndarray], index: int, height: int, width: int) -> np.ndarray:
    """A photo, or noise of four scales, resized."""
    if photos:
        return cv2.resize(photos[index % len(photos)], (width, height))
    layers = [
        cv2.resize(rng.integers(0, 256, (-(-height // cell), -(-width // cell), 3), np.uint8), (width, height))
        for cell in (1, 8, 32, 128)
    ]
    return np.mean(layers, axis=0).astype(np.uint8)


class _MismatchError(Exception):
    """Two predictions that differ in more than values."""


def _check_shapes(found: np.ndarray, expected: np.ndarray) -> None:
    if found.shape != expected.shape:
        raise _MismatchError(f'shape {found.shape} instead of {expected.shape}')


def _compare_arrays(found: np.ndarray, expected: np.ndarray) -> tuple[float, int]:
    _check_shapes(found, expected)
    difference = float(np.abs(found - expected).max())
    if not np.isfinite(difference):
        raise _MismatchError('not finite')
    return difference, expected.size


def _compare_features(found: Prediction, expected: Prediction) -> tuple[float, int]:
    levels = [_compare_arrays(*maps) for maps in zip(found['features'], expected['features'], strict=True)]
    return max(difference for difference, _ in levels), sum(count for _, count in levels)


def _compare_logits(found: Prediction, expected: Prediction) -> tuple[float, int]:
    difference, count = _compare_arrays(found['logits'], expected['logits'])
    return difference / max(1.0, float(np.abs(expected['logits']).max())), count


def _compare_scores(found: Prediction, expected: Prediction) -> tuple[float, int]:
    return _compare_arrays(found['scores'], expected['scores'])


def _compare_maps(found: Prediction, expected: Prediction) -> tuple[float, int]:
    _check_shapes(found['seg_map'], expected['seg_map'])
    return float((found['seg_map'] != expected['seg_map']).mean()), expected['seg_map'].size


def _compare_boxes(found: Prediction, expected: Prediction) -> tuple[float, int]:
    if len(found['boxes']) != len(expected['boxes']):
        raise _MismatchError(f'{len(found["boxes"])} boxes instead of {len(expected["boxes"])}')
    difference = match_boxes(found, expected)
    if not np.isfinite(difference):
        raise _MismatchError('boxes, labels or scores differ')
    return difference, len(expected['boxes'])


def match_boxes(found: Prediction, expected: Prediction) -> float:
    """Largest coordinate difference in px between two predictions with the same number of boxes.

    Boxes with nearly equal scores may swap places, so each expected box takes the nearest unmatched one with its label
    and, within ``FEATURE_TOLERANCE``, its score; infinite without one.

    Args:
        found, expected: ``boxes``, ``scores`` and ``labels`` of one image.
    """
    left = np.ones(len(found['boxes']), dtype=bool)
    worst = 0.0
    for box, score, label in zip(expected['boxes'], expected['scores'], expected['labels'], strict=True):
        gaps = np.abs(found['boxes'] - box).max(axis=1)
        same = left & (found['labels'] == label) & (np.abs(found['scores'] - score) <= FEATURE_TOLERANCE)
        distance = np.where(same & np.isfinite(gaps), gaps, np.inf)
        nearest = int(distance.argmin())
        left[nearest] = False
        worst = max(worst, float(distance[nearest]))
    return worst


MEASURES: dict[str, tuple[str, float, Callable[[Prediction, Prediction], tuple[float, int]]]] = {
    'features': ('features', FEATURE_TOLERANCE, _compare_features),
    'logits': ('logits, relative', FEATURE_TOLERANCE, _compare_logits),
    'classification': ('scores', FEATURE_TOLERANCE, _compare_scores),
    'segmentation': ('share of pixels', 1e-3, _compare_maps),
    'detection': ('boxes, px', 1e-2, _compare_boxes),
}
"""Compared quantity and its tolerance by task, and the function that returns difference and number of values."""

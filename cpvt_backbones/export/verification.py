"""Comparison of an exported file with its model at several image sizes and batch sizes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import torch

from cpvt_backbones.inference.exported import ExportedModel
from cpvt_backbones.inference.predictors import Predictor

from .graphs import ExportGraph

SIZES = ((17, 33), (224, 224), (333, 517))
"""Default heights and widths in px: below one patch row, the usual size, and one that no stride divides."""
BATCHES = (1, 3)

FEATURE_TOLERANCE = 1e-4
"""Largest absolute difference of features and scores in fp32; for logits, relative to the largest logit."""
BOX_TOLERANCE = 1e-2
"""Largest difference of a box coordinate in px."""
PIXEL_SHARE = 0.999
"""Least share of pixels with the same class."""

Images = list[np.ndarray]
Reference = Callable[[Images], list[dict[str, Any]]]
Pairs = Sequence[tuple[dict[str, Any], dict[str, Any]]]


@dataclass(frozen=True)
class Comparison:
    """The result of one batch, through the file and through PyTorch.

    Attributes:
        batch, height, width: Shape of the batch.
        measure: Name of the compared quantity.
        difference: Largest difference found.
        tolerance: Largest difference accepted.
        compared: Number of values, pixels or boxes compared.
        problem: Any other disagreement; empty if there is none.
    """

    batch: int
    height: int
    width: int
    measure: str
    difference: float
    tolerance: float
    compared: int
    problem: str = ''

    @property
    def agrees(self) -> bool:
        """True if file and model agree within the tolerance."""
        return not self.problem and self.difference <= self.tolerance


def reference_of(graph: ExportGraph, predictor: Predictor) -> Reference:
    """The prediction function of the original model, run by the toolbox's own code.

    Args:
        graph: The exported graph.
        predictor: Runs the model that the graph was made from.

    Returns:
        A function from (H, W, 3) uint8 BGR images of one size to predictions as :class:`ExportedModel` gives them.
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
    sizes: Sequence[tuple[int, int]] = SIZES,
    batches: Sequence[int] = BATCHES,
    photos: Sequence[np.ndarray] = (),
) -> Iterator[Comparison]:
    """Compare a file with the model it was exported from.

    Args:
        exported: The file.
        reference: Prediction function of the model, see :func:`reference_of`.
        sizes: Heights and widths in px.
        batches: Batch sizes.
        photos: (H, W, 3) uint8 BGR images, resized and used in turn; generated images if empty.

    Yields:
        One :class:`Comparison` for each size and batch size.
    """
    rng = np.random.default_rng(0)
    for height, width in sizes:
        for batch in batches:
            images = [_image(rng, photos, i, height, width) for i in range(batch)]
            expected = reference(images)
            if exported.task == 'segmentation' and 'logits' in exported.metadata['outputs']:
                found = [dict(logits=logits) for logits in exported.logits(images).numpy()]
                compare: Callable[[Pairs], Outcome] = _compare_logits
            else:
                found, compare = exported.predict(images), _COMPARE[exported.task]
            yield Comparison(batch, height, width, *compare(list(zip(found, expected, strict=True))))


def _image(rng: np.random.Generator, photos: Sequence[np.ndarray], index: int, height: int, width: int) -> np.ndarray:
    """A photo, or noise of four scales, resized."""
    if photos:
        return cv2.resize(photos[index % len(photos)], (width, height))
    layers = [
        cv2.resize(rng.integers(0, 256, (-(-height // cell), -(-width // cell), 3), np.uint8), (width, height))
        for cell in (1, 8, 32, 128)
    ]
    return np.mean(layers, axis=0).astype(np.uint8)


Outcome = tuple[str, float, float, int, str]
"""The last five attributes of a :class:`Comparison`."""


def _compare_arrays(pairs: Sequence[tuple[np.ndarray, np.ndarray]], measure: str, *, relative: bool = False) -> Outcome:
    worst, compared = 0.0, 0
    for found, expected in pairs:
        if found.shape != expected.shape:
            return measure, np.inf, FEATURE_TOLERANCE, compared, f'shape {found.shape} instead of {expected.shape}'
        difference = float(np.abs(found - expected).max())
        if not np.isfinite(difference):
            return measure, np.inf, FEATURE_TOLERANCE, compared, 'not finite'
        worst = max(worst, difference / max(1.0, float(np.abs(expected).max())) if relative else difference)
        compared += expected.size
    return measure, worst, FEATURE_TOLERANCE, compared, ''


def _compare_features(pairs: Pairs) -> Outcome:
    arrays = [maps for found, expected in pairs for maps in zip(found['features'], expected['features'], strict=True)]
    return _compare_arrays(arrays, 'features')


def _compare_logits(pairs: Pairs) -> Outcome:
    arrays = [(found['logits'], expected['logits']) for found, expected in pairs]
    return _compare_arrays(arrays, 'logits, relative', relative=True)


def _compare_scores(pairs: Pairs) -> Outcome:
    return _compare_arrays([(found['scores'], expected['scores']) for found, expected in pairs], 'scores')


def _compare_maps(pairs: Pairs) -> Outcome:
    different = compared = 0
    for found, expected in pairs:
        a, b = found['seg_map'], expected['seg_map']
        if a.shape != b.shape:
            return 'share of pixels', 1.0, 1 - PIXEL_SHARE, compared, f'shape {a.shape} instead of {b.shape}'
        different += int((a != b).sum())
        compared += b.size
    return 'share of pixels', different / compared, 1 - PIXEL_SHARE, compared, ''


def _compare_boxes(pairs: Pairs) -> Outcome:
    worst, compared = 0.0, 0
    for found, expected in pairs:
        if len(found['boxes']) != len(expected['boxes']):
            counts = f'{len(found["boxes"])} boxes instead of {len(expected["boxes"])}'
            return 'boxes, px', np.inf, BOX_TOLERANCE, compared, counts
        worst = max(worst, match_boxes(found, expected))
        compared += len(expected['boxes'])
    return 'boxes, px', worst, BOX_TOLERANCE, compared, '' if np.isfinite(worst) else 'boxes, labels or scores differ'


def match_boxes(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    """Largest coordinate difference between two predictions with the same number of boxes.

    Boxes with nearly equal scores may swap places, so each expected box takes the nearest unmatched one.

    Args:
        found, expected: ``boxes``, ``scores`` and ``labels`` of one image.

    Returns:
        The largest difference in px; infinite if a box has no counterpart with its label and, within
        ``FEATURE_TOLERANCE``, its score.
    """
    left = np.ones(len(found['boxes']), dtype=bool)
    worst = 0.0
    for box, score, label in zip(expected['boxes'], expected['scores'], expected['labels'], strict=True):
        same = left & (found['labels'] == label) & (np.abs(found['scores'] - score) <= FEATURE_TOLERANCE)
        if not same.any():
            return np.inf
        distance = np.where(same, np.abs(found['boxes'] - box).max(axis=1), np.inf)
        nearest = int(distance.argmin())
        if not np.isfinite(distance[nearest]):
            return np.inf
        left[nearest] = False
        worst = max(worst, float(distance[nearest]))
    return worst


_COMPARE: dict[str, Callable[[Pairs], Outcome]] = {
    'features': _compare_features,
    'classification': _compare_scores,
    'segmentation': _compare_maps,
    'detection': _compare_boxes,
}

"""Whether a file computes what the model does, at many sizes, before anybody relies on it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cpvt_backbones.inference.exported import ExportedModel
from cpvt_backbones.inference.predictors import Predictor

from .graphs import ExportGraph

SIZES = ((17, 33), (224, 224), (333, 517))
"""Height and width in px: smaller than a patch row, the usual one, and one that no stride divides."""
BATCHES = (1, 3)

FEATURE_TOLERANCE = 1e-4
"""Largest absolute difference of features and scores, fp32; of logits, relative to the largest of them."""
BOX_TOLERANCE = 1e-2
"""px."""
PIXEL_SHARE = 0.999
"""Share of pixels whose class agrees."""

Images = list[np.ndarray]
Reference = Callable[[Images], list[dict[str, Any]]]


@dataclass(frozen=True)
class Comparison:
    """One batch, through the file and through PyTorch.

    Attributes:
        batch, height, width: Its shape.
        measure: What ``difference`` is.
        difference: The largest found.
        tolerance: What is allowed.
        compared: How many values, pixels or boxes.
        problem: What else is wrong; empty if nothing is.
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
        """Whether file and model do."""
        return not self.problem and self.difference <= self.tolerance


def reference_of(graph: ExportGraph, predictor: Predictor) -> Reference:
    """What the model itself predicts, by the toolbox's own code from the images on.

    Args:
        graph: What is exported.
        predictor: Runs the model that it was made of.

    Returns:
        Callable: (H, W, 3) uint8 BGR images of one size to predictions as :class:`ExportedModel` gives them.
    """
    if graph.task == 'features':
        return features_of(graph, predictor.model.backbone)  # type: ignore[attr-defined]
    if graph.task != 'segmentation':
        return predictor.predict

    def segment(images: Images) -> list[dict[str, Any]]:
        logits = predictor.logits(images)
        return [dict(index_map=predictor.to_classes(one).cpu().numpy(), logits=one.cpu().numpy()) for one in logits]

    return segment


def features_of(graph: ExportGraph, backbone: torch.nn.Module) -> Reference:
    """What a backbone gives, as a reference to verify its graph by."""
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
    """Compare a file with the model it was made of.

    Args:
        exported: The file.
        reference: What the model predicts for a batch, see :func:`reference_of`.
        sizes: Heights and widths in px.
        batches: How many images of a size to predict on at once.
        photos: (H, W, 3) uint8 BGR images to resize and use, in turns; generated ones if there are none.

    Yields:
        Comparison: One for each size and batch.
    """
    rng = np.random.default_rng(0)
    for height, width in sizes:
        for batch in batches:
            images = [_image(rng, photos, i, height, width) for i in range(batch)]
            pairs = list(zip(exported.predict(images), reference(images), strict=True))
            compare = _COMPARE[exported.task]
            if exported.task == 'segmentation' and 'logits' in exported.metadata['outputs']:
                found = exported.logits(images).numpy()
                pairs = [
                    (dict(features=[f]), dict(features=[e['logits']])) for f, (_, e) in zip(found, pairs, strict=True)
                ]
                compare = _compare_logits
            yield Comparison(batch, height, width, *compare(pairs))


def _image(rng: np.random.Generator, photos: Sequence[np.ndarray], index: int, height: int, width: int) -> np.ndarray:
    """A photo, or noise of four scales, brought to a size."""
    if photos:
        return _resize(photos[index % len(photos)], height, width)
    layers = [
        _resize(rng.integers(0, 256, (-(-height // cell), -(-width // cell), 3), np.uint8), height, width)
        for cell in (1, 8, 32, 128)
    ]
    return np.mean(layers, axis=0).astype(np.uint8)


def _resize(image: np.ndarray, height: int, width: int) -> np.ndarray:
    import cv2

    return cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)


Pairs = Sequence[tuple[dict[str, Any], dict[str, Any]]]
Outcome = tuple[str, float, float, int, str]


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
    arrays = [(found['features'][0], expected['features'][0]) for found, expected in pairs]
    return _compare_arrays(arrays, 'logits, relative', relative=True)


def _compare_scores(pairs: Pairs) -> Outcome:
    return _compare_arrays([(found['scores'], expected['scores']) for found, expected in pairs], 'scores')


def _compare_maps(pairs: Pairs) -> Outcome:
    different = compared = 0
    for found, expected in pairs:
        if found['index_map'].shape != expected['index_map'].shape:
            shapes = f'shape {found["index_map"].shape} instead of {expected["index_map"].shape}'
            return 'share of pixels', 1.0, 1 - PIXEL_SHARE, compared, shapes
        different += int((found['index_map'] != expected['index_map']).sum())
        compared += expected['index_map'].size
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
    """How far apart two predictions of as many boxes are.

    Boxes whose scores differ in the last digit may have changed places, so each looks among all that are left.

    Args:
        found, expected: ``boxes``, ``scores`` and ``labels`` of one image.

    Returns:
        float: Largest difference of a coordinate in px between a box and the one it is paired with; infinite if a box
        has none of its label and, up to ``FEATURE_TOLERANCE``, its score.
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

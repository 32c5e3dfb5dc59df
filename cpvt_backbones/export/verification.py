"""Compares an exported file with its model at several image sizes and batch sizes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cpvt_backbones.errors import InputError
from cpvt_backbones.export.exported import ExportedModel
from cpvt_backbones.inference.predictors import Predictor
from cpvt_backbones.inference.sizes import resize
from cpvt_backbones.plain import VERIFIED_BATCHES, VERIFIED_SIZES

from .graphs import ExportGraph
from .masks import LastPrediction, MaskQueries

# maximum difference of features and scores in fp32; for logits, relative to the largest
FEATURE_TOLERANCE = 1e-4
# compared quantity and its tolerance, by task
MEASURES = {
    'features': ('features', FEATURE_TOLERANCE),
    'logits': ('logits, relative', FEATURE_TOLERANCE),
    'classification': ('scores', FEATURE_TOLERANCE),
    'segmentation': ('share of pixels', 1e-3),
    'detection': ('boxes, px', 1e-2),
}
Images = list[np.ndarray]
Prediction = dict[str, Any]
Reference = Callable[[Images], list[Prediction]]


@dataclass(frozen=True)
class Comparison:
    """Result of :func:`verify` for one image size and batch size.

    Attributes:
        batch: Number of images.
        height: Height of the images in px.
        width: Width of the images in px.
        measure: Compared quantity: ``'features'``, ``'logits, relative'``, ``'scores'``,
            ``'share of pixels'`` (that differ) or ``'boxes, px'``.
        difference: Largest difference between the file and the model; for ``'share of pixels'`` the
            share itself.
        tolerance: Maximum accepted difference.
        compared: Number of values, pixels or boxes that were compared.
        problem: Any other disagreement, such as another number of boxes; empty without one.
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
        """``True`` if file and model agree within the tolerance, or if neither finds anything."""
        return not self.problem and self.difference <= self.tolerance

    @property
    def verdict(self) -> str:
        """Result in words."""
        if not self.agrees:
            return f'DIFFERS {self.problem}'.rstrip()
        return 'agrees' if self.compared else 'nothing was found, so nothing was compared'


def reference_of(graph: ExportGraph, predictor: Predictor) -> Reference:
    """Return the prediction function of the original model, for :func:`verify`.

    Args:
        graph: The graph that the file was written from.
        predictor: Runs the model of the graph with the toolbox's own code.

    Returns:
        A function of images of the same size, (H, W, in_channels) uint8, that returns the same as
        :meth:`ExportedModel.predict`.
    """
    if isinstance(graph, MaskQueries):
        return features_of(graph, LastPrediction(predictor.model))  # type: ignore[attr-defined]
    if graph.task == 'features':
        return features_of(graph, predictor.model.backbone)  # type: ignore[attr-defined]
    if graph.task != 'segmentation':
        return predictor.predict

    def segment(images: Images) -> list[Prediction]:
        maps = predictor.logits(images)
        return [
            dict(seg_map=predictor.to_classes(one).cpu().numpy(), logits=one.cpu().numpy())
            for one in maps
        ]

    return segment


def features_of(graph: ExportGraph, backbone: torch.nn.Module) -> Reference:
    """Return the feature extraction of a backbone, for :func:`verify`.

    Args:
        graph: The graph that the file was written from.
        backbone: The backbone of the graph.

    Returns:
        A function of images of the same size, (H, W, in_channels) uint8, that returns ``features``
        for each.
    """
    backbone = backbone.eval()

    def extract(images: Images) -> list[Prediction]:
        batch = np.stack(images).transpose(0, 3, 1, 2)
        pixels = torch.from_numpy(batch).to(graph.preprocess.mean.device)
        with torch.no_grad():
            outputs = backbone(graph.preprocess.pad(graph.preprocess.normalise(pixels)))
        arrays = [output.cpu().numpy() for output in outputs]
        return [dict(features=[array[i] for array in arrays]) for i in range(len(images))]

    return extract


def finds_something(
    reference: Reference,
    *,
    channels: int = 3,
    sizes: Sequence[tuple[int, int]] = VERIFIED_SIZES,
    batches: Sequence[int] = VERIFIED_BATCHES,
    photos: Sequence[np.ndarray] = (),
) -> bool:
    """``True`` if a detector finds a box in :func:`verify`, which compares nothing without boxes.

    Args:
        reference: Prediction function of the detector; see :func:`reference_of`.
        channels: Number of channels of the images.
        sizes: See :func:`verify`.
        batches: See :func:`verify`.
        photos: See :func:`verify`.
    """
    for images in _batches(channels, sizes, batches, photos):
        if any(len(found['boxes']) for found in reference(images)):
            return True
    return False


def verify(
    exported: ExportedModel,
    reference: Reference,
    *,
    sizes: Sequence[tuple[int, int]] = VERIFIED_SIZES,
    batches: Sequence[int] = VERIFIED_BATCHES,
    photos: Sequence[np.ndarray] = (),
) -> Iterator[Comparison]:
    """Compare an exported file with its model, once for each image size and batch size.

    Args:
        exported: The file.
        reference: Prediction function of the model; see :func:`reference_of`.
        sizes: (height, width) of the images in px.
        batches: Batch sizes.
        photos: Images (H, W, in_channels), uint8, that are resized and used in turn; noise without
            photos.

    Yields:
        One comparison per image size and batch size.

    Examples:
        From the config of a model to a verified file:

        >>> from cpvt_backbones.export import ExportedModel
        >>> from cpvt_backbones.export import export, graph_of
        >>> from cpvt_backbones.export import reference_of, verify
        >>> from cpvt_backbones.inference import ToolboxPredictor, read_config
        >>> from cpvt_backbones.weights import find_shipped
        >>> shipped = find_shipped('cpvt_tiny_gap-imagenette')
        >>> predictor = ToolboxPredictor(
        ...     cfg=read_config(shipped.config_file),  # or 'config.py'
        ...     checkpoint=shipped.name,  # or 'model.pth'
        ...     device='cpu',
        ... )
        >>> graph = graph_of(predictor.model)
        >>> stored = export(graph, 'model.pt2', format='torch_export')
        >>> exported = ExportedModel('model.pt2', device='cpu')
        >>> reference = reference_of(graph, predictor)
        >>> for found in verify(exported, reference, sizes=[(64, 80)]):
        ...     print(found.batch, found.verdict)
        1 agrees
        3 agrees
    """
    logits = exported.task == 'segmentation' and 'logits' in exported.metadata['outputs']
    kind = 'logits' if logits else exported.task
    measure, tolerance = MEASURES[kind]
    for images in _batches(exported.in_channels, sizes, batches, photos):
        expected = reference(images)
        if logits:
            found = [dict(logits=one) for one in exported.logits(images).numpy()]
        else:
            found = exported.predict(images)
        height, width = images[0].shape[:2]
        case = len(images), height, width, measure
        try:
            results = [_compare(kind, *pair) for pair in zip(found, expected, strict=True)]
        except ValueError as error:
            yield Comparison(*case, np.inf, tolerance, 0, str(error))
            continue
        differences = [difference for difference, _ in results]
        # All images of a batch have one size, so the mean of shares is the share of all.
        difference = np.mean(differences) if kind == 'segmentation' else max(differences)
        count = sum(count for _, count in results)
        yield Comparison(*case, float(difference), tolerance, count)


def _batches(
    channels: int,
    sizes: Sequence[tuple[int, int]],
    batches: Sequence[int],
    photos: Sequence[np.ndarray],
) -> Iterator[Images]:
    rng = np.random.default_rng(0)
    for height, width in sizes:
        for batch in batches:
            shape = height, width, channels
            if photos:
                chosen = [photos[i % len(photos)] for i in range(batch)]
                yield [resize(photo, (width, height)) for photo in chosen]
            else:
                yield [_noise(rng, shape) for _ in range(batch)]


def _noise(rng: np.random.Generator, shape: tuple[int, int, int]) -> np.ndarray:
    """Generate noise at four scales, (H, W, C)."""
    height, width, channels = shape
    layers = []
    for cell in (1, 8, 32, 128):
        # Sides are rounded up to whole cells.
        cells = rng.integers(0, 256, (-(-height // cell), -(-width // cell), channels), np.uint8)
        layers.append(resize(cells, (width, height)))
    return np.mean(layers, axis=0).astype(np.uint8)


def _compare(kind: str, found: Prediction, expected: Prediction) -> tuple[float, int]:
    """Return the difference of two predictions, and the number of values or boxes.

    Raises:
        ValueError: Shapes or boxes differ, or values are not finite.
    """
    if kind == 'detection':
        return _compare_boxes(found, expected)
    if kind == 'features':
        pairs = list(zip(found['features'], expected['features'], strict=True))
    else:
        name = dict(classification='scores', segmentation='seg_map', logits='logits')[kind]
        pairs = [(found[name], expected[name])]
    differences = [_difference(kind, one, other) for one, other in pairs]
    return max(differences, default=0.0), sum(other.size for _, other in pairs)


def _difference(kind: str, found: np.ndarray, expected: np.ndarray) -> float:
    if found.shape != expected.shape:
        raise InputError(f'shape {found.shape} instead of {expected.shape}')
    if kind == 'segmentation':
        return float((found != expected).mean())
    difference = float(np.abs(found - expected).max())
    if not np.isfinite(difference):
        raise InputError('not finite')
    return difference / max(1.0, float(np.abs(expected).max())) if kind == 'logits' else difference


def _compare_boxes(found: Prediction, expected: Prediction) -> tuple[float, int]:
    count = len(expected['boxes'])
    if len(found['boxes']) != count:
        raise InputError(f'{len(found["boxes"])} boxes instead of {count}')
    difference = match_boxes(found, expected)
    if not np.isfinite(difference):
        raise InputError('boxes, labels or scores differ')
    return difference, count


def match_boxes(found: Prediction, expected: Prediction) -> float:
    """Return the maximum coordinate difference in px between predictions of as many boxes.

    Boxes with nearly equal scores may change their order. So each expected box is matched to the
    nearest free box with its label and, within ``FEATURE_TOLERANCE``, its score. The result is
    infinite if there is none. Masks may differ in one of a hundred pixels of the box.
    """
    free, worst = np.ones(len(found['boxes']), dtype=bool), 0.0
    for i, box in enumerate(expected['boxes']):
        gaps = np.abs(found['boxes'] - box).max(axis=1)
        same_label = found['labels'] == expected['labels'][i]
        same_score = np.abs(found['scores'] - expected['scores'][i]) <= FEATURE_TOLERANCE
        matches = free & same_label & same_score & np.isfinite(gaps)
        distance = np.where(matches, gaps, np.inf)
        nearest = int(distance.argmin())
        if 'masks' in expected:
            differing = np.count_nonzero(found['masks'][nearest] != expected['masks'][i])
            area = float(np.prod(box[2:] - box[:2]))
            if area and differing > max(1, 1e-2 * area):
                return np.inf
        free[nearest] = False
        worst = max(worst, float(distance[nearest]))
    return worst

"""int8 copies of ONNX files, and their agreement with the originals.

A copy is for one runtime. For ONNX Runtime, inputs of matrix products are quantised by the range of
each input ("dynamic"). For OpenVINO, their ranges are measured on images beforehand ("static"), and
dense convolutions are quantised too. PEG, other depthwise convolutions, attention and norms stay in
float32.
"""

import itertools
import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from cpvt_backbones.checks import check_choice
from cpvt_backbones.errors import InputError
from cpvt_backbones.images import ImageInput
from cpvt_backbones.images.finding import each_image
from cpvt_backbones.images.windows import open_image
from cpvt_backbones.inference.inferencer import Inferencer
from cpvt_backbones.inference.predictions import Prediction
from cpvt_backbones.plain import MAX_PIXELS, RUNTIMES, TILE_SIZE

from .exported import ExportedModel
from .metadata import METADATA

if TYPE_CHECKING:
    import onnx

MIN_AGREEMENT = 0.98
MAX_CALIBRATION_IMAGES = 100
AGREEMENTS = {
    'classification': 'images of the same class',
    'segmentation': 'pixels of the same class',
    'detection': 'boxes that both find (same class, IoU >= 0.5)',
}


@dataclass(frozen=True)
class Agreement:
    """Agreement of two files on one or more images."""

    same: float
    total: float

    @property
    def share(self) -> float:
        """Share that agrees, in [0, 1]; 1 if there is nothing to compare."""
        return self.same / self.total if self.total else 1.0


def quantise(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    runtime: str = RUNTIMES[0],
    calibration: Iterable[np.ndarray] = (),
) -> None:
    """Write an int8 copy of an ONNX file, by onnxruntime's quantisation.

    Each output channel of a weight has its own scale. Weights have 7 bits, because processors
    without VNNI add pairs of products in 16 bits, which would overflow with 8.

    Args:
        path: File of :func:`~cpvt_backbones.export.formats.export`, in float32.
        out: The copy.
        runtime: ``'onnxruntime'`` or ``'openvino'``, the runtime in which the copy is fast. It also
            runs in the other one.
        calibration: Inputs (B, C, H, W) for OpenVINO; see :func:`calibration_inputs`.

    Raises:
        ValueError: The file has no matrix product with weights, or there is no calibration for
            OpenVINO.
    """
    import onnx

    check_choice(RUNTIMES[:2], runtime=runtime)
    model = onnx.load(path)
    stored = {entry.key: entry.value for entry in model.metadata_props}
    products, convolutions = _products(model), _dense_convolutions(model)
    if not products:
        raise InputError(f'path: {str(path)!r} has no product of a matrix with weights')
    # onnxruntime transposes weights and infers the shapes again. Before 1.32, the old shapes of
    # these weights contradict the new ones.
    weights = {one.name for one in model.graph.initializer}
    shapes = [one for one in model.graph.value_info if one.name not in weights]
    del model.graph.value_info[:]
    model.graph.value_info.extend(shapes)
    # onnxruntime advises to preprocess the model, which torch's exporter has done.
    logging.disable(logging.WARNING)
    try:
        if runtime == RUNTIMES[0]:
            _quantise_dynamic(model, out, products)
        else:
            _quantise_static(model, out, products + convolutions, iter(calibration))
    finally:
        logging.disable(logging.NOTSET)
    written = onnx.load(out)
    del written.metadata_props[:]
    metadata = json.loads(stored[METADATA]) | dict(int8=runtime)
    written.metadata_props.add(key=METADATA, value=json.dumps(metadata))
    onnx.save(written, out)


def _products(model: 'onnx.ModelProto') -> list[str]:
    """List the products of activations with weights; products in attention have no weights."""
    weights = {one.name for one in model.graph.initializer}
    return [
        node.name
        for node in model.graph.node
        if node.op_type in ('MatMul', 'Gemm') and node.input[1] in weights
    ]


def _dense_convolutions(model: 'onnx.ModelProto') -> list[str]:
    """List the convolutions with one group.

    PEG has one group per channel, and quantising it costs accuracy.
    """
    weights = {one.name for one in model.graph.initializer}
    names = []
    for node in model.graph.node:
        groups = next((one.i for one in node.attribute if one.name == 'group'), 1)
        if node.op_type == 'Conv' and groups == 1 and node.input[1] in weights:
            names.append(node.name)
    return names


def _quantise_dynamic(
    model: 'onnx.ModelProto', out: str | os.PathLike[str], nodes: list[str]
) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        model,
        out,
        nodes_to_quantize=nodes,
        per_channel=True,
        reduce_range=True,
        weight_type=QuantType.QInt8,
    )


def _quantise_static(
    model: 'onnx.ModelProto',
    out: str | os.PathLike[str],
    nodes: list[str],
    inputs: Iterator[np.ndarray],
) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    if (first := next(inputs, None)) is None:
        raise InputError(f'calibration must have an image with runtime={RUNTIMES[1]!r}, got none')

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._inputs = itertools.chain([first], inputs)

        def get_next(self) -> dict[str, np.ndarray] | None:
            images = next(self._inputs, None)
            return None if images is None else {'images': images}

    rounded = ['MatMul', 'Gemm', 'Conv']
    options: dict[str, Any] = dict(
        # The products need no correction for a zero point.
        ActivationSymmetric=True,
        OpTypesToExcludeOutputQuantization=rounded,
    )
    quantize_static(
        model,
        out,
        Reader(),
        op_types_to_quantize=rounded,
        nodes_to_quantize=nodes,
        per_channel=True,
        reduce_range=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        extra_options=options,
    )


def split_images(
    images: Sequence[ImageInput],
) -> tuple[list[ImageInput], list[ImageInput]]:
    """Split images for calibration and comparison; agreement on the former would be too high.

    Every second image is for calibration, at most ``MAX_CALIBRATION_IMAGES``.
    """
    images = list(each_image(images))
    calibration = list(range(1, len(images), 2))[:MAX_CALIBRATION_IMAGES]
    others = sorted(set(range(len(images))) - set(calibration))
    return [images[i] for i in calibration], [images[i] for i in others]


def calibration_inputs(model: ExportedModel, images: Sequence[ImageInput]) -> Iterator[np.ndarray]:
    """Return inputs (1, C, H, W) of a file that takes pixels, at its scale.

    For images that run in tiles, it is the first tile.

    Args:
        model: The file in float32.
        images: Image files or arrays.

    Raises:
        ImageError: An image cannot be read.
    """
    sizing = Inferencer(predictor=model).sizing
    for i, image in enumerate(each_image(images)):
        name = f'array {i}' if isinstance(image, np.ndarray) else str(image)
        opened = open_image(image, name=name, read_limit=None, value_range=model.value_range)
        scaled = sizing(opened)
        height, width = scaled.shape[:2]
        if prod((height, width)) > MAX_PIXELS:
            height = width = TILE_SIZE
        yield np.ascontiguousarray(scaled[:height, :width].transpose(2, 0, 1)[None])


def compare(
    copy: ExportedModel,
    original: ExportedModel,
    images: Sequence[ImageInput],
    *,
    score_thr: float = 0.3,
) -> Iterator[Agreement]:
    """Compare the predictions of two files, image by image, at the scale of the files.

    Args:
        copy: The int8 file.
        original: The float32 file. Both hold a detector, segmentor or classifier.
        images: Image files or arrays.
        score_thr: Minimum score of a box.

    Raises:
        ImageError: An image cannot be read.
    """
    first, second = Inferencer(predictor=copy), Inferencer(predictor=original)
    for image in each_image(images):
        found, _ = first(image, score_thr=score_thr)
        expected, _ = second(image, score_thr=score_thr)
        yield agreement_of(found, expected)


def total_of(agreements: Sequence[Agreement]) -> Agreement:
    """Add up the agreements of all images; each pixel, box or image counts once."""
    return Agreement(sum(one.same for one in agreements), sum(one.total for one in agreements))


def agreement_of(found: Prediction, expected: Prediction) -> Agreement:
    """Count equal pixels of class maps, equal classes of images, or matching boxes."""
    if 'seg_map' in expected:
        same = found['seg_map'] == expected['seg_map']
        return Agreement(int(same.sum()), same.size)
    if 'label' in expected:
        return Agreement(int(found['label'] == expected['label']), 1)
    matched = _count_matches(found, expected)
    return Agreement(2 * matched, len(found['boxes']) + len(expected['boxes']))


def _count_matches(found: Prediction, expected: Prediction) -> int:
    """Count pairs of boxes with the same class and IoU >= 0.5; a box is in one pair, best first."""
    overlaps = _overlaps(found['boxes'], expected['boxes'])
    same_class = np.array(found['labels'])[:, None] == np.array(expected['labels'])
    overlaps = np.where(same_class, overlaps, 0.0)
    count = 0
    while overlaps.size and overlaps.max() >= 0.5:
        i, j = np.unravel_index(overlaps.argmax(), overlaps.shape)
        overlaps[i, :] = overlaps[:, j] = 0.0
        count += 1
    return count


def _overlaps(boxes: list[list[float]], others: list[list[float]]) -> np.ndarray:
    """Compute the IoU of each pair, (N, M)."""
    import torch
    from torchvision.ops import box_iou

    first = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    second = torch.tensor(others, dtype=torch.float32).reshape(-1, 4)
    return box_iou(first, second).numpy()

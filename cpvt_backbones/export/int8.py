"""int8 copies of ONNX files, and how often a copy agrees with its original.

Weights of matrix products are stored as int8, and their inputs are rounded to 8 bits while the file
runs. PEG, every other convolution, attention and the norms stay in float32.
"""

import json
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cpvt_backbones.inference.images import ImageInput
from cpvt_backbones.inference.inferencer import Inferencer
from cpvt_backbones.inference.predictions import Prediction

from .exported import METADATA, ExportedModel, seal_file

MIN_AGREEMENT = 0.98
AGREEMENTS = {
    'classification': 'images of the same class',
    'segmentation': 'pixels of the same class',
    'detection': 'boxes that both find (same class, IoU >= 0.5)',
}


@dataclass(frozen=True)
class Agreement:
    """What two files have in common on one image or several."""

    same: float
    total: float

    @property
    def share(self) -> float:
        """Between 0 and 1; 1 where there is nothing to compare."""
        return self.same / self.total if self.total else 1.0


def quantise(path: str | os.PathLike[str], out: str | os.PathLike[str]) -> None:
    """Write an int8 copy of an ONNX file, by onnxruntime's dynamic quantisation.

    Each output channel of a weight has a scale of its own. Weights take 7 bits: processors without
    VNNI add pairs of products in 16 bits, which overflow with 8.

    Args:
        path: File of :func:`~cpvt_backbones.export.formats.export`, in float32.
        out: The copy.

    Raises:
        ValueError: The file has no product of a matrix with weights.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(path)
    stored = {entry.key: entry.value for entry in model.metadata_props}
    # onnxruntime advises to prepare the model, which torch's exporter has done.
    logging.disable(logging.WARNING)
    try:
        quantize_dynamic(
            model,
            out,
            op_types_to_quantize=['MatMul', 'Gemm'],
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
        )
    finally:
        logging.disable(logging.NOTSET)
    written = onnx.load(out)
    if not any(node.op_type == 'MatMulInteger' for node in written.graph.node):
        raise ValueError(f'path: {str(path)!r} has no product of a matrix with weights')
    del written.metadata_props[:]
    metadata = json.loads(stored[METADATA]) | dict(int8=True)
    written.metadata_props.add(key=METADATA, value=json.dumps(metadata))
    onnx.save(written, out)
    seal_file(out)


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
        original: The float32 file. Both are of a detector, segmentor or classifier.
        images: Image files or arrays.
        score_thr: Minimum score of a box.

    Raises:
        ImageError: An image cannot be read.
    """
    first, second = Inferencer(predictor=copy), Inferencer(predictor=original)
    for image in images:
        found, _ = first(image, score_thr=score_thr)
        expected, _ = second(image, score_thr=score_thr)
        yield _compare(found, expected)


def total_of(agreements: Sequence[Agreement]) -> Agreement:
    """Of all images: each pixel, box or image counts once."""
    return Agreement(sum(one.same for one in agreements), sum(one.total for one in agreements))


def _compare(found: Prediction, expected: Prediction) -> Agreement:
    if 'seg_map' in expected:
        same = found['seg_map'] == expected['seg_map']
        return Agreement(int(same.sum()), same.size)
    if 'label' in expected:
        return Agreement(int(found['label'] == expected['label']), 1)
    matched = _count_matches(found, expected)
    return Agreement(2 * matched, len(found['boxes']) + len(expected['boxes']))


def _count_matches(found: Prediction, expected: Prediction) -> int:
    """Number of boxes with a partner: same class, IoU >= 0.5, each once, the best pairs first."""
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
    """IoU of each pair, (N, M)."""
    import torch
    from torchvision.ops import box_iou

    first = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    second = torch.tensor(others, dtype=torch.float32).reshape(-1, 4)
    return box_iou(first, second).numpy()

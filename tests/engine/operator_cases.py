"""Calls of mmcv's operators, and the outputs and gradients that the compiled ones gave for them.

    python tests/engine/operator_cases.py        writes operators.npz; needs compiled operators

Inputs come from numpy's RandomState, whose numbers are the same in every version. Equal scores are
in cases of soft NMS only: the order that NMS takes them in is that of ``torch.sort``.
"""

import importlib.machinery
import itertools
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from zlib import crc32

import mmcv
import numpy as np
import torch
from mmcv import ops
from numpy.random import RandomState
from torch import Tensor
from torch.nn.functional import conv2d

FILE = Path(__file__).with_name('operators.npz')
COMPILED = importlib.machinery.PathFinder.find_spec('mmcv._ext', mmcv.__path__) is not None
CHANNELS = 4
SIZE = (4, 5)  # of the maps that deformable convolution reads


def normal(random: RandomState, *shape: int) -> Tensor:
    return torch.from_numpy(random.standard_normal(shape))


def uniform(random: RandomState, *shape: int) -> Tensor:
    return torch.from_numpy(random.random_sample(shape))


def boxes_and_scores(random: RandomState, count: int, kind: str) -> tuple[Tensor, Tensor]:
    """Boxes (N, 4) and scores (N,); 'integer' repeats boxes, and gives some no area."""
    corner = uniform(random, count, 2) * 50
    boxes = torch.cat((corner, corner + uniform(random, count, 2) * 40), dim=1).float()
    scores = torch.from_numpy(random.permutation(count) + 0.5).float() / max(count, 1)
    if kind == 'integer':
        boxes = boxes.div(8, rounding_mode='floor') * 8
    if kind == 'equal scores':
        scores = (scores * 3).round() / 3
    return boxes, scores


def outputs_and_gradients(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    leaves = [t.clone().requires_grad_(t.is_floating_point()) for t in inputs]
    output = function(*leaves)
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    (output * weights).sum().backward()
    return [output.detach(), *(t.grad for t in leaves if t.grad is not None)]


# -- boxes: in fp32, as they compare numbers


def keep(random: RandomState, count: int, kind: str, threshold: float, offset: int) -> list[Tensor]:
    boxes, scores = boxes_and_scores(random, count, kind)
    detections, kept = ops.nms(boxes, scores, threshold, offset)
    assert torch.equal(detections, torch.cat((boxes, scores[:, None]), dim=1)[kept])
    return [kept]


def soften(
    random: RandomState, count: int, kind: str, threshold: float, method: str, least: float
) -> list[Tensor]:
    boxes, scores = boxes_and_scores(random, count, kind)
    detections, kept = ops.soft_nms(boxes, scores, threshold, 0.5, least, method, count % 2)
    assert torch.equal(detections[:, :4], boxes[kept])
    return [detections[:, 4], kept]


def keep_by_class(random: RandomState, kind: str, split: int) -> list[Tensor]:
    boxes, scores = boxes_and_scores(random, 60, 'random')
    options = dict(type=kind, iou_threshold=0.4, split_thr=split)
    detections, kept = ops.batched_nms(boxes, scores, torch.arange(60) % 3, options)
    return [detections[:, 4], kept]


def overlap(random: RandomState, mode: str, aligned: bool, offset: int) -> list[Tensor]:
    one = boxes_and_scores(random, 12, 'random')[0]
    two = boxes_and_scores(random, 12 if aligned else 19, 'integer')[0]
    return [ops.bbox_overlaps(one, two, mode, aligned, offset)]


BOXES: dict[str, tuple[Callable[..., list[Tensor]], tuple]] = {}


def add_boxes(function: Callable[..., list[Tensor]], *options: Sequence) -> None:
    """A case for each combination of the options."""
    for values in itertools.product(*options):
        BOXES[' '.join(map(str, (function.__name__, *values)))] = (function, values)


COUNTS = (0, 1, 2, 17, 60)
THRESHOLDS = (0.0, 0.3, 0.6, 1.0)
add_boxes(keep, COUNTS, ('random', 'integer'), THRESHOLDS, (0, 1))
add_boxes(soften, COUNTS, ('integer', 'equal scores'), (0.3, 0.6), ('naive', 'linear'), (0.0, 0.3))
add_boxes(soften, COUNTS, ('random', 'integer'), (0.3,), ('gaussian',), (0.0, 1e-3, 0.3))
add_boxes(keep_by_class, ('nms', 'soft_nms'), (10, 10000))
add_boxes(overlap, ('iou', 'iof'), (True, False), (0, 1))


def boxes_case(name: str) -> list[Tensor]:
    function, values = BOXES[name]
    return function(RandomState(crc32(name.encode())), *values)


# -- maps: outputs and gradients, in the type that is asked for


def align(random: RandomState, dtype: torch.dtype, count: int, ratio: int, aligned: bool):
    boxes = boxes_and_scores(random, count, 'random')[0].double()
    boxes[: count // 4, 2:] = boxes[: count // 4, :2]  # without an area
    rois = torch.cat((torch.arange(count)[:, None] % 2, boxes), dim=1).to(dtype)

    def function(features: Tensor) -> Tensor:
        return ops.roi_align(features, rois, (3, 2), 0.25, ratio, 'avg', aligned)

    return outputs_and_gradients(function, normal(random, 2, CHANNELS, 9, 13).to(dtype))


def convolve(
    random: RandomState,
    dtype: torch.dtype,
    kind: str,
    geometry: tuple,
    groups: int,
    deform_groups: int,
) -> list[Tensor]:
    """Deformable convolution: 'plain', 'modulated', or 'modulated, bias'."""
    x = normal(random, 2, CHANNELS, *SIZE).to(dtype)
    weight = normal(random, 6, CHANNELS // groups, 3, 3).to(dtype)
    size = conv2d(x, weight, None, *geometry, groups).shape[2:]
    offset = (normal(random, 2, deform_groups * 18, *size) * 3).to(dtype)
    sizes = (*geometry, groups, deform_groups)
    if kind == 'plain':

        def plain(x: Tensor, offset: Tensor, weight: Tensor) -> Tensor:
            return ops.deform_conv2d(x, offset, weight, *sizes)

        return outputs_and_gradients(plain, x, offset, weight)
    mask = uniform(random, 2, deform_groups * 9, *size).to(dtype)
    bias = [normal(random, 6).to(dtype)] if 'bias' in kind else []

    def modulated(x: Tensor, offset: Tensor, mask: Tensor, weight: Tensor, bias=None) -> Tensor:
        function = ops.modulated_deform_conv2d
        return function(x, offset, mask, weight, bias, *sizes)

    return outputs_and_gradients(modulated, x, offset, mask, weight, *bias)


def cut(
    random: RandomState,
    dtype: torch.dtype,
    deform_groups: int,
    stride: int,
    larger: tuple,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> list[Tensor]:
    """Offsets and mask that are larger than the output, as DyHead passes them: parts of one map."""
    x = normal(random, 2, CHANNELS, *SIZE).to(dtype)
    weight = normal(random, 6, CHANNELS, 3, 3).to(dtype)
    both = normal(random, 2, deform_groups * 27, *larger).to(dtype)

    def modulated(x: Tensor, both: Tensor, weight: Tensor) -> Tensor:
        offset, mask = both.split((deform_groups * 18, deform_groups * 9), dim=1)
        function = ops.modulated_deform_conv2d
        return function(x, offset, mask, weight, None, stride, 1, 1, 1, deform_groups)

    return outputs_and_gradients(modulated, x, both.to(memory_format=memory_format), weight)


MAPS: dict[str, tuple[Callable[..., list[Tensor]], tuple]] = {}


def add_maps(function: Callable[..., list[Tensor]], *options: Sequence) -> None:
    for values in itertools.product(*options):
        MAPS[' '.join(map(str, (function.__name__, *values)))] = (function, values)


add_maps(align, (0, 1, 9), (0, 2), (True, False))
GEOMETRIES = ((1, 1, 1), ((2, 1), (0, 2), (1, 2)))  # stride, padding, dilation
add_maps(convolve, ('plain', 'modulated, bias'), GEOMETRIES, (1, 2), (1, 2))
add_maps(convolve, ('plain', 'modulated'), GEOMETRIES, (2,), (4,))
add_maps(cut, (1, 2), (1,), ((8, 10), (4, 6)))
add_maps(cut, (1, 2), (2,), ((4, 5),))


def maps_case(name: str, dtype: torch.dtype, **options: object) -> list[Tensor]:
    function, values = MAPS[name]
    return function(RandomState(crc32(name.encode())), dtype, *values, **options)


# -- the record


def record() -> dict[str, np.ndarray]:
    """Every output of the compiled operators; floats in fp32, indices in bytes."""
    if not COMPILED:
        raise SystemExit('mmcv has no compiled operators: make setup OPERATORS=compiled')
    results = {name: boxes_case(name) for name in BOXES}
    results |= {name: maps_case(name, torch.float64) for name in MAPS}
    arrays = {}
    for name, tensors in results.items():
        for index, tensor in enumerate(tensors):
            dtype = torch.float32 if tensor.is_floating_point() else torch.uint8
            arrays[f'{name} / {index}'] = tensor.to(dtype).numpy()
    return arrays


@cache
def read() -> dict[str, list[Tensor]]:
    """The record: case to tensors."""
    found: dict[str, list[Tensor]] = {}
    with np.load(FILE) as arrays:
        for key, array in arrays.items():
            found.setdefault(key.rpartition(' / ')[0], []).append(torch.from_numpy(array))
    return found


if __name__ == '__main__':
    np.savez_compressed(FILE, **record())

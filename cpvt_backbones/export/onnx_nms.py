"""Translation of this package's non-maximum suppression to ONNX."""

from typing import Any

import torch
from onnxscript import opset18

import cpvt_backbones.inference.exported  # noqa: F401  (registers the operation)

op: Any = opset18  # its annotations are ONNX types


def nms_mask(boxes: Any, scores: Any, iou_threshold: float) -> Any:
    """:func:`cpvt_backbones.inference.exported.nms_mask` by NonMaxSuppression, its indices scattered into a mask."""
    limit = op.Shape(scores, start=1, end=2)
    found = op.NonMaxSuppression(boxes, op.Unsqueeze(scores, [1]), limit, iou_threshold, 0.0)  # (K, 3)
    places = op.Gather(found, [0, 2], axis=1)  # (K, 2): image, box
    nowhere = op.Expand(op.Constant(value_float=0.0), op.Shape(scores))
    ones = op.Expand(op.Constant(value_float=1.0), op.Shape(found, start=0, end=1))
    return op.Greater(op.ScatterND(nowhere, places, ones), 0.0)


TRANSLATIONS: dict[Any, Any] = {torch.ops.cpvt_backbones.nms_mask.default: nms_mask}

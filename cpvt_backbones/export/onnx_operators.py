"""ONNX translations of non-maximum suppression and attention, fast in onnxruntime and OpenVINO."""

import math
from typing import Any

import torch
from onnx.defs import OpSchema
from onnxscript import ir, opset18
from onnxscript.values import Op, Opset

import cpvt_backbones.export.exported  # noqa: F401  (registers the operation)

op: Any = opset18  # its annotations are ONNX types
OPTIONAL = OpSchema.FormalParameterOption.Optional
MULTI_HEAD_ATTENTION = OpSchema(
    'MultiHeadAttention',
    'com.microsoft',
    1,
    inputs=[OpSchema.FormalParameter(f'input{i}', 'T', param_option=OPTIONAL) for i in range(6)],
    outputs=[OpSchema.FormalParameter('output', 'T')],
    type_constraints=[('T', ['tensor(float)'], '')],
    attributes=[OpSchema.Attribute('num_heads', OpSchema.AttrType.INT)],
)


def nms_mask(boxes: Any, scores: Any, iou_threshold: float) -> Any:
    """Translate :func:`cpvt_backbones.export.exported.nms_mask` by ONNX's NonMaxSuppression.

    The kept indices are scattered into a mask.
    """
    limit = op.Shape(scores, start=1, end=2)
    # (K, 3): image, class, box
    found = op.NonMaxSuppression(boxes, op.Unsqueeze(scores, [1]), limit, iou_threshold, 0.0)
    indices = op.Gather(found, [0, 2], axis=1)  # (K, 2): image, box
    nowhere = op.Expand(op.Constant(value_float=0.0), op.Shape(scores))
    ones = op.Expand(op.Constant(value_float=1.0), op.Shape(found, start=0, end=1))
    return op.Greater(op.ScatterND(nowhere, indices, ones), 0.0)


def attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0
) -> Any:
    """Translate attention to onnxruntime's MultiHeadAttention.

    Without a mask, it stores no (T, S) matrix. ONNX's own Attention stores it, and uses one thread
    per head (onnxruntime 1.32).
    """
    heads = query.shape[1]
    inputs = [
        op.Reshape(op.Transpose(x, perm=[0, 2, 1, 3]), [0, 0, -1]) for x in (query, key, value)
    ]
    if attn_mask is not None:
        if attn_mask.dtype == ir.DataType.BOOL:
            attn_mask = op.Where(attn_mask, 0.0, -math.inf)
        inputs += [None, None, attn_mask]
    fused = Op(Opset('com.microsoft', 1), MULTI_HEAD_ATTENTION.name, MULTI_HEAD_ATTENTION)
    attended = fused(*inputs, num_heads=heads)  # (B, T, heads * d)
    return op.Transpose(op.Reshape(attended, [0, 0, heads, -1]), perm=[0, 2, 1, 3])


TRANSLATIONS: dict[Any, Any] = {torch.ops.cpvt_backbones.nms_mask.default: nms_mask}
FUSED: dict[Any, Any] = {torch.ops.aten.scaled_dot_product_attention.default: attention}

"""Which objects are found: each box meets at most one of them, and each object one box."""

from typing import Any

import numpy as np
import torch
from torchvision.ops import box_iou

LEAST_IOU = 0.5


def match(boxes: Any, labels: Any, true_boxes: Any, true_labels: Any) -> np.ndarray:
    """The object that each box meets, (N,), or -1: one of its class, with an IoU of at least 0.5.

    Args:
        boxes: (N, 4), x1, y1, x2, y2, the likelier first: of two on an object, the first meets it.
        labels: (N,), their classes, numbers or names.
        true_boxes: (M, 4), of the objects.
        true_labels: (M,).
    """
    found, true = (
        torch.tensor(np.asarray(one, float).reshape(-1, 4)) for one in (boxes, true_boxes)
    )
    overlaps = box_iou(found, true).numpy()
    overlaps[np.asarray(labels)[:, None] != np.asarray(true_labels)[None]] = 0
    met = np.full(len(overlaps), -1)
    if not overlaps.size:
        return met
    for index, row in enumerate(overlaps):
        best = row.argmax()
        if row[best] >= LEAST_IOU:
            met[index] = best
            overlaps[:, best] = 0
    return met

"""Matching of predicted boxes and objects, each to at most one of the other."""

from typing import Any

import numpy as np
import torch
from torchvision.ops import box_iou

LEAST_IOU = 0.5


def match(boxes: Any, labels: Any, true_boxes: Any, true_labels: Any) -> np.ndarray:
    """Match each box to an object of its class with an IoU of at least 0.5.

    Args:
        boxes: (N, 4), x1, y1, x2, y2 in px, by descending score; earlier boxes choose first.
        labels: (N,), classes of the boxes, as numbers or names.
        true_boxes: (M, 4), boxes of the objects.
        true_labels: (M,), classes of the objects.

    Returns:
        (N,), the index of each box's object, or -1.
    """
    found, true = (
        torch.tensor(np.asarray(one, float).reshape(-1, 4)) for one in (boxes, true_boxes)
    )
    overlaps = box_iou(found, true).numpy()
    overlaps[np.asarray(labels)[:, None] != np.asarray(true_labels)[None]] = 0
    matched = np.full(len(overlaps), -1)
    if not overlaps.size:
        return matched
    for index, row in enumerate(overlaps):
        best = row.argmax()
        if row[best] >= LEAST_IOU:
            matched[index] = best
            overlaps[:, best] = 0
    return matched

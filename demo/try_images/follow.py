"""Objects of one image, followed through predictions at several sizes."""

from collections.abc import Sequence
from typing import Any

import torch
from torchvision.ops import box_iou

from cpvt_backbones.inference.predictions import Prediction


def follow_objects(
    predictions: Sequence[Prediction], *, min_iou: float = 0.5
) -> list[dict[str, Any]]:
    """Group the boxes of several predictions on one image by object, best first.

    Each object: ``label``, ``box`` (its best) and ``scores``, one a prediction, ``None`` where it
    was not found. Of the objects of its class without a box of its prediction, a box joins the one
    it overlaps most, by at least ``min_iou``.
    """
    columns = [zip(one['scores'], one['labels'], one['boxes'], strict=True) for one in predictions]
    found = sorted(
        ((i, *box) for i, column in enumerate(columns) for box in column), key=lambda one: -one[1]
    )
    boxes = torch.tensor([box for *_, box in found]).reshape(-1, 4)
    overlaps, objects = (
        box_iou(boxes, boxes).tolist(),
        dict[int, dict[str, Any]](),
    )  # by their best box
    for this, (i, score, label, box) in enumerate(found):
        free = [
            j for j, one in objects.items() if one['label'] == label and one['scores'][i] is None
        ]
        best = max(free, key=overlaps[this].__getitem__, default=None)
        if best is None or overlaps[this][best] < min_iou:
            best, objects[this] = this, dict(label=label, box=box, scores=[None] * len(predictions))
        objects[best]['scores'][i] = score
    return [*objects.values()]

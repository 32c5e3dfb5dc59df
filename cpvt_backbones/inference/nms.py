"""Non-maximum suppression of a batch, as one operation of fixed shape that a graph for any batch can hold."""

import torch
from torch import Tensor


@torch.library.custom_op('cpvt_backbones::nms_mask', mutates_args=())
def nms_mask(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Which boxes of each image survive: those that overlap no better one.

    A mask instead of a list of indices, so that its shape does not depend on what is found.

    Args:
        boxes: (B, N, 4), x1, y1, x2, y2.
        scores: (B, N); boxes that score 0 or less do not take part.
        iou_threshold: A box goes if its intersection over union with a better one is larger.

    Returns:
        (B, N), bool.
    """
    from torchvision.ops import nms

    keep = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
    for image, (own_boxes, own_scores) in enumerate(zip(boxes, scores, strict=True)):
        (candidates,) = (own_scores > 0).nonzero(as_tuple=True)
        keep[image, candidates[nms(own_boxes[candidates], own_scores[candidates], iou_threshold)]] = True
    return keep


@nms_mask.register_fake
def _(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    return torch.empty_like(scores, dtype=torch.bool)

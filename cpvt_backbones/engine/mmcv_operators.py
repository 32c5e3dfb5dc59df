"""Functions of ``mmcv._ext`` for CPU and CUDA tensors, with kernels of torchvision and PyTorch.

Names, arguments and outputs written in place are those of mmcv 2's compiled module, as
``mmcv/ops/*.py`` calls it: tensors by position, the rest by name. float16 and bfloat16 tensors are
computed in fp32. Missing operators raise NotImplementedError when they are called, not when mmcv is
imported.
"""

import math
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import torch
import torchvision
from mmengine.logging import print_log
from torch import Tensor
from torch.nn.functional import pad

from cpvt_backbones.errors import InputError
from cpvt_backbones.layers.attention import widen

kernels = torch.ops.torchvision

print_log(
    f"mmcv has no compiled operators: torchvision {torchvision.__version__}'s stand in for them",
    'current',
)


def _missing(name: str, *args: Any, **kwargs: Any) -> None:
    raise NotImplementedError(
        f"operator '{name}' exists only in mmcv's compiled operators. To compile them (a C++"
        ' compiler, for a GPU also nvcc): make setup OPERATORS=compiled; or pip install --no-deps'
        ' --no-build-isolation --no-cache-dir --force-reinstall --no-binary onedl-mmcv onedl-mmcv'
    )


def __getattr__(name: str) -> Callable[..., None]:
    if name.startswith('__'):
        raise AttributeError(name)
    return partial(_missing, name)


def get_compiler_version() -> str:
    return f'none (torchvision {torchvision.__version__})'


def get_compiling_cuda_version() -> str:
    return str(torch.version.cuda or 'not available')


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    boxes, scores = widen(
        boxes + boxes.new_tensor([0, 0, offset, offset]) if offset else boxes, scores
    )
    # As in mmcv, the sort is unstable for equal scores, and the threshold is in fp32.
    scores, order = scores.sort(descending=True)
    return order[torchvision.ops.nms(boxes[order], scores, float(np.float32(iou_threshold)))]


def _ious(box: np.ndarray, others: np.ndarray, offset: int = 0) -> np.ndarray:
    """Compute IoUs (N,) of a box (4,) with others (N, 4), by mmcv's operations in fp32."""
    one = np.float32(offset)
    inter = np.maximum(
        np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2]) + one, 0
    ).prod(axis=1)
    area = (box[2:] - box[:2] + one).prod()
    areas = (others[:, 2:] - others[:, :2] + one).prod(axis=1)
    with np.errstate(divide='ignore', invalid='ignore'):
        return inter / (area + areas - inter)


def softnms(
    boxes: Tensor,
    scores: Tensor,
    dets: Tensor,
    *,
    iou_threshold: float,
    sigma: float,
    min_score: float,
    **options: int,
) -> Tensor:
    rows = torch.cat((boxes, scores[:, None]), dim=1).float().numpy()
    inds = np.arange(len(rows))
    i = 0
    while i < len(rows):
        # Move the best remaining box to the front; NaN scores stay.
        best = i if np.isnan(rows[i, 4]) else i + np.nan_to_num(rows[i:, 4], nan=-np.inf).argmax()
        rows[[i, best]], inds[[i, best]] = rows[[best, i]], inds[[best, i]]
        ious = _ious(rows[i, :4], rows[i + 1 :, :4], options['offset'])
        if options['method'] == 2:
            decay = np.exp(-(ious * ious) / np.float32(sigma))
        else:
            decay = np.where(
                ious >= np.float32(iou_threshold), 1 - ious if options['method'] else 0, 1
            )
        rows[i + 1 :, 4] *= decay.astype(np.float32)
        # The last kept box replaces a dropped one, which decides the order of equal scores.
        i += 1
        stays = ~(rows[i:, 4] < np.float32(min_score))
        order = np.arange(i + stays.sum())
        order[i:][~stays[: stays.sum()]] = (
            i + stays.sum() + np.flatnonzero(stays[stays.sum() :])[::-1]
        )
        rows, inds = rows[order], inds[order]
    dets[: len(rows)] = torch.from_numpy(rows)
    return torch.from_numpy(inds)


def bbox_overlaps(
    boxes1: Tensor, boxes2: Tensor, ious: Tensor, *, mode: int, aligned: bool, offset: int
) -> None:
    a, b = boxes1 if aligned else boxes1[:, None], boxes2
    inter = (
        (torch.min(a[..., 2:], b[..., 2:]) - torch.max(a[..., :2], b[..., :2]) + offset)
        .clamp(min=0)
        .prod(-1)
    )
    area1 = (a[..., 2:] - a[..., :2] + offset).prod(-1)
    area2 = (b[..., 2:] - b[..., :2] + offset).prod(-1)
    ious.copy_(inter / (area1 if mode else area1 + area2 - inter))


_bins = itemgetter('spatial_scale', 'aligned_height', 'aligned_width')
_sampling = itemgetter('sampling_ratio', 'aligned')


def roi_align_forward(
    input: Tensor, rois: Tensor, output: Tensor, *argmax: Tensor, **options: Any
) -> None:
    if options['pool_mode'] != 1:
        _missing("roi_align with pool_mode='max'")
    output.copy_(kernels.roi_align(*widen(input, rois), *_bins(options), *_sampling(options)))


def roi_align_backward(grad: Tensor, rois: Tensor, *tensors: Tensor, **options: Any) -> None:
    grad_input = tensors[-1]
    arguments = *_bins(options), *grad_input.shape, *_sampling(options)
    grad_input.copy_(kernels._roi_align_backward(*widen(grad, rois), *arguments))


def _log(probability: Tensor) -> Tensor:
    return probability.clamp(min=torch.finfo(torch.float32).tiny).log()


def sigmoid_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, *, gamma: float, alpha: float
) -> None:
    p = widen(input)[0].sigmoid()
    own = target[:, None] == torch.arange(input.shape[1], device=input.device)
    loss = torch.where(
        own, -alpha * (1 - p) ** gamma * _log(p), (alpha - 1) * p**gamma * _log(1 - p)
    )
    output.copy_(loss * weight[target][:, None] if weight.numel() else loss)


def sigmoid_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor, *, gamma: float, alpha: float
) -> None:
    p = widen(input)[0].sigmoid()
    q = 1 - p
    own = target[:, None] == torch.arange(input.shape[1], device=input.device)
    positive = -alpha * q**gamma * (q - gamma * p * _log(p))
    slope = torch.where(own, positive, (alpha - 1) * p**gamma * (gamma * q * _log(q) - p))
    grad_input.copy_(slope * weight[target][:, None] if weight.numel() else slope)


def _deform_arguments(tensors: tuple[Tensor, ...], sizes: dict[str, Any]) -> tuple[Any, ...]:
    """Convert mmcv's arguments, with or without mask and bias, for torchvision's operator."""
    input, weight, offset, *modulation = tensors
    mask, bias = modulation or (input.new_zeros(input.shape[0], 1), input.new_zeros(0))
    bias = bias if bias.numel() else input.new_zeros(weight.shape[0])
    names = 'dH dW padH padW dilationH dilationW group deformable_group'
    if modulation:
        names = 'stride_h stride_w pad_h pad_w dilation_h dilation_w group deformable_group'
    geometry = [sizes[name] for name in names.split()]
    return (*widen(input, weight, offset, mask, bias), *geometry, bool(modulation))


def deform_conv_forward(*tensors: Tensor, **sizes: Any) -> None:
    input, weight, offset, output, *_ = tensors
    output.copy_(kernels.deform_conv2d(*_deform_arguments((input, weight, offset), sizes)))


def deform_conv_backward_input(
    input: Tensor, offset: Tensor, grad: Tensor, *tensors: Tensor, **sizes: Any
) -> None:
    grad_input, grad_offset, weight, _ = tensors
    arguments = _deform_arguments((input, weight, offset), sizes)
    gradients = kernels._deform_conv2d_backward(*widen(grad), *arguments)
    grad_input.copy_(gradients[0])
    grad_offset.copy_(gradients[2])


def deform_conv_backward_parameters(*tensors: Tensor, **sizes: Any) -> None:
    input, offset, grad, grad_weight, *_ = tensors
    arguments = _deform_arguments((input, torch.zeros_like(grad_weight), offset), sizes)
    grad_weight.copy_(kernels._deform_conv2d_backward(*widen(grad), *arguments)[1] * sizes['scale'])


def _of_size(tensor: Tensor, output: Tensor) -> Tensor:
    """Reinterpret offsets or a mask (B, C, H, W) of a larger map like mmcv's compiled operator.

    mmcv reads the first values of each image, row by row, as a map of the output's height and
    width. DyHead passes offsets of one pyramid level to the maps of the next.

    Raises:
        ValueError: There are fewer values than the output needs.
    """
    size = (tensor.shape[1], *output.shape[2:])
    values = tensor.flatten(1)
    count = math.prod(size)
    if values.shape[1] < count:
        raise InputError(
            'modulated_deform_conv: offsets and mask must be at least as large as the output,'
            f' {size[1]} x {size[2]}, got {tensor.shape[2]} x {tensor.shape[3]}'
        )
    return values[:, :count].unflatten(1, size)


def modulated_deform_conv_forward(*tensors: Tensor, **sizes: Any) -> None:
    input, weight, bias, _, offset, mask, output, _ = tensors
    offset, mask = _of_size(offset, output), _of_size(mask, output)
    output.copy_(
        kernels.deform_conv2d(*_deform_arguments((input, weight, offset, mask, bias), sizes))
    )


def modulated_deform_conv_backward(*tensors: Tensor, **sizes: Any) -> None:
    (
        input,
        weight,
        bias,
        _,
        offset,
        mask,
        _,
        grad_input,
        grad_weight,
        grad_bias,
        grad_offset,
        grad_mask,
        grad,
    ) = tensors
    used = (_of_size(offset, grad), _of_size(mask, grad))
    arguments = _deform_arguments((input, weight, *used, bias), sizes)
    gradients = kernels._deform_conv2d_backward(*widen(grad), *arguments)
    targets = (grad_input, grad_weight, grad_offset, grad_mask, grad_bias)
    for target, gradient in zip(targets[: 4 + sizes['with_bias']], gradients, strict=False):
        unused = target[0].numel() - gradient[0].numel()  # values of offsets or mask
        target.copy_(pad(gradient.flatten(1), (0, unused)).view_as(target) if unused else gradient)


def ms_deform_attn_forward(
    value: Tensor, shapes: Tensor, starts: Tensor, *points: Tensor, im2col_step: int
) -> Tensor:
    from mmcv.ops.multi_scale_deform_attn import multi_scale_deformable_attn_pytorch as attend

    return attend(*widen(value), shapes.tolist(), *widen(*points)).to(value.dtype)


def ms_deform_attn_backward(
    value: Tensor, shapes: Tensor, starts: Tensor, *tensors: Tensor, im2col_step: int
) -> None:
    locations, weights, grad, *targets = tensors
    inputs = [t.detach().requires_grad_() for t in (value, locations, weights)]
    with torch.enable_grad():
        output = ms_deform_attn_forward(
            inputs[0], shapes, starts, *inputs[1:], im2col_step=im2col_step
        )
    for target, gradient in zip(targets, torch.autograd.grad(output, inputs, grad), strict=True):
        target.copy_(gradient)

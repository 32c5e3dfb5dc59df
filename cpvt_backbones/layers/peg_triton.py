"""PEG as a Triton kernel for NVIDIA GPUs: convolution, bias and residual in one pass, forward and backward.

It reads tokens as they lie, (B, N, C) with any stride between images and tokens, a slice beside a class token included;
sums are in fp32, indices in int64. Imported only by a PEG with ``implementation='triton'`` that meets a CUDA tensor.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_H, BLOCK_W, BLOCK_C = 4, 8, 64  # pixels and channels of one program
PROGRAMS = 512  # about as many for the weights' gradient, each with a sum of its own


@triton.jit
def _tile(index, height, width, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr):
    """Image, rows and columns of a tile's pixels, (BLOCK_H * BLOCK_W,)."""
    columns, rows = tl.cdiv(width, BLOCK_W), tl.cdiv(height, BLOCK_H)
    pixel = tl.arange(0, BLOCK_H * BLOCK_W)
    row = index // columns % rows * BLOCK_H + pixel // BLOCK_W
    column = index % columns * BLOCK_W + pixel % BLOCK_W
    return index // columns // rows, row, column


@triton.jit
def _load(tokens, image, row, column, channel, height, width, channels, image_stride, token_stride):
    """The (pixels, channels) at these places in fp32; zero outside the map."""
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    place = image * image_stride + (row * width + column)[:, None] * token_stride + channel[None, :]
    mask = inside[:, None] & (channel < channels)[None, :]
    return tl.load(tokens + place, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _correlate(
    tokens,
    weight,
    bias,
    out,
    height,
    width,
    channels,
    image_stride,
    token_stride,
    SIDE: tl.constexpr,
    FLIP: tl.constexpr,
    RESIDUAL: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """One tile of ``[tokens +] dwconv(tokens) [+ bias]``; with FLIP the transposed convolution, for the gradient."""
    program = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(channels, BLOCK_C)
    channel = program % blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    image, row, column = _tile(program // blocks, height, width, BLOCK_H, BLOCK_W)
    total = tl.zeros([BLOCK_H * BLOCK_W, BLOCK_C], tl.float32)
    if HAS_BIAS:
        total += tl.load(bias + channel, mask=channel < channels, other=0.0).to(tl.float32)[None, :]
    for i in tl.static_range(SIDE):
        for j in tl.static_range(SIDE):
            value = _load(
                tokens,
                image,
                row + i - SIDE // 2,
                column + j - SIDE // 2,
                channel,
                height,
                width,
                channels,
                image_stride,
                token_stride,
            )
            tap = SIDE * SIDE - 1 - i * SIDE - j if FLIP else i * SIDE + j
            factor = tl.load(weight + channel * (SIDE * SIDE) + tap, mask=channel < channels, other=0.0)
            total += value * factor.to(tl.float32)[None, :]
            if RESIDUAL and 2 * i + 1 == SIDE and 2 * j + 1 == SIDE:
                total += value
    place = ((image * height + row) * width + column)[:, None] * channels + channel[None, :]
    mask = ((row < height) & (column < width))[:, None] & (channel < channels)[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _weight_sums(
    tokens,
    grad,
    sums,
    tiles,
    height,
    width,
    channels,
    image_stride,
    token_stride,
    grad_image_stride,
    grad_token_stride,
    SIDE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Gradients of the taps and, one row after them, of the bias, over every so-manieth tile: (SIDE^2 + 1, BLOCK_C)."""
    blocks = tl.cdiv(channels, BLOCK_C)
    program = tl.program_id(0).to(tl.int64)
    part, parts = program // blocks, tl.num_programs(0) // blocks
    channel = program % blocks * BLOCK_C + tl.arange(0, BLOCK_C)
    taps = tl.arange(0, ROWS)
    total = tl.zeros([ROWS, BLOCK_C], tl.float32)
    index = part
    while index < tiles:
        image, row, column = _tile(index, height, width, BLOCK_H, BLOCK_W)
        slope = _load(grad, image, row, column, channel, height, width, channels, grad_image_stride, grad_token_stride)
        total += tl.where(taps[:, None] == SIDE * SIDE, tl.sum(slope, axis=0)[None, :], 0.0)
        for i in tl.static_range(SIDE):
            for j in tl.static_range(SIDE):
                value = _load(
                    tokens,
                    image,
                    row + i - SIDE // 2,
                    column + j - SIDE // 2,
                    channel,
                    height,
                    width,
                    channels,
                    image_stride,
                    token_stride,
                )
                product = tl.sum(value * slope, axis=0)
                total += tl.where(taps[:, None] == i * SIDE + j, product[None, :], 0.0)
        index += parts
    place = (part * (SIDE * SIDE + 1) + taps)[:, None] * channels + channel[None, :]
    mask = (taps <= SIDE * SIDE)[:, None] & (channel < channels)[None, :]
    tl.store(sums + place, total, mask=mask)


def _tiles(batch: int, height: int, width: int) -> int:
    return batch * triton.cdiv(height, BLOCK_H) * triton.cdiv(width, BLOCK_W)


def _run(
    tokens: Tensor, weight: Tensor, bias: Tensor | None, height: int, width: int, *, residual: bool, flip: bool
) -> Tensor:
    batch, _, channels = tokens.shape
    tokens = tokens if tokens.stride(2) == 1 else tokens.contiguous()
    out = torch.empty(tokens.shape, dtype=tokens.dtype, device=tokens.device)
    with torch.cuda.device_of(tokens):  # Triton launches on the current device
        _correlate[(_tiles(batch, height, width) * triton.cdiv(channels, BLOCK_C),)](
            tokens,
            weight,
            weight if bias is None else bias,
            out,
            height,
            width,
            channels,
            tokens.stride(0),
            tokens.stride(1),
            SIDE=weight.shape[-1],
            FLIP=flip,
            RESIDUAL=residual,
            HAS_BIAS=bias is not None,
            BLOCK_H=BLOCK_H,
            BLOCK_W=BLOCK_W,
            BLOCK_C=BLOCK_C,
        )
    return out


@torch.library.custom_op('cpvt_backbones::peg', mutates_args=())
def peg(tokens: Tensor, weight: Tensor, bias: Tensor | None, height: int, width: int, residual: bool) -> Tensor:
    """``[tokens +] dwconv(tokens)``, zero padded.

    Args:
        tokens: (B, H * W, C); fp32, fp16 or bf16.
        weight: (C, 1, k, k), contiguous, k odd.
        bias: (C,) or ``None``.
        height, width: The grid.
        residual: Whether the tokens are added.

    Returns:
        (B, H * W, C), contiguous, in the tokens' dtype.
    """
    return _run(tokens, weight, bias, height, width, residual=residual, flip=False)


@peg.register_fake
def _(tokens: Tensor, weight: Tensor, bias: Tensor | None, height: int, width: int, residual: bool) -> Tensor:
    return torch.empty(tokens.shape, dtype=tokens.dtype, device=tokens.device)


@torch.library.custom_op('cpvt_backbones::peg_backward', mutates_args=())
def peg_backward(
    grad: Tensor, tokens: Tensor, weight: Tensor, height: int, width: int, residual: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of :func:`peg` for the tokens, the weight and the bias, from that of its result, (B, H * W, C)."""
    batch, _, channels = tokens.shape
    side = weight.shape[-1]
    grad = grad if grad.stride(2) == 1 else grad.contiguous()
    tokens = tokens if tokens.stride(2) == 1 else tokens.contiguous()
    blocks, tiles = triton.cdiv(channels, BLOCK_C), _tiles(batch, height, width)
    parts = max(1, min(tiles, PROGRAMS // blocks))
    sums = torch.empty(parts, side * side + 1, channels, device=tokens.device)
    with torch.cuda.device_of(tokens):
        _weight_sums[(parts * blocks,)](
            tokens,
            grad,
            sums,
            tiles,
            height,
            width,
            channels,
            tokens.stride(0),
            tokens.stride(1),
            grad.stride(0),
            grad.stride(1),
            SIDE=side,
            ROWS=triton.next_power_of_2(side * side + 1),
            BLOCK_H=BLOCK_H,
            BLOCK_W=BLOCK_W,
            BLOCK_C=BLOCK_C,
        )
    total = sums.sum(0)  # (side^2 + 1, C), in the same order each time
    return (
        _run(grad, weight, None, height, width, residual=residual, flip=True),
        total[:-1].t().reshape(weight.shape).to(weight.dtype, copy=True),
        total[-1].to(weight.dtype, copy=True),
    )


@peg_backward.register_fake
def _(
    grad: Tensor, tokens: Tensor, weight: Tensor, height: int, width: int, residual: bool
) -> tuple[Tensor, Tensor, Tensor]:
    like = torch.empty(grad.shape, dtype=grad.dtype, device=grad.device)
    return like, torch.empty_like(weight), weight.new_empty(weight.shape[0])


def _save(ctx, inputs, output):
    tokens, weight, bias, *ctx.rest = inputs
    ctx.has_bias = bias is not None
    ctx.save_for_backward(tokens, weight)


def _backward(ctx, grad):
    of_tokens, of_weight, of_bias = peg_backward(grad, *ctx.saved_tensors, *ctx.rest)
    return of_tokens, of_weight, of_bias if ctx.has_bias else None, None, None, None


peg.register_autograd(_backward, setup_context=_save)

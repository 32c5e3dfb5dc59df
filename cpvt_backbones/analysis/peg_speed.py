"""One PEG by itself: time of its implementations, forward and backward, against a copy of the same memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cpvt_backbones.layers import PEG
from cpvt_backbones.layers.peg import IMPLEMENTATIONS

from .machine import best_time


@dataclass(frozen=True)
class PEGRow:
    """One implementation in one setting.

    Attributes:
        implementation: See :class:`cpvt_backbones.PEG`.
        kernel_size: Side of the kernel.
        beside_cls_token: Whether the tokens are a slice of (B, 1 + N, C).
        direction: ``'forward'`` or ``'backward'``.
        seconds: Of the fastest calls.
        copy_share: The bytes that cannot be spared (forward: tokens read and written; backward: gradient and tokens
            read, gradient written) per second, over the bandwidth of a large copy.
        difference: Largest difference from the convolution in fp32, over the largest value.
    """

    implementation: str
    kernel_size: int
    beside_cls_token: bool
    direction: str
    seconds: float
    copy_share: float
    difference: float


def measure_peg(
    *,
    batch: int,
    grid: tuple[int, int],
    dim: int,
    dtype: torch.dtype,
    device: str,
    bandwidth: float,
    kernel_sizes: Sequence[int] = (3, 5, 7),
    calls: int = 10,
) -> Iterator[PEGRow]:
    """Check and time every implementation.

    Args:
        batch, grid, dim: The tokens are (batch, H * W, dim).
        dtype: Of tokens and weights.
        device: ``'cpu'`` or ``'cuda'``.
        bandwidth: Of a large copy, in bytes/s read plus written.
        kernel_sizes: Odd sides of kernels, at most 7.
        calls: Calls between two looks at the clock.
    """
    for kernel_size in kernel_sizes:
        peg = PEG(dim, kernel_size=kernel_size).to(device, dtype)
        for beside in (False, True):
            tokens, slope = torch.randn(2, batch, beside + grid[0] * grid[1], dim, device=device, dtype=dtype)
            tokens, slope = tokens[:, beside:].detach().requires_grad_(), slope[:, beside:]
            exact = _results(PEG(dim, kernel_size=kernel_size).to(device), peg, tokens.float(), slope.float(), grid)
            size = tokens.numel() * tokens.element_size()
            for implementation in IMPLEMENTATIONS:
                peg.implementation = implementation
                differences = [
                    ((got.float() - wanted).abs().max() / wanted.abs().max()).item()
                    for got, wanted in zip(_results(peg, peg, tokens, slope, grid), exact, strict=True)
                ]

                def forward() -> Tensor:
                    with torch.no_grad():
                        return peg(tokens, grid)  # noqa: B023  (called before the loop goes on)

                out = peg(tokens, grid)

                def backward() -> object:
                    return torch.autograd.grad(out, (tokens, *peg.parameters()), slope, retain_graph=True)  # noqa: B023

                for direction, call, passes, difference in (
                    ('forward', forward, 2, differences[0]),
                    ('backward', backward, 3, max(differences[1:])),
                ):
                    seconds = best_time(call, device, calls=calls)
                    share = passes * size / seconds / bandwidth
                    yield PEGRow(implementation, kernel_size, beside, direction, seconds, share, difference)


def _results(peg: PEG, weights: PEG, tokens: Tensor, slope: Tensor, grid: tuple[int, int]) -> list[Tensor]:
    """The result and the gradients of tokens, weight and bias."""
    if peg is not weights:
        peg.load_state_dict(weights.state_dict())
    tokens = tokens.detach().requires_grad_()
    out = peg(tokens, grid)
    return [out.detach(), *torch.autograd.grad(out, (tokens, *peg.parameters()), slope)]


def peg_speed_table(rows: Sequence[PEGRow]) -> str:
    """The rows as a Markdown table."""
    lines = [
        '| one PEG | kernel | tokens | direction | ms | of the copy bandwidth | difference |',
        '| --- | ---: | --- | --- | ---: | ---: | ---: |',
    ]
    lines += [
        f'| {row.implementation} | {row.kernel_size} | {"beside a class token" if row.beside_cls_token else "alone"} '
        f'| {row.direction} | {row.seconds * 1e3:.3g} | {row.copy_share:.2f} | {row.difference:.1g} |'
        for row in rows
    ]
    return '\n'.join(lines)

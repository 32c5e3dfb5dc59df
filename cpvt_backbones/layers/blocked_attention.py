"""Attention in bfloat16 on a CPU by matrix products over blocks of queries.

PyTorch's fused kernel is as slow in bfloat16 as in float32 on AMD processors with AVX-512, although
these multiply bfloat16 faster. `benchmarks/attention.py` measures both.
"""

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .tokens import is_recording

MIN_TOKENS = 128
"""Minimum number of queries and of keys for which blocks are faster than the fused kernel."""

HEADS = 2
"""Heads per block: one product for each of two threads, so that the logits stay in the cache."""

MAX_LOGITS = 1 << 25
"""Maximum number of logits in a block; 64 MiB."""


def block_rows(key: Tensor) -> int:
    """Number of queries in a block.

    It is 1,024, or 512 for more than 2,048 keys. ``MAX_LOGITS`` may lower it.

    Args:
        key: (B, heads, S, d).
    """
    keys = key.shape[2]
    rows = 1024 if keys <= 2048 else 512
    return min(rows, MAX_LOGITS // (HEADS * keys))


@functools.cache
def bfloat16_instructions() -> str | None:
    """Instructions with which this processor multiplies bfloat16 faster than float32.

    Returns:
        ``'amx_bf16'``, ``'avx512_bf16'`` (AMD), ``'bf16'`` (Arm), or ``None``.
    """
    # Older releases of torch have no get_capabilities.
    abilities: dict[str, Any] = getattr(torch.cpu, 'get_capabilities', dict)()
    if abilities.get('amx_bf16'):
        return 'amx_bf16'
    # With AVX-512, a Xeon multiplied bfloat16 at 0.5 to 0.7 times the rate of float32, and an EPYC
    # at twice the rate.
    if abilities.get('avx512_bf16') and not _is_intel():
        return 'avx512_bf16'
    return 'bf16' if abilities.get('bf16') else None


def _is_intel() -> bool:
    cpuinfo = Path('/proc/cpuinfo')
    return cpuinfo.is_file() and 'GenuineIntel' in cpuinfo.read_text()


def suits_blocks(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """``True`` if :func:`attend_in_blocks` is faster, for inference without mask or dropout."""
    if not query.dtype == key.dtype == value.dtype == torch.bfloat16:
        return False
    if is_recording() or query.device.type != 'cpu':  # a recorded loop has a fixed number of blocks
        return False
    if torch.is_grad_enabled() and any(part.requires_grad for part in (query, key, value)):
        return False
    if min(query.shape[2], key.shape[2]) < MIN_TOKENS:
        return False
    # The fused kernel has its own code for AMX, and is 1.2 to 1.8 times as fast there.
    return bfloat16_instructions() == 'avx512_bf16' and block_rows(key) >= MIN_TOKENS


def attend_in_blocks(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Compute softmax(q k^T / sqrt(d)) v, one block of queries of two heads at a time.

    Args:
        query: (B, heads, T, d).
        key, value: (B, heads, S, d).

    Returns:
        (B, heads, T, d). Logits and weights are rounded to bfloat16; the fused kernel keeps them in
        float32.
    """
    batch, heads, tokens, dim = query.shape
    # Contiguous once: oneDNN would copy views of the fused projection for every block.
    queries = (query * dim**-0.5).reshape(batch * heads, tokens, dim).contiguous()
    keys = key.transpose(2, 3).reshape(batch * heads, dim, -1).contiguous()  # (B heads, d, S)
    values = value.reshape(batch * heads, -1, value.shape[3]).contiguous()
    rows = block_rows(key)
    outputs = []
    for head in range(0, batch * heads, HEADS):
        few = slice(head, head + HEADS)
        blocks = [
            (block @ keys[few]).softmax(dim=-1) @ values[few]
            for block in queries[few].split(rows, dim=1)
        ]
        outputs.append(torch.cat(blocks, dim=1))
    return torch.cat(outputs).view(batch, heads, tokens, -1)

"""Attention in blocks of queries, in bfloat16 on a CPU."""

import pytest
import torch
import torch.nn.functional as F
from tiny import max_difference

from cpvt_backbones.layers import blocked_attention
from cpvt_backbones.layers.attention import attend
from cpvt_backbones.layers.blocked_attention import (
    attend_in_blocks,
    suits_blocks,
)


def tensors(queries, keys, *, batch=2, heads=3, dtype=torch.float32):
    return [torch.randn(batch, heads, count, 8, dtype=dtype) for count in (queries, keys, keys)]


@pytest.fixture
def fast(monkeypatch):
    """A processor with products of bfloat16."""
    monkeypatch.setattr(blocked_attention, 'bfloat16_instructions', lambda: 'avx512_bf16')


@pytest.mark.parametrize('queries, keys', [(1, 1), (511, 7), (1024, 130), (1025, 1), (600, 2049)])
def test_blocks_are_the_formula(queries, keys):
    query, key, value = tensors(queries, keys)
    expected = F.scaled_dot_product_attention(query, key, value)
    assert max_difference(attend_in_blocks(query, key, value), expected) < 1e-5


def test_bfloat16_differs_from_float32_by_its_rounding():
    query, key, value = tensors(700, 300)
    expected = F.scaled_dot_product_attention(query, key, value)
    found = attend_in_blocks(*(part.bfloat16() for part in (query, key, value))).float()
    # Five roundings, of up to 2^-9 each, of inputs, logits, weights and outputs.
    assert (found - expected).abs().mean() < 5 * 2**-9 * expected.abs().mean()


def test_inference_in_bfloat16_uses_blocks(fast):
    query, key, value = tensors(200, 130, dtype=torch.bfloat16)
    assert suits_blocks(query, key, value)
    assert torch.equal(attend(query, key, value), attend_in_blocks(query, key, value))
    query.requires_grad_()
    assert not suits_blocks(query, key, value)
    with torch.no_grad():
        assert suits_blocks(query, key, value)


def test_masks_and_dropout_use_the_fused_kernel(fast):
    query, key, value = tensors(200, 130, dtype=torch.bfloat16)
    mask = torch.ones(1, 1, 1, 130, dtype=torch.bool)
    mask[..., 100:] = False
    assert torch.equal(
        attend(query, key, value, mask=mask),
        F.scaled_dot_product_attention(query, key, value, attn_mask=mask),
    )
    # Weights sum to 1 up to their rounding, unless half of them are dropped.
    dropped = attend(query, key, torch.ones_like(value), dropout=0.5)
    assert (dropped - 1).abs().max() > 0.1


def test_a_traced_model_has_no_blocks(fast):
    """Their number would be that of the example."""
    traced = torch.jit.trace(lambda *parts: attend(*parts), tensors(520, 130, dtype=torch.bfloat16))
    other = tensors(1100, 140, dtype=torch.bfloat16)
    assert torch.equal(traced(*other), F.scaled_dot_product_attention(*other))

"""Block, stochastic depth, layer scale, patch embedding."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import max_difference, randomise
from torch.nn import functional

from cpvt_backbones.layers import (
    MLP,
    Attention,
    Block,
    ConvMLP,
    DropPath,
    PatchEmbed,
    SpatialReductionAttention,
)


def block(**kwargs):
    return randomise(Block(8, attn=Attention(8, num_heads=2), **kwargs))


def test_drop_path_keeps_the_expected_fraction_and_the_mean():
    drop = DropPath(0.3).train()
    out = drop(torch.ones(20000, 2, 3))
    kept = out[:, 0, 0] != 0
    assert kept.float().mean().item() == pytest.approx(0.7, abs=0.02)
    assert (out == out[:, :1, :1]).all()  # a whole sample at a time
    assert torch.allclose(out[kept], torch.tensor(1 / 0.7))
    x = torch.randn(3, 4)
    assert drop.eval()(x) is x
    assert DropPath(0.0).train()(x) is x


@pytest.mark.parametrize('cls', [False, True])
def test_block_follows_its_formula(cls):
    model = block(layer_scale_init=0.3)
    tokens = x = torch.randn(2, int(cls) + 6, 8)
    x = x + model.attn(model.norm1(x), (2, 3), num_prefix=int(cls)) * model.ls1.gamma
    hidden = functional.gelu(model.norm2(x) @ model.mlp.fc1.weight.T + model.mlp.fc1.bias)
    x = x + (hidden @ model.mlp.fc2.weight.T + model.mlp.fc2.bias) * model.ls2.gamma
    assert max_difference(model(tokens, (2, 3), num_prefix=int(cls)), x) < 1e-5


ACTIVATIONS = {
    'gelu': lambda mlp, x: functional.gelu(mlp.fc1(x)),
    'gelu_tanh': lambda mlp, x: functional.gelu(mlp.fc1(x), approximate='tanh'),
    'quick_gelu': lambda mlp, x: mlp.fc1(x) / (1 + torch.exp(-1.702 * mlp.fc1(x))),
    'swiglu': lambda mlp, x: mlp.fc1_g(x) / (1 + torch.exp(-mlp.fc1_g(x))) * mlp.fc1_x(x),
}


@pytest.mark.parametrize('grad', [True, False])
@pytest.mark.parametrize('fused', [False, True])
@pytest.mark.parametrize('activation', ACTIVATIONS)
def test_activations_follow_their_formulas(activation, fused, grad):
    mlp, x = randomise(MLP(8, hidden_dim=16, activation=activation)), torch.randn(2, 5, 8)
    mlp.in_place = fused and not grad
    with torch.set_grad_enabled(grad):
        wanted = mlp.fc2(ACTIVATIONS[activation](mlp, x))
        assert max_difference(mlp(x), wanted) < 1e-6


def test_mlp_dropout_acts_in_training_only():
    mlp = randomise(MLP(8, hidden_dim=16, drop=0.5))
    x = torch.randn(1, 50, 8)
    assert (mlp.train()(x) == 0).float().mean().item() == pytest.approx(0.5, abs=0.1)
    assert torch.equal(mlp.eval()(x), mlp(x))
    mlp.drop.p = 1.0  # a rate changed after construction counts
    assert torch.equal(mlp.train()(x), torch.zeros_like(x))
    attention = randomise(Attention(8, num_heads=2))
    attention.proj_drop.p = 1.0
    assert torch.equal(attention.train()(x, (5, 10)), torch.zeros_like(x))


@given(height=st.integers(1, 20), width=st.integers(1, 20), patch=st.sampled_from([1, 2, 4, 7]))
def test_patch_embedding_pads_up_and_never_crops(height, width, patch):
    embed = randomise(PatchEmbed(3, 5, patch_size=patch)).double()
    images = torch.randn(2, 3, height, width, dtype=torch.float64)
    tokens, grid = embed(images)
    assert grid == (-(-height // patch), -(-width // patch))
    wanted = []
    for top in range(0, height, patch):
        for left in range(0, width, patch):
            piece = images[:, :, top : top + patch, left : left + patch]
            weight = embed.proj.weight[:, :, : piece.shape[2], : piece.shape[3]]
            wanted.append(torch.einsum('bcij,dcij->bd', piece, weight) + embed.proj.bias)
    assert max_difference(tokens, torch.stack(wanted, dim=1)) < 1e-12


def in_bfloat16(embed, images, autocast):
    with torch.no_grad(), torch.autocast('cpu', dtype=torch.bfloat16, enabled=autocast):
        return embed(images) if autocast else copy.deepcopy(embed).bfloat16()(images.bfloat16())


@pytest.mark.parametrize('autocast', [False, True])
def test_patch_embedding_in_bfloat16_is_that_in_fp32(autocast):
    """oneDNN's bf16 convolution is wrong on AMX for images one patch wide and six or more high.

    Weights and pixels are rounded to bf16 first. The rest is the rounding of the result, 2**-9 of
    its size, and sums of 768 products in fp32, whose rounding is 1000 times smaller.
    """
    embed = PatchEmbed(3, 8, patch_size=16)
    for parameter in embed.parameters():
        parameter.data = parameter.data.bfloat16().float()
    pixels = torch.randn(1, 3, 300, 300).bfloat16().float()
    for side in [1, 15, 16, 17, *range(80, 115), 160, 299, 300]:
        for height, width in ((side, 16), (16, side), (side, side)):
            images = pixels[:, :, :height, :width]
            if side % 2:
                images = images.contiguous(memory_format=torch.channels_last)
            wanted, grid = embed(images)
            tokens, found_grid = in_bfloat16(embed, images, autocast)
            assert found_grid == grid
            assert tokens.dtype == torch.bfloat16 and tokens.is_contiguous()
            torch.testing.assert_close(tokens.float(), wanted, rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize('autocast', [False, True])
def test_patch_embedding_in_bfloat16_is_no_convolution(autocast):
    with torch.autograd.profiler.profile() as profile:
        in_bfloat16(PatchEmbed(3, 8, patch_size=16), torch.randn(1, 3, 96, 16), autocast)
    assert not any('conv' in event.name for event in profile.function_events)


def test_key_reduction_in_bfloat16_is_that_in_fp32():
    attention = SpatialReductionAttention(16, num_heads=2, sr_ratio=4)
    tokens = torch.randn(2, 9 * 3, 16)
    wanted = attention.reduce(tokens, (9, 3))
    found = attention.bfloat16().reduce(tokens.bfloat16(), (9, 3))
    # LayerNorm makes values of about 1 from sums of 256 products that were rounded to bf16, 2**-9,
    # three times.
    torch.testing.assert_close(found.float(), wanted, rtol=0, atol=4 * 2**-7)


@pytest.mark.parametrize('in_place', [False, True])
@pytest.mark.parametrize('tokens', [1, 7, 40, 101])
def test_inference_in_parts_gives_each_token_the_same(tokens, in_place, monkeypatch):
    """On a CPU the MLP takes the tokens in parts when no backward pass needs them."""
    mlp, x = MLP(12, hidden_dim=20).eval(), torch.randn(3, tokens, 12)
    expected, sizes = mlp(x).detach(), []
    for limit in ('WHOLE_BYTES', 'PART_BYTES'):  # eleven tokens at a time
        monkeypatch.setattr(f'cpvt_backbones.layers.block.{limit}', 20 * 4 * 11)
    mlp.in_place = in_place
    mlp.fc1.register_forward_pre_hook(lambda _, inputs: sizes.append(inputs[0].numel() // 12))
    with torch.no_grad():
        found = mlp(x)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    assert max(sizes) <= 11 and sum(sizes) == 3 * tokens


@pytest.mark.parametrize('in_place', [False, True])
@pytest.mark.parametrize('num_prefix', [0, 2])
@pytest.mark.parametrize('kernel_size', [1, 3, 7])
@pytest.mark.parametrize('grid', [(1, 1), (1, 40), (40, 1), (9, 5), (23, 4)])
def test_conv_mlp_in_bands_is_that_of_the_whole_map(
    grid, kernel_size, num_prefix, in_place, monkeypatch
):
    """A band of rows is computed with the rows that the kernel reaches above and below."""
    mlp = ConvMLP(12, hidden_dim=20, kernel_size=kernel_size).eval()
    x = torch.randn(3, num_prefix + grid[0] * grid[1], 12)
    expected, rows = mlp(x, grid, num_prefix).detach(), []
    for limit in ('WHOLE_BYTES', 'PART_BYTES'):  # the hidden layer of two rows
        monkeypatch.setattr(f'cpvt_backbones.layers.block.{limit}', 20 * 4 * 2 * grid[1])
    mlp.in_place = in_place
    mlp.dwconv.register_forward_pre_hook(lambda _, inputs: rows.append(inputs[0].shape[2]))
    with torch.no_grad():
        found = mlp(x, grid, num_prefix)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    assert max(rows) <= 2 + 2 * (kernel_size // 2)
    assert sum(rows) >= 3 * grid[0]

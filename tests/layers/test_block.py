"""Block, stochastic depth, layer scale, patch embedding."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import max_difference, randomise

from cpvt_backbones.layers import (
    MLP,
    Attention,
    Block,
    DropPath,
    PatchEmbed,
    SpatialReductionAttention,
    map_to_tokens,
    tokens_to_map,
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


@pytest.mark.parametrize('rate', [-0.1, 1.0, 1, '0.1', True])
def test_drop_path_rate_out_of_range(rate):
    with pytest.raises(ValueError, match=r'drop_path_rate must be a number in \[0, 1\), got'):
        DropPath(rate)


def test_stochastic_depth_once_a_branch():
    """Of many samples, the fraction (1 - p)^2 keeps both branches, p^2 is passed through
    untouched.
    """
    model, rate = block(drop_path=0.4), 0.4
    x = torch.randn(1, 4, 8).expand(4000, -1, -1)
    with torch.no_grad():
        out, _ = model.train()(x, None, (2, 2))
    assert (out == x).all((1, 2)).float().mean().item() == pytest.approx(rate**2, abs=0.03)
    # Which branch survived shows in the number of distinct results: none, attention, MLP, both.
    patterns, counts = out.flatten(1).mul(1e4).round().unique(dim=0, return_counts=True)
    assert len(patterns) == 4
    wanted = sorted([rate**2, rate * (1 - rate), rate * (1 - rate), (1 - rate) ** 2])
    assert torch.allclose((counts / 4000).sort().values, torch.tensor(wanted), atol=0.03)


@pytest.mark.parametrize('cls', [False, True])
def test_block_follows_its_formula(cls):
    model = block(layer_scale_init=0.3)
    tokens, cls_token = torch.randn(2, 6, 8), torch.randn(2, 1, 8) if cls else None
    x = torch.cat((cls_token, tokens), dim=1) if cls else tokens
    x = x + model.attn(model.norm1(x), (2, 3), num_prefix=int(cls)) * model.ls1.gamma
    hidden = torch.nn.functional.gelu(model.norm2(x) @ model.mlp.fc1.weight.T + model.mlp.fc1.bias)
    x = x + (hidden @ model.mlp.fc2.weight.T + model.mlp.fc2.bias) * model.ls2.gamma
    got, got_cls = model(tokens, cls_token, (2, 3))
    assert max_difference(got, x[:, int(cls) :]) < 1e-5
    if cls:
        assert max_difference(got_cls, x[:, :1]) < 1e-5
    else:
        assert got_cls is None


@pytest.mark.parametrize('fused', [False, True])
def test_other_activations_follow_their_formulas(fused):
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        quick = randomise(MLP(8, hidden_dim=16, activation='quick_gelu'))
        quick.in_place = fused
        h = quick.fc1(x)
        assert max_difference(quick(x), quick.fc2(h / (1 + torch.exp(-1.702 * h)))) < 1e-6
        gated = randomise(MLP(8, hidden_dim=16, activation='swiglu'))
        gated.in_place = fused
        g = gated.fc1_g(x)
        assert max_difference(gated(x), gated.fc2(g / (1 + torch.exp(-g)) * gated.fc1_x(x))) < 1e-6


def test_activation_of_another_name():
    names = r"\['gelu', 'gelu_tanh', 'quick_gelu', 'swiglu'\]"
    with pytest.raises(ValueError, match=rf"activation must be one of {names}, got 'relu'"):
        MLP(8, hidden_dim=16, activation='relu')


@pytest.mark.parametrize('grad', [True, False])
def test_gelu_by_tanh(grad):
    mlp = randomise(MLP(8, hidden_dim=16, activation='gelu_tanh')).eval()
    x = torch.randn(2, 3, 8)
    with torch.set_grad_enabled(grad):
        hidden = torch.nn.functional.gelu(mlp.fc1(x), approximate='tanh')
        assert torch.allclose(mlp(x), mlp.fc2(hidden), atol=1e-6)
        assert not torch.allclose(mlp(x), mlp.fc2(torch.nn.functional.gelu(mlp.fc1(x))), atol=1e-6)


def test_layer_scale_starts_where_it_is_told():
    model = Block(8, attn=Attention(8, num_heads=2), layer_scale_init=1e-5)
    assert torch.equal(model.ls1.gamma, torch.full((8,), 1e-5))
    assert torch.equal(model.ls2.gamma, torch.full((8,), 1e-5))


def test_mlp_dropout_acts_in_training_only():
    mlp = randomise(MLP(8, hidden_dim=16, drop=0.5))
    x = torch.randn(1, 50, 8)
    assert (mlp.train()(x) == 0).float().mean().item() == pytest.approx(0.5, abs=0.1)
    assert torch.equal(mlp.eval()(x), mlp(x))


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


def test_patch_embedding_norm():
    embed = randomise(PatchEmbed(3, 8, patch_size=4, norm_eps=1e-3))
    assert embed.norm.eps == 1e-3
    tokens, _ = embed(torch.randn(1, 3, 8, 8))
    bare = map_to_tokens(embed.proj(torch.randn(1, 3, 8, 8)))
    assert tokens.shape == bare.shape == (1, 4, 8)


@pytest.mark.parametrize('shape', [(2, 3, 32, 48), (1, 3, 20, 9)])
def test_tokens_come_out_contiguous(shape):
    assert PatchEmbed(3, 8, patch_size=16)(torch.randn(shape))[0].is_contiguous()


def in_bfloat16(embed, images, autocast):
    with torch.no_grad(), torch.autocast('cpu', dtype=torch.bfloat16, enabled=autocast):
        return embed(images) if autocast else copy.deepcopy(embed).bfloat16()(images.bfloat16())


@pytest.mark.parametrize('autocast', [False, True])
def test_patch_embedding_in_bfloat16_is_that_in_fp32(autocast):
    """At every height up to 300: oneDNN's bf16 convolution is wrong on AMX for images one patch
    wide.

    Weights and pixels are rounded to bf16 first. The rest is the rounding of the result, 2**-9 of
    its size, and sums of 768 products in fp32, whose rounding is 1000 times smaller.
    """
    torch.manual_seed(0)
    embed = PatchEmbed(3, 8, patch_size=16)
    for parameter in embed.parameters():
        parameter.data = parameter.data.bfloat16().float()
    pixels = torch.randn(1, 3, 300, 300).bfloat16().float()
    for side in range(1, 301):
        for height, width in [(side, 16)] if side % 20 else [(side, 16), (16, side), (side, side)]:
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
    torch.manual_seed(0)
    attention = SpatialReductionAttention(16, num_heads=2, sr_ratio=4)
    tokens = torch.randn(2, 9 * 3, 16)
    wanted = attention.reduce(tokens, (9, 3))
    found = attention.bfloat16().reduce(tokens.bfloat16(), (9, 3))
    # LayerNorm makes values of about 1 from sums of 256 products that were rounded to bf16, 2**-9,
    # three times.
    torch.testing.assert_close(found.float(), wanted, rtol=0, atol=4 * 2**-7)


def test_layouts_are_views_and_inverses():
    tokens = torch.randn(2, 15, 4)
    feature_map = tokens_to_map(tokens, (3, 5))
    assert feature_map.shape == (2, 4, 3, 5)
    assert feature_map.data_ptr() == tokens.data_ptr()
    assert feature_map.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(feature_map[:, :, 1, 2], tokens[:, 7])
    assert torch.equal(map_to_tokens(feature_map), tokens)
    assert map_to_tokens(feature_map).data_ptr() == tokens.data_ptr()


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (dict(in_channels=0, dim=8, patch_size=4), 'in_channels must be an integer >= 1, got 0'),
        (dict(in_channels=3, dim=0, patch_size=4), 'embed_dims must be an integer >= 1, got 0'),
        (dict(in_channels=3, dim=8, patch_size=0), 'patch_size must be an integer >= 1, got 0'),
    ],
)
def test_wrong_patch_embedding(arguments, message):
    with pytest.raises(ValueError, match=message):
        PatchEmbed(**arguments)


@pytest.mark.parametrize('tokens', [1, 7, 40, 101])
def test_inference_in_parts_gives_each_token_the_same(tokens, monkeypatch):
    """On a CPU the MLP takes the tokens in parts when nothing has to be kept for a backward
    pass.
    """
    torch.manual_seed(0)
    mlp = MLP(12, hidden_dim=20).eval()
    x = torch.randn(3, tokens, 12)
    with torch.no_grad():
        whole = mlp(x)
    expected = mlp(x).detach()
    for limit in ('WHOLE_BYTES', 'PART_BYTES'):
        monkeypatch.setattr(
            f'cpvt_backbones.layers.block.{limit}', 20 * 4 * 11
        )  # eleven tokens at a time
    sizes = []
    mlp.fc1.register_forward_pre_hook(lambda _, inputs: sizes.append(inputs[0].numel() // 12))
    with torch.no_grad():
        found = mlp(x)
    assert max(sizes) <= 11 and sum(sizes) == 3 * tokens
    for in_place in (False, True):
        mlp.in_place = in_place
        with torch.no_grad():
            found = mlp(x)
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(found, whole, atol=1e-6, rtol=1e-6)

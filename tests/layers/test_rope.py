"""Rotary encodings against timm's functions and against the formula, in every kind of attention."""

import math

import pytest
import torch
from attention_formula import attention_by_formula, places
from hypothesis import given
from hypothesis import strategies as st
from tiny import column, max_difference, randomise

from cpvt_backbones import PyramidCPVT
from cpvt_backbones.layers import (
    Attention,
    AxialBias,
    RoPE,
    SpatialReductionAttention,
    Stage,
    WindowAttention,
)

MODES = ('axial', 'mixed', 'dinov3', 'eva', 'pe')
GRIDS = [(14, 14), (9, 17), (1, 5)]


def build(mode, *, dim=32, heads=2, sr_ratio=1, depth=2, **kwargs):
    stage = Stage(
        dim=dim, depth=depth, used=depth, head_dim=dim // heads, grid=(4, 4), sr_ratio=sr_ratio
    )
    return RoPE([stage], mode=mode, **kwargs)


def turned(encoding, grid, query, key, *, num_prefix=0, block=1, arrange=None):
    prepared = encoding.prepare(0, grid, num_prefix, query.device)
    return encoding.rotate(0, block, query, key, prepared, arrange)


def by_hand(encoding, x, coordinates, grid, block):
    """Patch tokens (B, heads, N, d) at (row, column) turned by the docstring's formulas, in double
    precision.
    """
    y, x_, quarter = *coordinates.double().unbind(-1), x.shape[-1] // 4
    w = torch.tensor(
        [encoding.temperature ** (-i / quarter) for i in range(quarter)], dtype=torch.float64
    )
    if encoding.mode == 'mixed':
        f, g = encoding.freqs[block].double()[:, :, None]
        angles = x_[:, None] * f + y[:, None] * g
    else:
        if encoding.mode == 'dinov3':
            y, x_ = (
                2 * math.pi * (2 * (c + 0.5) / n - 1) for c, n in ((y, grid[0]), (x_, grid[1]))
            )
        elif encoding.mode == 'eva':
            y, x_ = y * 16 / grid[0], x_ * 16 / grid[1]
        elif encoding.mode == 'pe':
            shift = min(encoding.stages[0].num_prefix, 1)
            y, x_ = ((c + shift) * 4 / n for c, n in ((y, grid[0]), (x_, grid[1])))
        order = (x_, y) if encoding.mode in ('axial', 'pe') else (y, x_)
        angles = torch.cat([c[:, None] * w for c in order], dim=-1)
    turn = torch.polar(torch.ones_like(angles), angles)
    if encoding.mode == 'dinov3':
        first, second = x.double().chunk(2, dim=-1)
        out = torch.complex(first, second) * turn
        return torch.cat((out.real, out.imag), dim=-1)
    out = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous()) * turn
    return torch.view_as_real(out).flatten(-2)


# -- formulas
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('grid', GRIDS)
@pytest.mark.parametrize('mode', MODES)
def test_rotation_equals_timm(mode, grid, record_property):
    rope = pytest.importorskip('timm.layers.pos_embed_sincos')
    ours = build(mode)
    if mode == 'dinov3':
        theirs = rope.RotaryEmbeddingDinoV3(16, temperature=100.0).get_embed(grid)
    elif mode == 'mixed':
        peer = rope.RotaryEmbeddingMixed(
            dim=32, depth=2, num_heads=2, temperature=10.0, grid_indexing='xy'
        )
        ours.load_state_dict(peer.state_dict())
        theirs = peer.get_embed(grid)[1]
    else:
        options = dict(
            axial=dict(temperature=100.0, grid_indexing='xy'),
            eva=dict(ref_feat_shape=[16, 16]),
            pe=dict(ref_feat_shape=[4, 4], grid_indexing='xy'),
        )[mode]
        theirs = rope.RotaryEmbeddingCat(16, in_pixels=False, **options).get_embed(grid)
    query = torch.rand(2, 2, grid[0] * grid[1], 16)
    got, _ = turned(ours, grid, query, query)
    difference = max_difference(got, rope.apply_rot_embed_cat(query, theirs, half=mode == 'dinov3'))
    record_property('difference', difference)
    assert difference <= 1e-6


def test_the_grid_of_pretraining_does_not_follow_the_image_size():
    stage = Stage(dim=32, depth=2, used=2, head_dim=16, grid=(7, 5))
    wanted, other = RoPE([stage], mode='pe', grid=4), RoPE([stage], mode='pe')
    query = torch.randn(1, 2, 6, 16)
    found = [turned(ours, (2, 3), query, query)[0] for ours in (build('pe'), wanted, other)]
    assert torch.equal(found[0], found[1]) and not torch.allclose(found[0], found[2])
    with pytest.raises(ValueError, match="grid must be None but with mode='pe', got 4 for 'eva'"):
        RoPE([stage], mode='eva', grid=4)
    with pytest.raises(ValueError, match='grid must be a positive integer or .*, got 0'):
        RoPE([stage], mode='pe', grid=0)


@pytest.mark.parametrize('mode', MODES)
@given(
    grid=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    num_prefix=st.integers(0, 5),
    sr_ratio=st.integers(1, 4),
)
def test_rotation_follows_the_formula(mode, grid, num_prefix, sr_ratio):
    """Keys of a reduction are at the centres of their cells.

    Prefix tokens are not turned at all.
    """
    ours = build(mode, sr_ratio=sr_ratio)
    cells = math.prod(-(-n // sr_ratio) for n in grid)
    query, key = (torch.randn(2, 2, num_prefix + n, 16) for n in (grid[0] * grid[1], cells))
    for got, given_, cell in zip(
        turned(ours, grid, query, key, num_prefix=num_prefix),
        (query, key),
        (1, sr_ratio),
        strict=True,
    ):
        assert torch.equal(got[:, :, :num_prefix], given_[:, :, :num_prefix])
        wanted = by_hand(ours, given_[:, :, num_prefix:], places(grid, cell=cell), grid, 1)
        # fp32 angles up to 30 + 1 for a pair of axes, and as much of sine and cosine
        assert max_difference(got[:, :, num_prefix:], wanted) < 5e-5


def test_learned_frequencies_start_as_in_timm(monkeypatch):
    rope = pytest.importorskip('timm.layers.pos_embed_sincos')
    drawn = torch.rand(2, 3, 1)
    monkeypatch.setattr(
        torch, 'rand', lambda *shape, **_: drawn if len(shape) == 3 else angles.pop(0)
    )
    angles = list(drawn)
    ours = build('mixed', dim=48, heads=3)
    wanted = rope.init_random_2d_freqs(16, depth=2, num_heads=3, temperature=10.0)
    assert max_difference(torch.stack(tuple(ours.freqs), dim=1), wanted) < 1e-6


# -- in attention
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('num_prefix', [0, 5])
@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize(
    ('kind', 'size'), [('global', 99), ('window', 3), ('window', 4), ('reduction', 2)]
)
def test_attention_turns_queries_and_keys(kind, size, mode, num_prefix):
    """In windows, too, coordinates are those of the whole grid."""
    grid = (7, 5)
    attn = {
        'global': lambda: Attention(32, num_heads=2),
        'window': lambda: WindowAttention(32, num_heads=2, window_size=size),
        'reduction': lambda: SpatialReductionAttention(32, num_heads=2, sr_ratio=size),
    }[kind]()
    attn = randomise(attn).double()
    cell = size if kind == 'reduction' else 1
    ours = build(mode, sr_ratio=cell)
    x = torch.randn(2, num_prefix + 35, 32, dtype=torch.float64)
    prepared = ours.prepare(0, grid, num_prefix, x.device)
    rotate = lambda q, k, arrange: ours.rotate(0, 1, q, k, prepared, arrange)  # noqa: E731
    got = attn(x, grid, num_prefix=num_prefix, rotate=rotate)

    def turn(query, key):
        for tokens, side in ((query, 1), (key, cell)):
            prefix, patches = tokens.tensor_split([num_prefix], dim=2)
            patches = by_hand(ours, patches, places(grid, cell=side), grid, 1)
            yield torch.cat((prefix, patches), dim=2)

    wanted = attention_by_formula(
        attn,
        x,
        grid,
        num_prefix,
        window=size if kind == 'window' else None,
        source=attn.reduce(x, grid, num_prefix) if kind == 'reduction' else None,
        turn=turn,
    )
    assert max_difference(got, wanted) < 1e-5  # the angles are fp32
    assert max_difference(got, attn(x, grid, num_prefix=num_prefix)) > 1e-3


@pytest.mark.parametrize('window', [2, 64])
@pytest.mark.parametrize('mode', MODES)
def test_keys_in_windows_are_not_reduced(mode, window):
    """With one block a stage, which has windows, a pyramid reduces no keys."""
    arch = dict(
        depths=(1,) * 4,
        embed_dims=(8, 8, 16, 16),
        num_heads=(1, 2, 2, 2),
        mlp_ratios=(2.0,) * 4,
        window_size=window,
    )
    position = dict(type='RoPE', mode=mode)
    reducing, plain = (
        PyramidCPVT(arch={**arch, 'sr_ratios': ratios}, position=position).eval()
        for ratios in ((4, 2, 2, 1), (1,) * 4)
    )
    plain.load_state_dict(randomise(reducing).state_dict())
    images = torch.randn(1, 3, 40, 56)
    for got, wanted in zip(reducing(images), plain(images), strict=True):
        assert torch.equal(got, wanted)


def test_a_bias_is_of_queries_before_their_rotation():
    attn, ours, seen = Attention(32, num_heads=2), build('axial'), []
    x = torch.randn(1, 6, 32)

    def bias(query, grid):
        seen.append(query)
        return AxialBias(query.new_zeros(1, 2, 6, 2), query.new_zeros(1, 2, 6, 3))

    prepared = ours.prepare(0, (2, 3), 0, x.device)
    rotate = lambda q, k, arrange: ours.rotate(0, 0, q, k, prepared, arrange)  # noqa: E731
    attn(x, (2, 3), bias=bias, rotate=rotate)
    assert torch.equal(seen[0], attn.query_key_value(x, (2, 3), 0, None)[0])


# -- precision, training
# -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_angles_are_fp32_in_half_precision(mode, dtype):
    """At 60 tokens from the border a half-precision angle would be wrong by a quarter."""
    ours, grid = build(mode), (2, 64)
    query = torch.rand(1, 2, 128, 16).to(dtype)
    with torch.no_grad(), torch.autocast('cpu', dtype=dtype):
        got, _ = turned(ours, grid, query, query)
    assert got.dtype == dtype
    wanted = by_hand(ours, query, places(grid), grid, 1)
    assert max_difference(got, wanted) < 2 * torch.finfo(dtype).eps


def test_rescaling_is_of_training_and_one_factor_a_forward_pass():
    ours, cpu = build('dinov3', rescale_coords=2.0), torch.device('cpu')
    # The angle of the lowest frequency of the right border, below pi for any factor.
    lowest = 2 * math.pi * (7 / 8) * 100 ** (-3 / 4)
    factors = []
    for _ in range(200):
        cos, sin = ours.prepare(0, (1, 8), 0, cpu)[0]
        factors.append(math.atan2(sin[0, -1, -1], cos[0, -1, -1]) / lowest)
    assert 0.5 <= min(factors) < 0.6 and 1.7 < max(factors) <= 2.0
    # Log-uniform: half of them shrink; 5.6 deviations.
    assert 60 <= sum(factor < 1 for factor in factors) <= 140
    plain, evaluated = (m.prepare(0, (1, 8), 0, cpu)[0] for m in (build('dinov3'), ours.eval()))
    assert all(torch.equal(a, b) for a, b in zip(plain, evaluated, strict=True))


def test_checkpointing_recomputes_with_the_same_factor_and_dropout():
    position = dict(type='RoPE', mode='dinov3', rescale_coords=2.0)
    options = dict(position=position, drop_rate=0.5, drop_path_rate=0.5)
    plain, saving = randomise(column(**options)), column(with_cp=True, **options)
    saving.load_state_dict(plain.state_dict())
    for model in (plain, saving):
        torch.manual_seed(3)
        (out,) = model(torch.ones(2, 3, 64, 64), valid_sizes=[(64, 48), (40, 64)])
        out.square().mean().backward()
    for left, right in zip(plain.parameters(), saving.parameters(), strict=True):
        torch.testing.assert_close(left.grad, right.grad)


def test_timm_s_one_tensor_of_frequencies_is_read_and_cut_to_the_blocks_built():
    state = column(position=dict(type='RoPE', mode='mixed')).state_dict()
    freqs = torch.stack([state.pop(f'rope.freqs.{i}') for i in range(4)], dim=1)
    model = column(position=dict(type='RoPE', mode='mixed'), out_indices=1)
    missing, _ = model.load_state_dict({**state, 'rope.freqs': freqs}, strict=False)
    assert not missing
    assert torch.equal(model.rope.freqs[1], freqs[:, 1])

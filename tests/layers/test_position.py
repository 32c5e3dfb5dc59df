"""Learned table, sin-cos and relative encodings against independent formulas."""

import functools
import math
import re

import pytest
import torch
from attention_formula import attention_by_formula
from hypothesis import given
from hypothesis import strategies as st
from mmengine.runner.checkpoint import load_state_dict
from tiny import PYRAMID, column, max_difference, multi_scale, pyramid, randomise
from torch.nn import functional

from cpvt_backbones.layers import (
    PEG,
    POSITIONS,
    Attention,
    DecomposedRelative,
    LearnedTable,
    PositionEncoding,
    Relative,
    RelativeBias,
    SinCos,
    Stage,
    WindowAttention,
    build_positions,
    register_position,
)
from cpvt_backbones.layers import position as position_module


def stage(dim=8, grid=(4, 4), **kwargs):
    return Stage(
        **{'dim': dim, 'depth': 2, 'used': 2, 'head_dim': dim // 2, 'grid': grid, **kwargs}
    )


# -- learned
# --------------------------------------------------------------------------------------------------


def along(length, new, offset):
    """Weights (new, length) of a bicubic interpolation along an axis, as in Meta's DINOv2."""
    weights = torch.zeros(new, length, dtype=torch.float64)
    for cell in range(new):
        place = (cell + 0.5) * length / (new + offset) - 0.5
        first = math.floor(place) - 1
        for source in range(first, first + 4):
            x, a = abs(place - source), -0.75
            near = (a + 2) * x**3 - (a + 3) * x**2 + 1
            far = a * (x**3 - 5 * x**2 + 8 * x - 4)
            weights[cell, min(max(source, 0), length - 1)] += near if x <= 1 else far
    return weights


@pytest.mark.parametrize('new', [(5, 9), (14, 14), (14, 20), (3, 2)])
def test_a_table_with_an_offset_is_resized_as_dinov2_does(new):
    table = LearnedTable([stage(8)], antialias=False, offset=0.1)
    entries = torch.randn(1, 14 * 14, 8, dtype=torch.float64)
    found = table.resize(entries, (14, 14), new)
    rows, columns = (along(14, length, 0.1) for length in new)
    wanted = torch.einsum('ry,cx,byxd->brcd', rows, columns, entries.unflatten(1, (14, 14)))
    wanted = entries if new == (14, 14) else wanted.flatten(1, 2)
    assert max_difference(found, wanted) < 1e-12
    if new != (14, 14):
        plain = LearnedTable([stage(8)], antialias=False).resize(entries, (14, 14), new)
        assert max_difference(found, plain) > 1e-3


@pytest.mark.parametrize('new', [(14, 14), (7, 9), (20, 3), (1, 1), (24, 33)])
@pytest.mark.parametrize('num_prefix', [0, 1])
def test_learned_resize_equals_timm(new, num_prefix):
    timm_layers = pytest.importorskip('timm.layers')
    table = LearnedTable([stage(16, (14, 14), num_prefix=num_prefix)])
    tokens, cls_token = torch.zeros(1, new[0] * new[1], 16), torch.zeros(1, 1, 16)
    got, got_cls, grid = table.before_stage(0, tokens, cls_token if num_prefix else None, new)
    wanted = timm_layers.resample_abs_pos_embed(
        table.get_parameter('0'), list(new), old_size=[14, 14], num_prefix_tokens=num_prefix
    )
    assert grid == new
    assert max_difference(got, wanted[:, num_prefix:]) <= 1e-6
    if num_prefix:
        assert torch.equal(got_cls, table.get_parameter('0')[:, :1])


def load(source, target, *, key='pos_embed.0'):
    """The table of ``target`` after loading; the caller's state dict stays as it was."""
    state = source.state_dict()
    state[key] = state.pop('pos_embed.0')
    before = {k: v.clone() for k, v in state.items()}
    target.load_state_dict(state)
    assert list(state) == list(before)
    assert all(torch.equal(state[k], v) for k, v in before.items())
    return target.pos_embed.get_parameter('0')


def learned(img_size, **kwargs):
    return column(position=dict(type='Learned'), img_size=img_size, **kwargs)


@pytest.mark.parametrize('prefix', [1, 2], ids=['class token', 'and distillation token'])
@pytest.mark.parametrize('key', ['pos_embed.0', 'pos_embed'])
def test_a_table_of_another_grid_is_resized_on_loading(key, prefix):
    timm_layers = pytest.importorskip('timm.layers')
    source, target = (learned(size, with_dist_token=prefix == 2) for size in (64, (96, 128)))
    table = source.pos_embed.get_parameter('0')
    wanted = timm_layers.resample_abs_pos_embed(table, [6, 8], num_prefix_tokens=prefix)
    got = load(source, target, key=key)
    assert torch.equal(got[:, :prefix], table[:, :prefix])
    assert max_difference(got, wanted) < 1e-6


def test_a_class_token_s_entry_is_told_by_the_class_token():
    # 25 entries: a class token's and 4 x 6, or 5 x 5.
    source, target = learned((64, 96)), learned(128, with_cls_token=False)
    table = source.pos_embed.get_parameter('0')
    assert table.shape[1] == 25
    square = target.pos_embed.resize(table, (5, 5), (8, 8))
    state = source.state_dict()
    del state['cls_token'], state['pos_embed.grid_0']
    target.load_state_dict(state)
    assert max_difference(target.pos_embed.get_parameter('0'), square) < 1e-6
    same_grid = learned((64, 96), with_cls_token=False)
    same_grid.load_state_dict(source.state_dict(), strict=False)
    assert torch.equal(same_grid.pos_embed.get_parameter('0'), table[:, 1:])


def test_a_table_that_cannot_be_read_is_an_error_that_names_it():
    state = learned(64).state_dict()
    state['pos_embed.0'] = torch.zeros(1, 23, 24)
    with pytest.raises(RuntimeError, match=r'size mismatch for pos_embed\.0'):
        learned(64).load_state_dict(state)


def test_the_bare_key_is_read_below_a_prefix_and_by_mmengine():
    source, target = learned(64), learned(96)
    state = {f'backbone.{key}': value for key, value in source.state_dict().items()}
    state['backbone.pos_embed'] = state.pop('backbone.pos_embed.0')
    load_state_dict(torch.nn.ModuleDict({'backbone': target}), state, strict=True)
    table = source.pos_embed.get_parameter('0')[:, 1:]
    wanted = target.pos_embed.resize(table, (4, 4), (6, 6))
    assert torch.equal(target.pos_embed.get_parameter('0')[:, 1:], wanted)


# -- sin-cos
# --------------------------------------------------------------------------------------------------


@given(height=st.integers(1, 40), width=st.integers(1, 40), dim=st.sampled_from([4, 8, 24]))
def test_sin_cos_follows_the_formula(height, width, dim):
    tokens, cls_token = torch.randn(2, height * width, dim), torch.randn(2, 1, dim)
    encoding = SinCos([stage(dim)])
    assert not list(encoding.parameters())
    got, got_cls, grid = encoding.before_stage(0, tokens, cls_token, (height, width))
    frequencies = torch.tensor([10000.0 ** (-4 * i / dim) for i in range(dim // 4)])
    y = torch.arange(height)[:, None].double() * frequencies
    x = torch.arange(width)[:, None].double() * frequencies
    parts = [y.sin()[:, None], y.cos()[:, None], x.sin()[None], x.cos()[None]]
    wanted = torch.cat([part.expand(height, width, -1) for part in parts], dim=-1)
    assert grid == (height, width)
    assert got_cls is cls_token
    assert max_difference(got - tokens, wanted.view(1, -1, dim).expand_as(got)) < 1e-5


@pytest.mark.parametrize('new', [(4, 4), (7, 9), (2, 11), (1, 1)])
def test_interpolated_sin_cos_is_a_resized_table(new):
    own = (4, 4)
    counted, resized = SinCos([stage(8)]), SinCos([stage(8)], resize='interpolate')
    zeros = torch.zeros(1, 16, 8)
    entries = counted.before_stage(0, zeros, None, own)[0]
    wanted = LearnedTable([stage(8)]).resize(entries, own, new)
    found = resized.before_stage(0, torch.zeros(1, new[0] * new[1], 8), None, new)[0]
    assert max_difference(found, wanted) <= 1e-6
    if new == own:
        assert torch.equal(found, entries)


# -- relative
# --------------------------------------------------------------------------------------------------


def naive_relative(query, grid, row, col, clip):
    """(B, heads, N, N): q_i . (row[dy] + column[dx]) / sqrt(d), offsets clipped, pair by pair."""
    count = grid[0] * grid[1]
    out = query.new_zeros(*query.shape[:2], count, count)
    for i in range(count):
        for j in range(count):
            dy = min(max(j // grid[1] - i // grid[1], -clip), clip)
            dx = min(max(j % grid[1] - i % grid[1], -clip), clip)
            out[:, :, i, j] = query[:, :, i] @ (row[dy + clip] + col[dx + clip])
    return out / query.shape[-1] ** 0.5


@pytest.mark.parametrize('grid', [(1, 1), (3, 5), (6, 2)])
@pytest.mark.parametrize('clip', [1, 2, 8])
def test_relative_bias_follows_the_formula(grid, clip):
    encoding = Relative([stage()], clip=clip).double()
    query = torch.randn(2, 3, grid[0] * grid[1], 4, dtype=torch.float64)
    for block in (0, 1):
        tables = encoding.get_submodule(str(block))
        wanted = naive_relative(query, grid, tables['row'], tables['column'], clip)
        found = encoding.attention_bias(0, block, query, grid).to_mask()
        assert max_difference(found, wanted) < 1e-12


@pytest.mark.parametrize('num_prefix', [0, 1])
@pytest.mark.parametrize('window', [None, 3, 4])
def test_relative_in_attention(window, num_prefix):
    grid, clip = (7, 5), 2
    encoding = Relative([stage()], clip=clip).double()
    for parameter in encoding.parameters():
        torch.nn.init.normal_(parameter)
    if window is None:
        attn = randomise(Attention(8, num_heads=2)).double()
    else:
        attn = randomise(WindowAttention(8, num_heads=2, window_size=window)).double()
    x = torch.randn(2, num_prefix + 35, 8, dtype=torch.float64)
    options = dict(grid=grid, num_prefix=num_prefix)
    got = attn(x, bias=lambda q, g: encoding.attention_bias(0, 1, q, g), **options)
    tables = encoding.get_submodule('1')
    wanted = attention_by_formula(
        attn,
        x,
        window=window,
        bias=lambda query: naive_relative(query, grid, tables['row'], tables['column'], clip),
        **options,
    )
    assert max_difference(got, wanted) < 1e-10
    assert max_difference(got, attn(x, **options)) > 1e-3


@pytest.mark.parametrize('kind', ['Relative', 'DecomposedRelative', 'RelativeBias'])
def test_relative_runs_in_a_pyramid_that_reduces_no_keys_and_is_refused_in_one_that_does(kind):
    arch = {**PYRAMID, 'sr_ratios': (1, 1, 1, 1)}
    assert len(pyramid(arch=arch, position=dict(type=kind))(torch.randn(1, 3, 40, 30))) == 4
    with pytest.raises(ValueError, match=rf"position type must not be '{kind}' .*stage 0"):
        pyramid(position=dict(type=kind))


# -- decomposed relative
# --------------------------------------------------------------------------------------------------


def naive_resize(table, length):
    """Linear interpolation between the centres of cells, entry by entry."""
    size = 2 * length - 1
    resized = []
    for i in range(size):
        place = min(max((i + 0.5) * len(table) / size - 0.5, 0), len(table) - 1)
        low = int(place)
        high = min(low + 1, len(table) - 1)
        resized.append(table[low] + (place - low) * (table[high] - table[low]))
    return torch.stack(resized)


def naive_decomposed(query, grid, h, w):
    """(B, heads, N, N): q_i . (h[dy] + w[dx]), pair by pair, for tables that are for the grid."""
    count = grid[0] * grid[1]
    out = query.new_zeros(*query.shape[:2], count, count)
    for i in range(count):
        for j in range(count):
            dy, dx = i // grid[1] - j // grid[1], i % grid[1] - j % grid[1]
            vector = h[dy + len(h) // 2] + w[dx + len(w) // 2]
            out[:, :, i, j] = query[:, :, i] @ vector
    return out


def decomposed(**options):
    encoding = DecomposedRelative([stage(**options)], grid=(4, 3)).double()
    for parameter in encoding.parameters():
        assert not parameter.any()
        torch.nn.init.normal_(parameter)
    return encoding


@pytest.mark.parametrize('grid', [(4, 3), (1, 1), (7, 2), (2, 9)])
def test_decomposed_bias_follows_the_formula_and_its_tables_are_resized(grid):
    encoding = decomposed()
    query = torch.randn(2, 3, grid[0] * grid[1], 4, dtype=torch.float64)
    for block in (0, 1):
        tables = encoding.get_submodule(str(block))
        assert (tables['h'].shape, tables['w'].shape) == ((7, 4), (5, 4))
        resized = naive_resize(tables['h'], grid[0]), naive_resize(tables['w'], grid[1])
        found = encoding.attention_bias(0, block, query, grid).to_mask()
        assert max_difference(found, naive_decomposed(query, grid, *resized)) < 1e-12


@pytest.mark.parametrize('masked', [True, False])
@pytest.mark.parametrize('num_prefix', [0, 1])
@pytest.mark.parametrize('grid', [(7, 5), (6, 3), (2, 3), (1, 1), (2, 7)])
def test_decomposed_in_windows_and_beside_them(grid, num_prefix, masked):
    """The tables of windows are never resized; those of a global block are."""
    encoding = decomposed(window_size=3, global_blocks=(0,))
    x = torch.randn(2, num_prefix + grid[0] * grid[1], 8, dtype=torch.float64)
    for block in (0, 1):
        tables = encoding.get_submodule(str(block))
        h, w = tables['h'], tables['w']
        attn, size, window = Attention(8, num_heads=2), grid, None
        if block:
            assert h.shape == w.shape == (5, 4)
            attn = WindowAttention(8, num_heads=2, window_size=3, mask_padding=masked)
            window = 3
            size = grid if masked else tuple(-(-side // 3) * 3 for side in grid)
            larger = max(size)
            h, w = (torch.nn.functional.pad(t, (0, 0, larger, larger)) for t in (h, w))
        else:
            h, w = naive_resize(h, grid[0]), naive_resize(w, grid[1])
        randomise(attn).double()
        got = attn(
            x,
            grid,
            num_prefix=num_prefix,
            bias=lambda q, g, block=block: encoding.attention_bias(0, block, q, g),
        )
        bias = functools.partial(naive_decomposed, grid=size, h=h, w=w)
        if num_prefix and size != grid:
            continue  # prefix tokens see no padding: there is no peer
        padded = x.new_zeros(2, *size, 8)
        padded[:, : grid[0], : grid[1]] = x[:, num_prefix:].unflatten(1, grid)
        padded = torch.cat((x[:, :num_prefix], padded.flatten(1, 2)), dim=1)
        wanted = attention_by_formula(attn, padded, size, num_prefix, window=window, bias=bias)
        patches = wanted[:, num_prefix:].unflatten(1, size)[:, : grid[0], : grid[1]]
        wanted = torch.cat((wanted[:, :num_prefix], patches.flatten(1, 2)), dim=1)
        assert max_difference(got, wanted) < 1e-10


# -- a number for each offset
# --------------------------------------------------------------------------------------------------


def naive_offsets(table, side, grid, num_prefix):
    """(heads, P + N, P + N): the entry of each pair in a table (offsets + 3, heads) of a side."""
    by_offset = table[:-3].unflatten(0, [2 * length - 1 for length in side])
    count = num_prefix + grid[0] * grid[1]
    out = table.new_zeros(table.shape[1], count, count)
    for i in range(count):
        for j in range(count):
            query, key = i - num_prefix, j - num_prefix
            dy, dx = query // grid[1] - key // grid[1], query % grid[1] - key % grid[1]
            if query < 0 or key < 0:
                entry = table[-1 if query < 0 and key < 0 else -3 if query < 0 else -2]
            else:
                entry = by_offset[dy + side[0] - 1, dx + side[1] - 1]
            out[:, i, j] = entry
    return out


@pytest.mark.parametrize('num_prefix', [0, 1, 2])
@pytest.mark.parametrize('grid', [(4, 3), (1, 1), (7, 2), (2, 5)])
def test_a_relative_bias_follows_the_formula_and_is_resized(grid, num_prefix):
    encoding = RelativeBias([stage(num_prefix=num_prefix)], grid=(4, 3)).double()
    query = torch.randn(2, 2, grid[0] * grid[1], 4, dtype=torch.float64)
    for block, table in enumerate(encoding.parameters()):
        assert table.shape == (7 * 5 + 3 * bool(num_prefix), 2) and not table.any()
        torch.nn.init.normal_(table)
        rows = naive_resize(table[:35].unflatten(0, (7, 5)), grid[0])
        both = naive_resize(rows.transpose(0, 1), grid[1]).transpose(0, 1).flatten(0, 1)
        extra = table[35:] if num_prefix else table.new_zeros(3, 2)
        wanted = naive_offsets(torch.cat((both, extra)), grid, grid, num_prefix)
        bias = encoding.attention_bias(0, block, query, grid)
        found = bias.with_prefix(num_prefix, queries=True).to_mask()
        assert max_difference(found[0], wanted) < 1e-12


@pytest.mark.parametrize('grid', [(3, 3), (2, 3), (1, 2)])
def test_a_relative_bias_of_windows_is_not_resized(grid):
    """A part of a window uses the middle of the table, and prefix keys have no bias."""
    windows = stage(window_size=3, num_prefix=1, global_blocks=(0,))
    encoding = RelativeBias([windows]).double()
    table = torch.nn.init.normal_(encoding.get_parameter('1'))
    assert encoding.get_parameter('0').shape == (7 * 7 + 3, 2) and table.shape == (25, 2)
    query = torch.randn(2, 2, grid[0] * grid[1], 4, dtype=torch.float64)
    found = encoding.attention_bias(0, 1, query, grid).with_prefix(1, queries=False).to_mask()
    wanted = naive_offsets(torch.cat((table, table.new_zeros(3, 2))), (3, 3), grid, 1)
    assert max_difference(found[0], wanted[:, 1:]) == 0


# -- combinations
# --------------------------------------------------------------------------------------------------


def test_each_encoding_of_a_list_acts_two_of_one_type_too():
    position = [
        dict(type='Learned'),
        dict(type='PEG', kernel_size=3),
        dict(type='PEG', kernel_size=5, after_blocks=(1,)),
        dict(type='Relative'),
        dict(type='Relative', clip=2),
        dict(type='DecomposedRelative'),
        dict(type='RelativeBias'),
        dict(type='RelativeBias', grid=3),
    ]
    model, images = randomise(column(position=position)).eval(), torch.randn(1, 3, 50, 70)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    with torch.no_grad():
        full = model(images)[0]
        for name in model._position_names:
            for parameter in getattr(model, name).parameters():
                parameter.zero_()
            assert max_difference(model(images)[0], full) > 1e-6, f'{name} has no effect'
            model.load_state_dict(state)


@pytest.mark.parametrize('kind', [None, *POSITIONS])
def test_only_a_trunk_without_position_is_permutation_equivariant(kind):
    images, order = torch.randn(1, 3, 64, 64), torch.randperm(16)
    patches = functional.unfold(images, 16, stride=16)[:, :, order]
    shuffled = functional.fold(patches, (64, 64), 16, stride=16)
    model = randomise(column(position=kind and dict(type=kind))).eval()
    with torch.no_grad():
        wanted, got = (model(x)[0].flatten(2) for x in (images, shuffled))
    assert (max_difference(wanted[:, :, order], got) < 1e-5) == (kind is None)


def test_maps_move_with_the_image_up_to_the_border():
    """By whole patches: all of it without an encoding, with PEG what its kernel keeps from the
    border and from the seam.
    """
    images = torch.randn(1, 3, 128, 128)
    moved = images.roll((32, 48), dims=(2, 3))
    trunk = randomise(column(position=None, with_cls_token=False)).eval()
    peg = randomise(PEG(24))
    features = torch.randn(1, 24, 8, 8)
    with torch.no_grad():
        wanted, got = trunk(images)[0].roll((2, 3), dims=(2, 3)), trunk(moved)[0]
        assert max_difference(got, wanted) < 1e-5
        assert max_difference(got.mean((2, 3)), wanted.mean((2, 3))) < 1e-5  # GAP is invariant
        tokens = (one.flatten(2).mT for one in (features, features.roll((2, 3), dims=(2, 3))))
        first, second = (peg(one, (8, 8)).mT.unflatten(2, (8, 8)) for one in tokens)
    wanted = first.roll((2, 3), dims=(2, 3))
    assert max_difference(second[:, :, 3:7, 4:7], wanted[:, :, 3:7, 4:7]) < 1e-6
    assert max_difference(second, wanted) > 1e-3  # zero padding: position comes from the border


@pytest.fixture
def registry(monkeypatch):
    """Types that a test registers are forgotten."""
    monkeypatch.setattr(position_module, 'POSITIONS', dict(POSITIONS))


def define(name='Ramp', **members):
    """A class with an encoding, of one name in this module."""

    def __init__(self, stages, *, slope=1.0):
        PositionEncoding.__init__(self)
        self.slope = slope

    def before_stage(self, stage, tokens, prefix_tokens, grid):
        return tokens + self.slope * torch.arange(tokens.shape[1])[:, None], prefix_tokens, grid

    usual = dict(attribute='ramp', __init__=__init__, before_stage=before_stage)
    return type(name, (PositionEncoding,), dict(usual, __module__=__name__, **members))


def test_a_new_encoding_is_one_class_and_one_registration(registry):
    register_position('Ramp')(define())
    position = [dict(type='Ramp', slope=2.0), dict(type='Ramp'), dict(type='Learned')]
    built = build_positions(position, [stage()])
    assert list(built) == ['ramp', 'ramp_2', 'pos_embed'], 'one overwrote the other'
    (found,) = column(position=dict(type='Ramp'))(torch.randn(1, 3, 32, 32))
    assert found.shape == (1, 24, 2, 2)


def test_a_class_that_is_defined_again_replaces_itself_alone(registry):
    register_position('Ramp')(define())
    again = register_position('Ramp')(define())
    assert type(build_positions(dict(type='Ramp'), [stage()])['ramp']) is again
    with pytest.raises(ValueError, match=r"name must be new, got 'Ramp', taken by .*\.Ramp"):
        register_position('Ramp')(define('Other'))
    with pytest.raises(ValueError, match="name must be new, got 'PEG'"):
        register_position('PEG')(define())


@pytest.mark.parametrize(
    ('members', 'message'),
    [
        (dict(attribute=None), 'Ramp.attribute must be the name of the encoding in the trunk'),
        (dict(attribute='a.b'), "a Python identifier, got 'a.b'"),
        (dict(attribute='pos_embed'), "must be a new name, got 'pos_embed', that of LearnedTable"),
        (dict(has_bias=True), 'Ramp.has_bias must be False as the class does not override'),
        (dict(rotate=lambda self, *_: _), 'Ramp.has_rotation must be True as the class overrides'),
    ],
)
def test_a_class_that_could_not_work_is_refused(registry, members, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        register_position('Ramp')(define(**members))


@pytest.mark.parametrize(
    ('build', 'attribute'),
    [
        (column, 'blocks'),
        (column, 'norm'),
        (column, 'depth'),
        (column, 'forward'),
        (pyramid, 'patch_embeds'),
        (multi_scale, 'pyramid'),
        (multi_scale, 'taps'),
    ],
)
def test_an_encoding_replaces_no_part_of_the_trunk(registry, build, attribute):
    register_position('Ramp')(define(attribute=attribute))
    message = f"Ramp.attribute must be a new name, got '{attribute}', an attribute of "
    with pytest.raises(ValueError, match=message):
        build(position=dict(type='Ramp'))


def test_parameters_of_a_new_encoding_are_before_the_first_block(registry):
    class Projected(PositionEncoding):
        attribute = 'projected'

        def __init__(self, stages):
            super().__init__()
            self.proj = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5))

    register_position('Projected')(Projected)
    model = column(position=dict(type='Projected'))
    assert model.get_layer_depth('projected.proj.0.weight') == (0, 6)
    frozen = column(position=dict(type='Projected'), frozen_stages=0).train()
    assert not frozen.projected.proj[0].weight.requires_grad
    assert not frozen.projected.proj[1].training, 'the dropout of a frozen part'


@pytest.mark.parametrize('count', [0, 3])
def test_an_encoding_keeps_the_number_of_prefix_tokens(registry, count):
    """The blocks know it before the call; with another number they would split at a wrong token."""

    def before_stage(self, stage, tokens, prefix_tokens, grid):
        return tokens, tokens[:, :count] if count else None, grid

    register_position('Ramp')(define(before_stage=before_stage))
    model = column(position=dict(type='Ramp'), num_registers=1)
    message = f'Ramp.before_stage must return as many prefix tokens as it gets, got {count} for 2'
    with pytest.raises(ValueError, match=message):
        model(torch.rand(1, 3, 64, 64))


NO_SPEC = 'position must be None, a dict with a type, or a list of such dicts, got '
TYPES = f'position type must be one of {sorted(POSITIONS)}, got '


@pytest.mark.parametrize(
    ('position', 'message'),
    [
        (dict(type='Rotary'), f"{TYPES}'Rotary'"),
        (dict(type='Learnt'), f"{TYPES}'Learnt'; did you mean 'Learned'?"),
        (dict(kernel_size=3), f'{TYPES}None'),
        (['PEG'], f"{NO_SPEC}['PEG']"),
        (
            dict(type='PEG', kernel=3),
            "position=dict(type='PEG') has no argument 'kernel'; did you mean 'kernel_size'?",
        ),
        (
            dict(type='SinCos', side=3),
            "position=dict(type='SinCos') has no argument 'side'; accepted are temperature, resize",
        ),
        (dict(type='Learned', interpolation='nearest'), "['bicubic', 'bilinear'], got 'nearest'"),
        (dict(type='Learned', antialias='False'), "antialias must be True or False, got 'False'"),
        (dict(type='Learned', offset=1), 'offset must be a number in [0, 1), got 1'),
        (dict(type='SinCos', resize='nearest'), "['continue', 'interpolate'], got 'nearest'"),
        (dict(type='SinCos', temperature=0), 'temperature must be a finite number > 1, got 0'),
        (dict(type='Relative', clip=0), 'clip must be an integer >= 1, got 0'),
        (dict(type='DecomposedRelative', grid=0), 'grid must be a positive integer or (height, '),
        (
            dict(type='RoPE', mode='golden'),
            "['axial', 'dinov3', 'eva', 'mixed', 'pe'], got 'golden'",
        ),
        (dict(type='RoPE', temperature=1.0), 'temperature must be a finite number > 1, got 1.0'),
        (dict(type='RoPE', rescale_coords=0.5), 'must be a finite number > 1, got 0.5'),
        ([dict(type='RoPE'), dict(type='PEG', padding='none')], "padding must be 'zero' beside"),
    ],
)
def test_wrong_arguments(position, message):
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        column(position=position)


@pytest.mark.parametrize(
    ('kind', 'width', 'message'),
    [
        ('SinCos', 18, 'embed_dims must be a multiple of 4 for a 2D sin-cos encoding, got 18'),
        ('RoPE', 12, r'embed_dims / num_heads must be a multiple of 4 for a rotary.*, got 6'),
    ],
)
def test_widths_that_an_encoding_cannot_divide(kind, width, message):
    arch = dict(embed_dims=width, depth=1, num_heads=2, mlp_ratio=2.0)
    with pytest.raises(ValueError, match=message):
        column(arch=arch, position=dict(type=kind))

"""Learned table, sin-cos and relative encodings against independent formulas."""

import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import column, max_difference, pyramid, randomise

from cpvt_backbones.layers import (
    POSITIONS,
    Attention,
    LearnedTable,
    PositionEncoding,
    Relative,
    SinCos,
    SpatialReductionAttention,
    Stage,
    WindowAttention,
    build_positions,
    register_position,
)


def stage(dim=8, grid=(4, 4), **kwargs):
    return Stage(
        **{'dim': dim, 'depth': 2, 'used': 2, 'head_dim': dim // 2, 'grid': grid, **kwargs}
    )


# -- learned
# --------------------------------------------------------------------------------------------------


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


def test_learned_without_antialias_is_plain_interpolation():
    table = LearnedTable([stage(8, (8, 6))], interpolation='bilinear', antialias=False)
    got, _, _ = table.before_stage(0, torch.zeros(1, 12, 8), None, (4, 3))
    parameter = table.get_parameter('0').view(4, 2, 3, 2, 8)
    assert (
        max_difference(got, parameter.mean((1, 3)).view(1, 12, 8)) < 1e-6
    )  # halving: the mean of each 2 x 2


def load(source, target, *, key='pos_embed.0'):
    state = source.state_dict()
    state[key] = state.pop('pos_embed.0')
    before = {k: v.clone() for k, v in state.items()}
    target.load_state_dict(state)
    assert list(state) == list(before), "the caller's state dict was changed"
    assert all(torch.equal(state[k], v) for k, v in before.items())
    return target.pos_embed.get_parameter('0')


def learned(img_size, **kwargs):
    return column(position=dict(type='Learned'), img_size=img_size, **kwargs)


@pytest.mark.parametrize('key', ['pos_embed.0', 'pos_embed'])
def test_a_table_of_another_grid_is_resized_on_loading(key):
    timm_layers = pytest.importorskip('timm.layers')
    source, target = learned(64), learned((96, 128))
    wanted = timm_layers.resample_abs_pos_embed(
        source.pos_embed.get_parameter('0'), [6, 8], num_prefix_tokens=1
    )
    got = load(source, target, key=key)
    assert got.shape == (1, 1 + 48, 24)
    assert torch.equal(got[:, 0], source.pos_embed.get_parameter('0')[:, 0])
    assert max_difference(got, wanted) < 1e-6


@pytest.mark.parametrize('sizes', [(64, 64), (64, 128), ((64, 112), (64, 112))])
def test_a_class_token_s_entry_is_dropped_for_a_model_without_one(sizes):
    source, target = learned(sizes[0]), learned(sizes[1], with_cls_token=False)
    state = source.state_dict()
    del state['cls_token']
    target.load_state_dict(state)
    table = source.pos_embed.get_parameter('0')
    wanted = target.pos_embed.resize(
        table[:, 1:], source.pos_embed.grids[0], target.pos_embed.grids[0]
    )
    assert max_difference(target.pos_embed.get_parameter('0'), wanted) < 1e-6


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
    from mmengine.runner.checkpoint import load_state_dict

    source, holder = learned(64), torch.nn.ModuleDict({'backbone': learned(96)})
    state = {
        f'backbone.{k}'.replace('pos_embed.0', 'pos_embed'): v
        for k, v in source.state_dict().items()
    }
    load_state_dict(holder, state, strict=True)
    wanted = holder['backbone'].pos_embed.resize(
        source.pos_embed.get_parameter('0')[:, 1:], (4, 4), (6, 6)
    )
    assert torch.equal(holder['backbone'].pos_embed.get_parameter('0')[:, 1:], wanted)


def test_one_table_a_stage_in_a_pyramid():
    model = pyramid(
        position=dict(type='Learned', interpolation='bilinear', antialias=False),
        img_size=(64, 96),
        with_cls_token=True,
    )
    shapes = {
        name: tuple(p.shape) for name, p in model.named_parameters() if name.startswith('pos_embed')
    }
    assert shapes == {
        'pos_embed.0': (1, 16 * 24, 8),
        'pos_embed.1': (1, 8 * 12, 12),
        'pos_embed.2': (1, 4 * 6, 16),
        'pos_embed.3': (1, 1 + 2 * 3, 24),
    }


# -- sin-cos
# --------------------------------------------------------------------------------------------------


@given(height=st.integers(1, 40), width=st.integers(1, 40), dim=st.sampled_from([4, 8, 24]))
def test_sin_cos_follows_the_formula(height, width, dim):
    tokens, cls_token = torch.randn(2, height * width, dim), torch.randn(2, 1, dim)
    got, got_cls, grid = SinCos([stage(dim)]).before_stage(0, tokens, cls_token, (height, width))
    quarter = dim // 4
    wanted = torch.zeros(height, width, dim, dtype=torch.float64)
    for y in range(height):
        for x in range(width):
            for i in range(quarter):
                frequency = 10000.0 ** (-i / quarter)
                wanted[y, x, i], wanted[y, x, quarter + i] = (
                    math.sin(y * frequency),
                    math.cos(y * frequency),
                )
                wanted[y, x, 2 * quarter + i] = math.sin(x * frequency)
                wanted[y, x, 3 * quarter + i] = math.cos(x * frequency)
    assert grid == (height, width)
    assert got_cls is cls_token
    assert max_difference(got - tokens, wanted.view(1, -1, dim).expand_as(got)) < 1e-5


def test_sin_cos_has_no_parameter():
    assert not list(column(position=dict(type='SinCos')).sin_cos.parameters())


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
        assert max_difference(encoding.attention_bias(0, block, query, grid), wanted) < 1e-12


def attention_by_hand(attn, x, grid, num_prefix, bias_of, window):
    """Attention within windows of real tokens, window by window.

    The prefix sees and is seen by all.
    """
    weight, offset = (
        (attn.qkv.weight, attn.qkv.bias)
        if hasattr(attn, 'qkv')
        else (torch.cat((attn.q.weight, attn.kv.weight)), torch.cat((attn.q.bias, attn.kv.bias)))
    )
    qkv = (x @ weight.T + offset).unflatten(-1, (3, attn.num_heads, -1))
    query, key, value = qkv.permute(2, 0, 3, 1, 4)
    out = torch.zeros_like(query)
    prefix = list(range(num_prefix))

    def write(rows, columns, bias):
        logits = query[:, :, rows] @ key[:, :, columns].mT / query.shape[-1] ** 0.5
        out[:, :, rows] = (logits + bias).softmax(-1) @ value[:, :, columns]

    if prefix:
        write(prefix, list(range(x.shape[1])), 0)
    for top in range(0, grid[0], window):
        for left in range(0, grid[1], window):
            height, width = min(window, grid[0] - top), min(window, grid[1] - left)
            tokens = [
                num_prefix + y * grid[1] + z
                for y in range(top, top + height)
                for z in range(left, left + width)
            ]
            bias = 0
            if bias_of is not None:
                bias = torch.nn.functional.pad(
                    bias_of(query[:, :, tokens], (height, width)), (num_prefix, 0)
                )
            write(tokens, prefix + tokens, bias)
    return attn.proj(out.transpose(1, 2).flatten(2))


@pytest.mark.parametrize('num_prefix', [0, 1])
@pytest.mark.parametrize(
    ('kind', 'window'), [('global', 99), ('reduction', 99), ('window', 3), ('window', 4)]
)
def test_relative_in_attention(kind, window, num_prefix):
    grid, clip = (7, 5), 2
    encoding = Relative([stage()], clip=clip).double()
    attn = {
        'global': lambda: Attention(8, num_heads=2),
        'reduction': lambda: SpatialReductionAttention(8, num_heads=2, sr_ratio=1),
        'window': lambda: WindowAttention(8, num_heads=2, window_size=window),
    }[kind]()
    attn = randomise(attn).double()
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.normal_()
    tables = encoding.get_submodule('1')
    x = torch.randn(2, num_prefix + 35, 8, dtype=torch.float64)
    got = attn(
        x, grid, num_prefix=num_prefix, bias=lambda q, g: encoding.attention_bias(0, 1, q, g)
    )
    wanted = attention_by_hand(
        attn,
        x,
        grid,
        num_prefix,
        lambda q, g: naive_relative(q, g, tables['row'], tables['column'], clip),
        window,
    )
    assert max_difference(got, wanted) < 1e-10
    without = attn(x, grid, num_prefix=num_prefix)
    assert max_difference(got, without) > 1e-3
    if num_prefix:
        assert max_difference(got[:, 0], without[:, 0]) < 1e-12  # the class token has no position


def test_relative_runs_in_a_pyramid_that_reduces_no_keys_and_is_refused_in_one_that_does():
    arch = dict(
        depths=(1, 1, 1, 1),
        embed_dims=(8, 8, 8, 8),
        num_heads=(2, 2, 2, 2),
        mlp_ratios=(2, 2, 2, 2),
        sr_ratios=(1, 1, 1, 1),
    )
    assert len(pyramid(arch=arch, position=dict(type='Relative'))(torch.randn(1, 3, 40, 30))) == 4
    with pytest.raises(
        ValueError, match=r"position type must not be 'Relative' where attention reduces.*stage 0"
    ):
        pyramid(position=dict(type='Relative'))


# -- combinations
# --------------------------------------------------------------------------------------------------


def test_a_list_adds_up_in_order():
    images = torch.randn(1, 3, 64, 80)
    both = randomise(column(position=[dict(type='Learned'), dict(type='PEG')])).eval()
    with torch.no_grad():
        full = both(images)[0]
        for position in (dict(type='Learned'), dict(type='PEG')):
            single = column(position=position).eval()
            single.load_state_dict(both.state_dict(), strict=False)
            assert max_difference(single(images)[0], full) > 1e-3
    assert list(both._position_names) == ['pos_embed', 'pos_block']


def test_two_encodings_of_one_type():
    model = column(
        position=[
            dict(type='PEG', kernel_size=3),
            dict(type='PEG', kernel_size=5, after_blocks=(1,)),
            dict(type='Relative'),
            dict(type='Relative', clip=2),
        ]
    )
    names = {name.split('.')[0] for name, _ in model.named_parameters()}
    assert {'pos_block', 'pos_block_2', 'rel_pos', 'rel_pos_2'} <= names
    images = torch.randn(1, 3, 50, 70)
    randomise(model).eval()
    with torch.no_grad():
        full = model(images)[0]
        for prefix in ('pos_block', 'pos_block_2', 'rel_pos', 'rel_pos_2'):
            state = {k: v.clone() for k, v in model.state_dict().items()}
            for parameter in getattr(model, prefix).parameters():
                parameter.zero_()
            assert max_difference(model(images)[0], full) > 1e-6, f'{prefix} has no effect'
            model.load_state_dict(state)


def test_two_biases_add_up():
    model = column(position=[dict(type='Relative', clip=2), dict(type='Relative', clip=3)])
    query = torch.randn(1, 2, 12, 12)
    wanted = sum(e.attention_bias(0, 1, query, (3, 4)) for e in model.position_encodings)
    assert max_difference(model._attention_bias(0, 1, query, (3, 4)), wanted) < 1e-6


def test_no_position_means_permutation_equivariance():
    """The control: without position, the trunk cannot tell one order of the patches from
    another.
    """
    images = torch.randn(1, 3, 64, 64)
    patches = images.unfold(2, 16, 16).unfold(3, 16, 16).flatten(2, 3)
    order = torch.randperm(16)
    shuffled = (
        patches[:, :, order]
        .view(1, 3, 4, 4, 16, 16)
        .permute(0, 1, 2, 4, 3, 5)
        .reshape(1, 3, 64, 64)
    )
    for position, equivariant in (
        (None, True),
        (dict(type='PEG'), False),
        (dict(type='SinCos'), False),
        (dict(type='Learned'), False),
        (dict(type='Relative'), False),
    ):
        model = randomise(column(position=position)).eval()
        with torch.no_grad():
            difference = max_difference(
                model(images)[0].flatten(2)[:, :, order], model(shuffled)[0].flatten(2)
            )
        assert (difference < 1e-5) == equivariant, (position, difference)


def test_a_new_encoding_is_one_class_and_one_registration():
    @register_position('Ramp')
    class Ramp(PositionEncoding):
        attribute = 'pos_embed'

        def __init__(self, stages, *, slope=1.0):
            super().__init__()
            self.slope = slope

        def before_stage(self, stage, tokens, prefix_tokens, grid):
            return tokens + self.slope * torch.arange(tokens.shape[1])[:, None], prefix_tokens, grid

    try:
        built = build_positions([dict(type='Ramp', slope=2.0), dict(type='Learned')], [stage()])
        assert list(built) == ['pos_embed', 'pos_embed_2'], 'one overwrote the other'
        assert column(position=dict(type='Ramp'))(torch.randn(1, 3, 32, 32))[0].shape == (
            1,
            24,
            2,
            2,
        )
        with pytest.raises(ValueError, match=r"name must be new, got 'Ramp', taken by Ramp"):
            register_position('Ramp')(Ramp)
    finally:
        del POSITIONS['Ramp']


@pytest.mark.parametrize(
    'position', [None, dict(type='Learned'), dict(type='Relative'), dict(type='PEG')]
)
def test_a_model_can_be_pickled(position):
    pickle.loads(pickle.dumps(column(position=position)))


@pytest.mark.parametrize(
    ('position', 'error', 'message'),
    [
        (
            dict(type='Rotary'),
            ValueError,
            r"position type must be one of \['Learned', 'PEG', .*\], got 'Rotary'",
        ),
        (dict(kernel_size=3), ValueError, r'position type must be one of .*, got None'),
        (
            'PEG',
            ValueError,
            r"position must be None, a dict with a type, or a list of such dicts, got 'PEG'",
        ),
        (['PEG'], ValueError, r'position must be None, a dict.*got \[\'PEG\'\]'),
        (3, ValueError, r'position must be None, a dict.*got 3'),
        (
            dict(type='PEG', kernel=3),
            TypeError,
            r"PEGPosition.*unexpected keyword argument 'kernel'",
        ),
        (
            dict(type='Learned', interpolation='nearest'),
            ValueError,
            r"interpolation must be one of \['bicubic', 'bilinear'\], got 'nearest'",
        ),
        (
            dict(type='SinCos', temperature=0),
            ValueError,
            r'temperature must be a finite number > 1, got 0',
        ),
        (
            dict(type='SinCos', temperature=float('nan')),
            ValueError,
            r'temperature must be a finite number > 1, got nan',
        ),
        (
            dict(type='Learned', antialias='False'),
            ValueError,
            r"antialias must be True or False, got 'False'",
        ),
        (dict(type='Relative', clip=0), ValueError, r'clip must be an integer >= 1, got 0'),
        (dict(type='Relative', clip=2.5), ValueError, r'clip must be an integer >= 1, got 2\.5'),
    ],
)
def test_wrong_arguments(position, error, message):
    with pytest.raises(error, match=message):
        column(position=position)


def test_sin_cos_needs_a_width_of_four_parts():
    with pytest.raises(
        ValueError, match=r'embed_dims must be a multiple of 4 for a 2D sin-cos encoding, got 18'
    ):
        column(
            arch=dict(embed_dims=18, depth=1, num_heads=2, mlp_ratio=2.0),
            position=dict(type='SinCos'),
        )

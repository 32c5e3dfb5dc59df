"""Attention: fused against plain, windows and spatial reduction against their definitions."""

import functools

import pytest
import torch
from attention_formula import attention_by_formula
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny import max_difference, randomise
from torch.nn import functional

from cpvt_backbones.layers import (
    Attention,
    AxialBias,
    Relative,
    RelativeBias,
    SpatialReductionAttention,
    Stage,
    WindowAttention,
    attention,
    axial_bias,
    set_fused_attention,
)
from cpvt_backbones.layers.attention import SHORT, attend

DIM, HEADS = 8, 2


@pytest.fixture(autouse=True)
def _reset():
    yield
    set_fused_attention(True)


@pytest.fixture(params=[True, False], ids=['fused', 'in steps'])
def both_ways(request):
    """Run a test with fused attention, and with that of products and softmax."""
    set_fused_attention(request.param)


def make(kind, **kwargs):
    builders = {
        'global': Attention,
        'window': lambda *a, **k: WindowAttention(*a, window_size=3, **k),
        'reduction': lambda *a, **k: SpatialReductionAttention(*a, sr_ratio=2, **k),
    }
    return randomise(builders[kind](DIM, num_heads=HEADS, **kwargs))


def relative():
    encoding = Relative(
        [Stage(dim=DIM, depth=1, used=1, head_dim=DIM // HEADS, grid=(4, 4))], clip=2
    )

    def bias(query, grid):
        found = encoding.attention_bias(0, 0, query, grid)
        return AxialBias(found.rows * 20, found.columns * 20)

    return bias


def offsets():
    """The bias of a table with entries for prefix tokens."""
    stage = Stage(dim=DIM, depth=1, used=1, head_dim=DIM // HEADS, grid=(4, 4), num_prefix=1)
    encoding = RelativeBias([stage])
    torch.nn.init.normal_(encoding.get_parameter('0'))
    return functools.partial(encoding.attention_bias, 0, 0)


def both():
    axial, table = relative(), offsets()
    return lambda query, grid: axial(query, grid) + table(query, grid)


BIASES = {'bias': relative, 'offsets': offsets, 'both': both}


# Grids that three divides in both sides, one and none; grids that a window covers; one token.
@pytest.mark.parametrize('grid', [(6, 6), (7, 5), (2, 9), (1, 1)])
@pytest.mark.parametrize('num_prefix', [0, 1])
@pytest.mark.parametrize('other_qk', [False, True])
@pytest.mark.parametrize(
    'kind',
    [
        'global',
        'global+bias',
        'global+offsets',
        'global+both',
        'window',
        'window+bias',
        'window+both',
        'reduction',
    ],
)
def test_fused_attention_is_that_in_steps(kind, grid, num_prefix, other_qk, monkeypatch):
    kind, _, biased = kind.partition('+')
    attn = make(kind)
    x = torch.randn(2, num_prefix + grid[0] * grid[1], DIM, requires_grad=True)
    qk = torch.randn_like(x) if other_qk else None
    weights = torch.randn_like(x)
    bias = BIASES[biased]() if biased else None

    def run():
        out = attn(x, grid, num_prefix=num_prefix, qk=qk, bias=bias)
        return out, torch.autograd.grad((out * weights).sum(), (x, *attn.parameters()))

    fused, fused_gradients = run()
    set_fused_attention(False)
    monkeypatch.setattr(functional, 'scaled_dot_product_attention', None)
    plain, plain_gradients = run()
    assert fused.isfinite().all()
    assert max_difference(fused, plain) <= 1e-5
    for a, b in zip(fused_gradients, plain_gradients, strict=True):
        assert a.isfinite().all()
        assert max_difference(a, b) <= 2e-5


# The limit of entries that are stored: all at once, an image and three queries at a time, none.
@pytest.mark.parametrize('grid', [(6, 6), (7, 9)])
@pytest.mark.parametrize('num_prefix', [0, 2])
@pytest.mark.parametrize('biased', BIASES)
@pytest.mark.parametrize('kind', ['global', 'window', 'window with padding'])
def test_a_bias_is_the_same_however_it_is_computed(kind, biased, num_prefix, grid, monkeypatch):
    kind, _, padded = kind.partition(' ')
    attn = make(kind, mask_padding=False) if padded else make(kind)
    x = torch.randn(3, num_prefix + grid[0] * grid[1], DIM, requires_grad=True)
    bias = BIASES[biased]()

    def run(limit, *, stored=True):
        monkeypatch.setattr(axial_bias, 'MAX_BIAS', limit)
        monkeypatch.setattr(attention, 'stores_bias', lambda *_: stored)
        return attn(x, grid, num_prefix=num_prefix, bias=bias)

    wanted = run(1 << 20)
    by_channels = run(1 << 20, stored=False)
    gradients = [torch.autograd.grad(out.square().sum(), x)[0] for out in (wanted, by_channels)]
    assert max_difference(by_channels, wanted) < 1e-5
    assert max_difference(*gradients) < 1e-4
    with torch.no_grad():
        for limit in (1, HEADS * 9 * 3, HEADS * 35 * 3):
            assert max_difference(run(limit), wanted) < 1e-5


@pytest.mark.usefixtures('both_ways')
@pytest.mark.parametrize('kind', ['global', 'window', 'reduction'])
def test_dropout_acts_in_training_only(kind):
    attn, plain, x = make(kind, attn_drop=0.5), make(kind), torch.randn(1, 20, DIM)
    plain.load_state_dict(attn.state_dict())
    wanted = plain(x, (4, 5))
    assert torch.equal(attn.eval()(x, (4, 5)), wanted)
    out = attn.train()(x.expand(500, -1, -1), (4, 5))
    assert not torch.equal(out[0], out[1])
    # Inverted dropout keeps the mean.
    assert max_difference(out.mean(0, keepdim=True), wanted) < 0.25
    projected = make(kind, proj_drop=0.5)
    assert (projected(x, (4, 5)) == 0).any()
    assert not (projected.eval()(x, (4, 5)) == 0).any()


# -- windows
# --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures('both_ways')
@settings(max_examples=20)
@given(
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    window=st.integers(1, 5),
    num_prefix=st.integers(0, 1),
)
@example(height=6, width=6, window=3, num_prefix=1)  # padding of neither side, of one, of both
@example(height=6, width=7, window=3, num_prefix=1)
@example(height=7, width=6, window=3, num_prefix=0)
@example(height=7, width=8, window=3, num_prefix=1)
@example(height=3, width=5, window=5, num_prefix=1)  # one window covers the grid
def test_windows_follow_the_definition(height, width, window, num_prefix):
    attn = randomise(WindowAttention(DIM, num_heads=HEADS, window_size=window)).double()
    x = torch.randn(2, num_prefix + height * width, DIM, dtype=torch.float64)
    grid = (height, width)
    wanted = attention_by_formula(attn, x, grid, num_prefix, window=window)
    assert max_difference(attn(x, grid, num_prefix=num_prefix), wanted) < 1e-11


@pytest.mark.usefixtures('both_ways')
@pytest.mark.parametrize('grid', [(6, 6), (7, 5), (2, 9), (1, 2), (3, 2)])
def test_windows_that_attend_to_their_padding(grid):
    """They are whole windows of a larger map, zero where the grid has no token."""
    options = dict(num_heads=HEADS, window_size=3)
    attn = randomise(WindowAttention(DIM, **options, mask_padding=False)).double()
    x = torch.randn(2, grid[0] * grid[1], DIM, dtype=torch.float64)
    larger = [-(-side // 3) * 3 for side in grid]
    padded = torch.zeros(2, *larger, DIM, dtype=torch.float64)
    padded[:, : grid[0], : grid[1]] = x.unflatten(1, grid)
    whole = attention_by_formula(attn, padded.flatten(1, 2), larger, 0, window=3)
    wanted = whole.unflatten(1, larger)[:, : grid[0], : grid[1]].flatten(1, 2)
    assert max_difference(attn(x, grid), wanted) < 1e-11
    masked = WindowAttention(DIM, **options).double()
    masked.load_state_dict(attn.state_dict())
    assert (max_difference(masked(x, grid), wanted) > 1e-3) == (grid != (6, 6))


# -- spatial reduction
# -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures('both_ways')
@given(
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    ratio=st.integers(1, 5),
    num_prefix=st.integers(0, 1),
)
def test_spatial_reduction_follows_the_definition(height, width, ratio, num_prefix):
    attn = randomise(SpatialReductionAttention(DIM, num_heads=HEADS, sr_ratio=ratio)).double()
    x = torch.randn(2, num_prefix + height * width, DIM, dtype=torch.float64)
    source = x if ratio == 1 else reduced(attn, x, (height, width), num_prefix)
    wanted = attention_by_formula(attn, x, (height, width), num_prefix, source=source)
    assert max_difference(attn(x, (height, width), num_prefix=num_prefix), wanted) < 1e-9


def reduced(attn, x, grid, num_prefix):
    """The prefix tokens, and a normalised weighted sum of each cell of ratio x ratio tokens."""
    ratio, patches = attn.sr_ratio, x[:, num_prefix:].unflatten(1, grid)
    keys = [x[:, i] for i in range(num_prefix)]
    for top in range(0, grid[0], ratio):
        for left in range(0, grid[1], ratio):
            total = attn.sr.bias
            for i in range(min(ratio, grid[0] - top)):
                for j in range(min(ratio, grid[1] - left)):
                    total = total + patches[:, top + i, left + j] @ attn.sr.weight[:, :, i, j].T
            mean, variance = total.mean(-1, keepdim=True), total.var(-1, False, keepdim=True)
            normalised = (total - mean) / (variance + 1e-5).sqrt()
            keys.append(normalised * attn.norm.weight + attn.norm.bias)
    return torch.stack(keys, dim=1)


@pytest.mark.parametrize('num_prefix', [0, 1])
def test_spatial_reduction_with_other_queries_and_keys(num_prefix):
    attn = make('reduction').double()
    x = torch.randn(2, num_prefix + 20, DIM, dtype=torch.float64)
    options = dict(grid=(4, 5), num_prefix=num_prefix)
    assert max_difference(attn(x, qk=x.clone(), **options), attn(x, **options)) < 1e-12
    with torch.no_grad():  # keys that say nothing: the values alone decide, and they are made of x
        attn.kv.weight[:DIM] = 0
    assert max_difference(attn(x, qk=torch.randn_like(x), **options), attn(x, **options)) < 1e-12


def test_spatial_reduction_refuses_a_bias():
    with pytest.raises(ValueError, match='bias must be None: spatial-reduction attention'):
        make('reduction')(torch.randn(1, 20, DIM), (4, 5), bias=relative())


@pytest.mark.parametrize('kind', ['global', 'window', 'reduction'])
@pytest.mark.parametrize('qkv_bias', [True, False])
def test_qkv_bias(kind, qkv_bias):
    names = {name for name, _ in make(kind, qkv_bias=qkv_bias).named_parameters()}
    assert bool({'qkv.bias', 'q.bias'} & names) is qkv_bias
    attn, x = make(kind, qkv_bias=qkv_bias), torch.randn(1, 20, DIM)
    assert max_difference(attn(x, (4, 5), qk=x.clone()), attn(x, (4, 5))) < 1e-6


@pytest.mark.parametrize('masked', [False, True])
def test_short_attention_in_training_is_rounded_once(masked):
    query, key, value = torch.randn(3, 2, HEADS, 49, 16).bfloat16().unbind(0)
    mask = torch.randn(2, HEADS, 49, 49).bfloat16() if masked else None
    inputs = [x.requires_grad_() for x in (query, key, value)]
    wide = [x.detach().float().requires_grad_() for x in inputs]
    exact = functional.scaled_dot_product_attention(
        *wide, attn_mask=mask.float() if masked else None
    )
    with torch.autocast('cpu', torch.bfloat16):
        out = attend(*inputs, mask=mask)
    assert torch.equal(out, exact.bfloat16())
    exact.sum().backward()
    out.float().sum().backward()
    for x, y in zip(inputs, wide, strict=True):
        assert torch.equal(x.grad, y.grad.bfloat16())


def test_a_program_exported_with_gradients_takes_any_number_of_tokens():
    attn = make('global')
    tokens = torch.export.Dim('tokens', min=4, max=1000)
    call = lambda x: attn(x, (1, x.shape[1]))  # noqa: E731
    module = torch.nn.Module()
    module.attn, module.forward = attn, call
    program = torch.export.export(
        module, (torch.randn(1, 9, DIM),), dynamic_shapes=({1: tokens},)
    ).module()
    for count in (4, SHORT + 1):
        x = torch.randn(1, count, DIM)
        torch.testing.assert_close(program(x), call(x))

"""Attention: fused against plain, windows and spatial reduction against loops."""

from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import max_difference, randomise
from torch.nn import functional

from cpvt_backbones.layers import (
    Attention,
    Relative,
    SpatialReductionAttention,
    Stage,
    WindowAttention,
)
from cpvt_backbones.layers.attention import SHORT, attend

DIM, HEADS = 8, 2


def formula(query, key, value, attn_mask=None, dropout_p=0.0):
    logits = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    if attn_mask is not None:
        masked = attn_mask.dtype == torch.bool
        logits = logits.masked_fill(~attn_mask, -torch.inf) if masked else logits + attn_mask
    return functional.dropout(logits.softmax(dim=-1), dropout_p) @ value


@contextmanager
def reference_attention():
    """Attention by its formula."""
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        by_formula = lambda *args, **kwargs: calls.append(1) or formula(*args, **kwargs)  # noqa: E731
        patch.setattr(functional, 'scaled_dot_product_attention', by_formula)
        yield
    assert calls


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
    return lambda query, grid: encoding.attention_bias(0, 0, query, grid) * 20


@pytest.mark.parametrize('grid', [(6, 6), (7, 5), (1, 1), (2, 9), (3, 3)])
@pytest.mark.parametrize('num_prefix', [0, 1])
@pytest.mark.parametrize('other_qk', [False, True])
@pytest.mark.parametrize(
    ('kind', 'with_bias'),
    [
        ('global', False),
        ('global', True),
        ('window', False),
        ('window', True),
        ('reduction', False),
    ],
)
def test_fused_and_reference_agree(kind, grid, num_prefix, other_qk, with_bias):
    attn = make(kind)
    x = torch.randn(2, num_prefix + grid[0] * grid[1], DIM, requires_grad=True)
    qk = torch.randn_like(x) if other_qk else None
    weights = torch.randn_like(x)
    bias = relative() if with_bias else None

    def run():
        out = attn(x, grid, num_prefix=num_prefix, qk=qk, bias=bias)
        return out, torch.autograd.grad((out * weights).sum(), (x, *attn.parameters()))

    fused, fused_gradients = run()
    with reference_attention():
        plain, plain_gradients = run()
    assert fused.isfinite().all()
    assert max_difference(fused, plain) <= 1e-5
    for a, b in zip(fused_gradients, plain_gradients, strict=True):
        assert a.isfinite().all()
        assert max_difference(a, b) <= 2e-5


@pytest.mark.parametrize('kind', ['global', 'window', 'reduction'])
@pytest.mark.parametrize('fused', [True, False])
def test_attention_dropout_acts_in_training_only(kind, fused):
    attn, x = make(kind, attn_drop=0.5), torch.randn(1, 20, DIM)
    plain = make(kind)
    plain.load_state_dict(attn.state_dict())
    with reference_attention() if not fused else torch.enable_grad():
        assert torch.equal(attn.eval()(x, (4, 5)), plain(x, (4, 5)))
        attn.train()
        out = attn(x.expand(500, -1, -1), (4, 5))
        assert not torch.equal(out[0], out[1])
        assert (
            max_difference(out.mean(0, keepdim=True), plain(x, (4, 5))) < 0.25
        )  # inverted dropout keeps the mean


def test_projection_dropout_acts():
    for kind in ('global', 'window', 'reduction'):
        attn, x = make(kind, proj_drop=0.5), torch.randn(1, 20, DIM)
        assert (attn(x, (4, 5)) == 0).any()
        assert not (attn.eval()(x, (4, 5)) == 0).any()


# -- windows
# --------------------------------------------------------------------------------------------------


def within_windows(attn, x, grid, num_prefix, window):
    """Each token with the real tokens of its window and the prefix; the prefix with everything."""
    qkv = (x @ attn.qkv.weight.T + attn.qkv.bias).unflatten(-1, (3, HEADS, -1))
    query, key, value = qkv.permute(2, 0, 3, 1, 4)
    out = torch.empty_like(query)
    for t in range(x.shape[1]):

        def visible(s, t=t):
            if t < num_prefix or s < num_prefix:
                return True
            (a, b), (c, d) = divmod(t - num_prefix, grid[1]), divmod(s - num_prefix, grid[1])
            return a // window == c // window and b // window == d // window

        seen = [s for s in range(x.shape[1]) if visible(s)]
        weights = (query[:, :, t, None] @ key[:, :, seen].mT / (DIM // HEADS) ** 0.5).softmax(-1)
        out[:, :, t] = (weights @ value[:, :, seen])[:, :, 0]
    return attn.proj(out.transpose(1, 2).flatten(2))


@settings(max_examples=10)
@given(
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    window=st.integers(1, 5),
    num_prefix=st.integers(0, 1),
)
def test_windows_follow_the_definition(height, width, window, num_prefix):
    attn = randomise(WindowAttention(DIM, num_heads=HEADS, window_size=window)).double()
    x = torch.randn(2, num_prefix + height * width, DIM, dtype=torch.float64)
    wanted = within_windows(attn, x, (height, width), num_prefix, window)
    assert max_difference(attn(x, (height, width), num_prefix=num_prefix), wanted) < 1e-11
    with reference_attention():
        assert max_difference(attn(x, (height, width), num_prefix=num_prefix), wanted) < 1e-11


# Paddings (0, 0), (0, n), (n, 0) and (n, n): the slices that go wrong at 0 are all met.
@pytest.mark.parametrize('grid', [(6, 6), (6, 7), (7, 6), (7, 8), (2, 6), (6, 2), (4, 1)])
@pytest.mark.parametrize('num_prefix', [0, 1])
def test_windows_with_each_kind_of_padding(grid, num_prefix):
    attn = make('window').double()
    x = torch.randn(2, num_prefix + grid[0] * grid[1], DIM, dtype=torch.float64)
    wanted = within_windows(attn, x, grid, num_prefix, 3)
    assert max_difference(attn(x, grid, num_prefix=num_prefix), wanted) < 1e-11


@pytest.mark.parametrize('grid', [(5, 5), (3, 5), (1, 1)])
@pytest.mark.parametrize('num_prefix', [0, 1])
def test_a_window_that_covers_the_grid_is_global(grid, num_prefix):
    window = randomise(WindowAttention(DIM, num_heads=HEADS, window_size=5))
    whole = Attention(DIM, num_heads=HEADS)
    whole.load_state_dict(window.state_dict())
    x = torch.randn(2, num_prefix + grid[0] * grid[1], DIM)
    assert torch.equal(
        window(x, grid, num_prefix=num_prefix), whole(x, grid, num_prefix=num_prefix)
    )


# -- spatial reduction
# -------------------------------------------------------------------------------------------------


@given(
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    ratio=st.integers(1, 5),
    num_prefix=st.integers(0, 1),
)
def test_spatial_reduction_follows_the_definition(height, width, ratio, num_prefix):
    attn = randomise(SpatialReductionAttention(DIM, num_heads=HEADS, sr_ratio=ratio)).double()
    x = torch.randn(2, num_prefix + height * width, DIM, dtype=torch.float64)
    patches = x[:, num_prefix:].unflatten(1, (height, width))
    if ratio == 1:
        source = x
    else:
        keys = [x[:, i] for i in range(num_prefix)]
        for top in range(0, height, ratio):
            for left in range(0, width, ratio):
                total = attn.sr.bias
                for i in range(min(ratio, height - top)):
                    for j in range(min(ratio, width - left)):
                        total = total + patches[:, top + i, left + j] @ attn.sr.weight[:, :, i, j].T
                mean, variance = (
                    total.mean(-1, keepdim=True),
                    total.var(-1, unbiased=False, keepdim=True),
                )
                keys.append(
                    (total - mean) / (variance + 1e-5).sqrt() * attn.norm.weight + attn.norm.bias
                )
        source = torch.stack(keys, dim=1)
    query = attn.q(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
    key, value = (
        t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in attn.kv(source).chunk(2, dim=-1)
    )
    out = (query @ key.mT / (DIM // HEADS) ** 0.5).softmax(-1) @ value
    wanted = attn.proj(out.transpose(1, 2).flatten(2))
    got = attn(x, (height, width), num_prefix=num_prefix)
    assert max_difference(got[:, num_prefix:], wanted[:, num_prefix:]) < 1e-9
    assert max_difference(got, wanted) < 1e-9


@pytest.mark.parametrize('num_prefix', [0, 1])
def test_spatial_reduction_with_other_queries_and_keys(num_prefix):
    attn = make('reduction').double()
    x = torch.randn(2, num_prefix + 20, DIM, dtype=torch.float64)
    assert (
        max_difference(
            attn(x, (4, 5), num_prefix=num_prefix, qk=x.clone()),
            attn(x, (4, 5), num_prefix=num_prefix),
        )
        < 1e-12
    )
    with torch.no_grad():  # keys that say nothing: the values alone decide, and they are made of x
        attn.kv.weight[:DIM] = 0
    assert (
        max_difference(
            attn(x, (4, 5), num_prefix=num_prefix, qk=torch.randn_like(x)),
            attn(x, (4, 5), num_prefix=num_prefix),
        )
        < 1e-12
    )


def test_spatial_reduction_refuses_a_bias():
    with pytest.raises(
        ValueError, match='bias must be None: spatial-reduction attention has fewer keys'
    ):
        make('reduction')(torch.randn(1, 20, DIM), (4, 5), bias=relative())


# -- arguments
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('kind', ['global', 'window', 'reduction'])
@pytest.mark.parametrize('qkv_bias', [True, False])
def test_qkv_bias(kind, qkv_bias):
    names = {name for name, _ in make(kind, qkv_bias=qkv_bias).named_parameters()}
    assert bool({'qkv.bias', 'q.bias'} & names) is qkv_bias
    attn, x = make(kind, qkv_bias=qkv_bias), torch.randn(1, 20, DIM)
    assert max_difference(attn(x, (4, 5), qk=x.clone()), attn(x, (4, 5))) < 1e-6


@pytest.mark.parametrize(
    ('build', 'message'),
    [
        (
            lambda: Attention(8, num_heads=3),
            r'num_heads must divide embed_dims, got num_heads=3 for embed_dims=8',
        ),
        (lambda: Attention(8, num_heads=0), r'num_heads must be an integer >= 1, got 0'),
        (
            lambda: Attention(8, num_heads=2, attn_drop=1.0),
            r'attn_drop\w* must be a number in \[0, 1\), got 1\.0',
        ),
        (
            lambda: WindowAttention(8, num_heads=2, window_size=0),
            r'window_size must be an integer >= 1, got 0',
        ),
        (
            lambda: SpatialReductionAttention(8, num_heads=2, sr_ratio=0),
            r'sr_ratio must be an integer >= 1, got 0',
        ),
    ],
)
def test_wrong_arguments(build, message):
    with pytest.raises(ValueError, match=message):
        build()


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

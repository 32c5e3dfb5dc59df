"""PEG against its definition, and every option of it."""

import inspect

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import PYRAMID, column, max_difference, pyramid, randomise

from cpvt_backbones import PEG
from cpvt_backbones.layers import PEGPosition, Stage, map_to_tokens, tokens_to_map


def convolve(x, weight, bias, *, padded=True):
    """Depthwise convolution of a (B, H, W, C) map by its definition.

    What lies outside the map is zero.
    """
    _, height, width, _ = x.shape
    reach = weight.shape[-1] // 2
    rows = range(height) if padded else range(reach, height - reach)
    columns = range(width) if padded else range(reach, width - reach)
    out = []
    for r in rows:
        for c in columns:
            total = torch.zeros_like(x[:, r, c]) if bias is None else bias.expand_as(x[:, r, c])
            for i in range(-reach, reach + 1):
                for j in range(-reach, reach + 1):
                    if 0 <= r + i < height and 0 <= c + j < width:
                        total = total + weight[:, 0, i + reach, j + reach] * x[:, r + i, c + j]
            out.append(total)
    return torch.stack(out, dim=1).unflatten(1, (len(rows), len(columns)))


def definition(peg, tokens, grid):
    """``x + dwconv(x)`` for a PEG of bare depthwise layers."""
    x = tokens.unflatten(1, grid)
    for layer in peg.proj:
        x = x + convolve(x, layer.weight, layer.bias)
    return x.flatten(1, 2)


def make(dim=4, **kwargs):
    return randomise(PEG(dim, **kwargs)).double()


grids = st.tuples(st.integers(1, 6), st.integers(1, 6))


@given(grid=grids, kernel_size=st.sampled_from([1, 3, 5, 7]), bias=st.booleans())
def test_forward_and_gradient_follow_the_definition(grid, kernel_size, bias):
    peg = make(kernel_size=kernel_size, bias=bias)
    tokens = torch.randn(2, grid[0] * grid[1], 4, dtype=torch.float64, requires_grad=True)
    weights = torch.randn_like(tokens)
    inputs = (tokens, *peg.parameters())
    got, wanted = peg(tokens, grid), definition(peg, tokens, grid)
    assert max_difference(got, wanted) < 1e-12
    for g, w in zip(
        torch.autograd.grad((got * weights).sum(), inputs),
        torch.autograd.grad((wanted * weights).sum(), inputs),
        strict=True,
    ):
        assert max_difference(g, w) < 1e-11


def test_single_precision_is_close_to_the_definition():
    peg = make(16)
    tokens = torch.randn(2, 7 * 9, 16)
    assert (
        max_difference(
            peg.float()(tokens, (7, 9)), definition(peg.double(), tokens.double(), (7, 9))
        )
        < 1e-5
    )


def test_gradient_by_finite_differences():
    peg = make(2, num_layers=2)
    tokens = torch.randn(1, 6, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: peg(x, (2, 3)), tokens)


def test_kernel_of_27_is_larger_than_the_map_it_runs_on():
    peg = make(kernel_size=27)
    assert peg.proj[0].padding == (13, 13)
    tokens = torch.randn(2, 20, 4, dtype=torch.float64)
    assert max_difference(peg(tokens, (4, 5)), definition(peg, tokens, (4, 5))) < 1e-12


def test_stacked_layers_have_a_residual_each():
    peg = make(num_layers=4)
    tokens = torch.randn(1, 20, 4, dtype=torch.float64)
    assert max_difference(peg(tokens, (4, 5)), definition(peg, tokens, (4, 5))) < 1e-11


def test_separable_is_depthwise_then_pointwise():
    peg = make(kind='separable')
    depthwise, pointwise = peg.proj[0]
    tokens = torch.randn(2, 20, 4, dtype=torch.float64)
    hidden = convolve(tokens.unflatten(1, (4, 5)), depthwise.weight, depthwise.bias).flatten(1, 2)
    wanted = tokens + hidden @ pointwise.weight[:, :, 0, 0].T + pointwise.bias
    assert max_difference(peg(tokens, (4, 5)), wanted) < 1e-12


def test_without_padding_the_map_shrinks_and_there_is_no_residual():
    peg = make(padding='none', num_layers=2)
    tokens = torch.randn(2, 7 * 6, 4, dtype=torch.float64)
    assert peg.out_grid((7, 6)) == (3, 2)
    wanted = tokens.unflatten(1, (7, 6))
    for layer in peg.proj:
        wanted = convolve(wanted, layer.weight, layer.bias, padded=False)
    assert max_difference(peg(tokens, (7, 6)), wanted.flatten(1, 2)) < 1e-12
    with pytest.raises(
        ValueError, match=r"grid must be larger than 4 x 4.*padding='none'.*got 4 x 9"
    ):
        peg(torch.randn(1, 36, 4).double(), (4, 9))


@pytest.mark.parametrize('training', [True, False])
def test_batch_norm_and_relu_stand_between_convolution_and_residual(training):
    peg = make(norm='BN', act='ReLU', bias=False).train(training)
    conv, norm, _ = peg.proj[0]
    norm.running_mean += torch.randn(4)
    norm.running_var *= 2
    tokens = torch.randn(3, 20, 4, dtype=torch.float64)
    hidden = convolve(tokens.unflatten(1, (4, 5)), conv.weight, None)
    mean = hidden.mean((0, 1, 2)) if training else norm.running_mean.clone()
    variance = hidden.var((0, 1, 2), unbiased=False) if training else norm.running_var.clone()
    hidden = (hidden - mean) / (variance + norm.eps).sqrt() * norm.weight + norm.bias
    assert max_difference(peg(tokens, (4, 5)), tokens + hidden.clamp(min=0).flatten(1, 2)) < 1e-11


def test_permuting_tokens_changes_more_than_their_order():
    peg = make()
    tokens = torch.randn(1, 30, 4, dtype=torch.float64)
    order = torch.randperm(30)
    assert max_difference(peg(tokens[:, order], (5, 6)), peg(tokens, (5, 6))[:, order]) > 0.01


def test_shifting_the_interior_shifts_the_interior_of_the_result():
    peg, size = make(kernel_size=5), (12, 11)
    x = torch.randn(1, *size, 4, dtype=torch.float64)
    plain = peg(x.flatten(1, 2), size).unflatten(1, size)
    shifted = peg(x.roll((2, 1), (1, 2)).flatten(1, 2), size).unflatten(1, size)
    # Cells whose 5 x 5 neighbourhood neither meets the border nor what the roll wrapped round.
    assert max_difference(shifted[:, 4:-2, 3:-2], plain[:, 2:-4, 2:-3]) < 1e-12
    assert max_difference(shifted[:, :2], plain.roll((2, 1), (1, 2))[:, :2]) > 0.01


def test_on_a_constant_map_only_the_border_differs():
    out = make()(torch.ones(1, 7 * 8, 4, dtype=torch.float64), (7, 8)).unflatten(1, (7, 8))
    interior = out[:, 1:-1, 1:-1]
    assert max_difference(interior, interior[:, :1, :1].expand_as(interior)) < 1e-12
    for border in (out[:, 0], out[:, -1], out[:, :, 0], out[:, :, -1]):
        assert (border - out[:, 3, 3, None]).abs().amax(-1).min() > 0.01


def test_the_layout_costs_no_copy():
    tokens = torch.randn(2, 30, 8)
    seen = []
    peg = PEG(8)
    peg.proj[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    out = peg(tokens, (5, 6))
    assert seen[0].data_ptr() == tokens.data_ptr()
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
    assert out.is_contiguous()


def test_keywords_all_the_way():
    assert PEG(dim=4, kernel_size=5).proj[0].kernel_size == (5, 5)


def test_parameter_counts_of_the_paper():
    def count(**kwargs):
        return sum(p.numel() for p in PEG(192, **kwargs).parameters())

    assert count(bias=False) == 1728
    assert count() == 1728 + 192
    assert count(bias=False, num_layers=4, kernel_size=5) == 192 * 4 * 25
    assert count(bias=False, kind='separable') == 38592
    assert count(bias=False, kind='separable', num_layers=3) == 3 * 38592


def test_initial_values_are_those_of_torch_and_never_zero():
    # Uniform within 1 / sqrt(fan-in), fan-in 9: standard deviation 1 / (3 * sqrt(3)).
    assert PEG(512).proj[0].weight.std().item() == pytest.approx(1 / (3 * 3**0.5), rel=0.05)


def test_initial_values_in_a_pyramid_are_those_of_the_authors():
    model = pyramid(arch={**PYRAMID, 'embed_dims': (64, 96, 128, 192)})
    weights = torch.cat(
        [
            p.flatten()
            for n, p in model.named_parameters()
            if n.startswith('pos_block') and p.dim() > 1
        ]
    )
    assert weights.std().item() == pytest.approx((2 / 9) ** 0.5, rel=0.05)
    assert not any(
        p.any() for n, p in model.named_parameters() if n.startswith('pos_block') and p.dim() == 1
    )


# -- in a trunk
# --------------------------------------------------------------------------------------------------


def pair(after_blocks, **kwargs):
    """A model with PEG and one without, of the same weights."""
    model = randomise(
        column(position=dict(type='PEG', after_blocks=after_blocks, **kwargs), out_type='raw')
    )
    plain = column(position=None, out_type='raw')
    plain.load_state_dict(model.state_dict(), strict=False)
    return model.eval(), plain.eval()


def test_the_class_token_passes_unchanged():
    model, plain = pair((3,))
    images = torch.randn(2, 3, 64, 48)
    with torch.no_grad():
        (got,), (wanted,) = model(images), plain(images)
        peg = model.pos_block.get_submodule('0')
        # No final norm in between: what the trunk hands to the norm is compared.
        model.norm, plain.norm = torch.nn.Identity(), torch.nn.Identity()
        (got,), (wanted,) = model(images), plain(images)
        assert torch.equal(got[:, 0], wanted[:, 0])
        assert max_difference(got[:, 1:], peg(wanted[:, 1:], (4, 3))) < 1e-5
        assert max_difference(got[:, 1:], wanted[:, 1:]) > 0.01


@pytest.mark.parametrize('block', [-1, 0, 1, 2, 3])
def test_peg_stands_after_the_block_that_is_named(block):
    model, _ = pair((block,))
    trail = []
    for name, module in model.named_modules():
        if name.startswith('blocks.') and name.count('.') == 1 or name == 'pos_block.0':
            module.register_forward_hook(lambda *_, name=name: trail.append(name))
    model(torch.randn(1, 3, 32, 32))
    wanted = [f'blocks.{i}' for i in range(4)]
    wanted.insert(block + 1, 'pos_block.0')
    assert trail == wanted


def test_the_paper_s_five_pegs():
    model = column(position=dict(type='PEG', after_blocks=(0, 1, 2, 3)))
    assert {name for name, _ in model.named_parameters() if name.startswith('pos_block')} == {
        f'pos_block.{i}.proj.0.{leaf}' for i in range(4) for leaf in ('weight', 'bias')
    }


def test_with_target_qk_the_values_do_not_see_the_position():
    images = torch.randn(1, 3, 64, 64)

    def effect(target, *, uniform):
        model, plain = pair((-1,), target=target)
        for m in (model, plain):
            attn = m.blocks[0].attn
            with torch.no_grad():
                if (
                    uniform
                ):  # queries and keys that say nothing: the output is made of the values alone
                    attn.qkv.weight[:48] = 0
                    attn.qkv.bias[:48] = 0
        with torch.no_grad():
            return max_difference(model(images)[0], plain(images)[0])

    assert effect('qk', uniform=True) == 0
    assert effect('qk', uniform=False) > 1e-3
    assert effect('qkv', uniform=True) > 1e-3


def test_target_qk_makes_queries_and_keys_of_the_encoded_tokens():
    model, _ = pair((-1,), target='qk')
    block, peg = model.blocks[0].double().eval(), model.pos_block.get_submodule('0').double()
    tokens, cls_token = torch.randn(2, 12, 24).double(), torch.randn(2, 1, 24).double()
    seen = torch.cat((cls_token, peg(tokens, (3, 4))), dim=1)
    x = torch.cat((cls_token, tokens), dim=1)
    weight, bias = block.attn.qkv.weight, block.attn.qkv.bias
    query, key = (block.norm1(seen) @ weight[:48].T + bias[:48]).chunk(2, dim=-1)
    value = block.norm1(x) @ weight[48:].T + bias[48:]
    query, key, value = (t.unflatten(-1, (2, 12)).transpose(1, 2) for t in (query, key, value))
    out = (query @ key.mT / 12**0.5).softmax(-1) @ value
    x = x + block.attn.proj(out.transpose(1, 2).flatten(2))
    x = x + block.mlp(block.norm2(x))
    got, got_cls = block(tokens, cls_token, (3, 4), qk=peg(tokens, (3, 4)))
    assert max_difference(got, x[:, 1:]) < 1e-10
    assert max_difference(got_cls, x[:, :1]) < 1e-10


def test_frozen_is_random_and_gets_no_gradient():
    model = column(position=dict(type='PEG', frozen=True))
    model.train()
    model(torch.randn(1, 3, 32, 32))[0].square().sum().backward()
    peg = model.pos_block.get_submodule('0')
    assert peg.proj[0].weight.any()
    assert all(not p.requires_grad and p.grad is None for p in peg.parameters())
    assert all(
        p.grad is not None
        for name, p in model.named_parameters()
        if not name.startswith('pos_block')
    )


def test_without_padding_in_a_column_the_output_shrinks():
    model = column(position=dict(type='PEG', padding='none', after_blocks=(0, 2)))
    assert model(torch.randn(1, 3, 100, 130))[0].shape == (1, 24, 7 - 4, 9 - 4)


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (dict(kernel_size=4), r'kernel_size must be an odd integer >= 1, got 4'),
        (dict(kernel_size=0), r'kernel_size must be an odd integer >= 1, got 0'),
        (dict(kernel_size=-1), r'kernel_size must be an odd integer >= 1, got -1'),
        (dict(kernel_size=3.0), r'kernel_size must be an odd integer >= 1, got 3\.0'),
        (dict(kernel_size=True), r'kernel_size must be an odd integer >= 1, got True'),
        (dict(frozen='False'), r"frozen must be True or False, got 'False'"),
        (dict(bias=1), r'bias must be True or False, got 1'),
        (dict(num_layers=0), r'num_layers must be an integer >= 1, got 0'),
        (dict(kind='dense'), r"kind must be one of \['depthwise', 'separable'\], got 'dense'"),
        (dict(padding='same'), r"padding must be one of \['none', 'zero'\], got 'same'"),
        (dict(padding=1), r"padding must be one of \['none', 'zero'\], got 1"),
        (dict(norm='LN'), r"norm must be one of \['BN', None\], got 'LN'"),
        (dict(act='Swish'), r"act must be one of \['GELU', None, 'ReLU'\], got 'Swish'"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        PEG(8, **arguments)
    with pytest.raises(ValueError, match=message):
        column(position=dict(type='PEG', **arguments))


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (dict(after_blocks=(4,)), r'after_blocks must hold integers in \[-1, 3\], got 4 in \(4,\)'),
        (
            dict(after_blocks=(0, -2)),
            r'after_blocks must hold integers in \[-1, 3\], got -2 in \(0, -2\)',
        ),
        (dict(after_blocks=(0.0,)), r'after_blocks must hold integers in \[-1, 3\], got 0\.0'),
        (dict(after_blocks=()), r'after_blocks must name at least one block.*got \(\)'),
        (dict(after_blocks=(1, 1)), r'after_blocks must name each block once, got \(1, 1\)'),
        (
            dict(after_blocks=0),
            r"after_blocks must be a sequence of block indices or a range such as '0-5', got 0",
        ),
        (
            dict(after_blocks='all'),
            r"after_blocks must be a sequence of block indices or a range .*, got 'all'",
        ),
        (
            dict(after_blocks='-1-3'),
            r"after_blocks must be a sequence of block indices or a range .*, got '-1-3'",
        ),
        (
            dict(after_blocks='4-6'),
            r"after_blocks must name at least one block in \[-1, 3\].*got '4-6'",
        ),
        (
            dict(after_blocks='2-2'),
            r"after_blocks must name at least one block in \[-1, 3\].*got '2-2'",
        ),
        (
            dict(after_blocks=(i for i in (0, 1))),
            r'after_blocks must be a sequence of block indices or a range .*, got <',
        ),
        (dict(target='v'), r"target must be one of \['qk', 'qkv'\], got 'v'"),
        (
            dict(target='qk', after_blocks=(3,)),
            r'after_blocks must hold integers in \[-1, 2\], got 3',
        ),
        (dict(target='qk', padding='none'), r"padding must be 'zero' with target='qk'.*got 'none'"),
    ],
)
def test_wrong_places(arguments, message):
    stage = Stage(dim=8, depth=4, used=4, head_dim=4, grid=(4, 4))
    with pytest.raises(ValueError, match=message):
        PEGPosition([stage], **arguments)


@pytest.mark.parametrize(
    ('after_blocks', 'depth', 'target', 'wanted'),
    [
        ('0-5', 12, 'qkv', [0, 1, 2, 3, 4]),
        ('0-5', 3, 'qkv', [0, 1, 2]),
        ('0-5', 3, 'qk', [0, 1]),
        ('1-3', 6, 'qkv', [1, 2]),
        ([2, -1], 6, 'qkv', [-1, 2]),
        (range(2), 6, 'qkv', [0, 1]),
    ],
)
def test_after_blocks(after_blocks, depth, target, wanted):
    stage = Stage(dim=8, depth=depth, used=depth, head_dim=4, grid=(4, 4))
    encoding = PEGPosition([stage], after_blocks=after_blocks, target=target)
    assert [block for _, block in encoding.layer_ids] == wanted == encoding.blocks_of(depth)
    assert [encoding.layer_id(f'{i}.proj.0.weight') for i in range(len(wanted))] == [
        (0, block) for block in wanted
    ]


def test_signature_lists_the_arguments_that_are_handed_on():
    named = list(inspect.signature(PEGPosition).parameters)
    assert named[0] == 'stages'
    assert {'after_blocks', 'target', *inspect.signature(PEG).parameters} - {'dim'} == set(
        named[1:]
    )


@pytest.mark.parametrize(('batch', 'size'), [(1, 1), (2, 1), (1, 2)])
def test_batch_norm_is_not_trained_on_one_token(batch, size):
    peg, tokens = PEG(8, norm='BN'), torch.randn(batch, size * size, 8)
    if batch * size > 1:
        peg(tokens, (size, size))
    else:
        with pytest.raises(
            ValueError, match=r"norm must be None to train PEG on fewer than two tokens, got 'BN'"
        ):
            peg(tokens, (1, 1))
    assert peg.eval()(tokens, (size, size)).isfinite().all()


@pytest.mark.parametrize('shape', [(2, 11, 8), (2, 12, 9), (12, 8)])
def test_tokens_that_do_not_fill_the_grid(shape):
    with pytest.raises(
        ValueError, match=r'tokens must be \(B, 3 \* 4, 8\) for grid=\(3, 4\), got shape \(.*\)'
    ):
        PEG(8)(torch.randn(shape), (3, 4))


@pytest.mark.parametrize('batch', [1, 2])
@pytest.mark.parametrize('prefix', [0, 1])
def test_a_map_of_tokens_is_channels_last_and_so_is_what_a_convolution_makes_of_it(batch, prefix):
    """Of one image too: torch looks at strides that mean nothing there, and would copy the map."""
    tokens = torch.randn(batch, prefix + 30, 8)[:, prefix:]
    feature_map = tokens_to_map(tokens, (5, 6))
    assert feature_map.data_ptr() == tokens.data_ptr()
    assert feature_map.stride()[1:] == (1, 48, 8)
    assert feature_map.stride(0) >= 240
    out = PEG(8).proj(feature_map)
    assert out.stride() == (240, 1, 48, 8)
    assert map_to_tokens(out).stride() == (240, 8, 1)
    assert torch.equal(map_to_tokens(feature_map), tokens)

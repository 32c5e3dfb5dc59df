"""PEG against its definition, and every option of it."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import PYRAMID, column, max_difference, pyramid, randomise
from torch import nn
from torch.nn import functional

from cpvt_backbones import PEG
from cpvt_backbones.layers import PEGPosition, Stage


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


def definition(peg, tokens, grid, *, padded=True):
    """Each layer of a PEG by its formula, with a residual if it pads."""
    x = tokens.unflatten(1, grid)
    for layer in peg.proj:
        hidden = x
        for part in layer if isinstance(layer, nn.Sequential) else [layer]:
            if isinstance(part, nn.Conv2d) and part.groups > 1:
                hidden = convolve(hidden, part.weight, part.bias, padded=padded)
            elif isinstance(part, nn.Conv2d):
                hidden = hidden @ part.weight[:, :, 0, 0].T + part.bias
            elif isinstance(part, nn.BatchNorm2d):
                mean, variance = part.running_mean.clone(), part.running_var.clone()
                if peg.training:
                    mean = hidden.mean((0, 1, 2))
                    variance = hidden.var((0, 1, 2), unbiased=False)
                hidden = (hidden - mean) / (variance + part.eps).sqrt() * part.weight + part.bias
            else:
                hidden = functional.relu(hidden) if 'ReLU' in str(part) else functional.gelu(hidden)
        x = x + hidden if padded else hidden
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


@pytest.mark.parametrize('training', [True, False])
@pytest.mark.parametrize(
    'options',
    [
        dict(kernel_size=27),  # larger than the map
        dict(num_layers=4),
        dict(kind='separable', num_layers=2),
        dict(norm='BN', act='ReLU', bias=False),
        dict(act='GELU', num_layers=2),
    ],
    ids=str,
)
def test_options_follow_the_definition(options, training):
    peg = make(**options).train(training)
    for module in peg.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean += torch.randn(4)
            module.running_var *= 2
    tokens = torch.randn(2, 20, 4, dtype=torch.float64)
    wanted = definition(peg, tokens, (4, 5))
    assert max_difference(peg(tokens, (4, 5)), wanted) < 1e-11


def test_without_padding_the_map_shrinks_and_there_is_no_residual():
    peg = make(padding='none', num_layers=2)
    tokens = torch.randn(2, 7 * 6, 4, dtype=torch.float64)
    assert peg.out_grid((7, 6)) == (3, 2)
    wanted = definition(peg, tokens, (7, 6), padded=False)
    assert max_difference(peg(tokens, (7, 6)), wanted) < 1e-12
    with pytest.raises(ValueError, match=r"grid must be larger than 4 x 4.*'none'.*got 4 x 9"):
        peg(torch.randn(1, 36, 4).double(), (4, 9))
    model = column(position=dict(type='PEG', padding='none', after_blocks=(0, 2)))
    assert model(torch.randn(1, 3, 100, 130))[0].shape == (1, 24, 7 - 4, 9 - 4)


def test_initial_values_are_those_of_torch_and_never_zero():
    # Uniform within 1 / sqrt(fan-in), fan-in 9: standard deviation 1 / (3 * sqrt(3)).
    assert PEG(512).proj[0].weight.std().item() == pytest.approx(1 / (3 * 3**0.5), rel=0.05)


def test_initial_values_in_a_pyramid_are_those_of_the_authors():
    model = pyramid(arch={**PYRAMID, 'embed_dims': (64, 96, 128, 192)})
    parameters = list(model.pos_block.parameters())
    weights = torch.cat([p.flatten() for p in parameters if p.dim() > 1])
    assert weights.std().item() == pytest.approx((2 / 9) ** 0.5, rel=0.05)
    assert not any(p.any() for p in parameters if p.dim() == 1)


# -- in a trunk
# --------------------------------------------------------------------------------------------------


def pair(after_blocks, **kwargs):
    """A model with PEG and one without, of the same weights."""
    position = dict(type='PEG', after_blocks=after_blocks, **kwargs)
    model = randomise(column(position=position, out_type='raw'))
    plain = column(position=None, out_type='raw')
    plain.load_state_dict(model.state_dict(), strict=False)
    return model.eval(), plain.eval()


def test_the_class_token_passes_unchanged():
    model, plain = pair((3,))
    # No final norm in between: what the trunk hands to the norm is compared.
    model.norm, plain.norm = nn.Identity(), nn.Identity()
    images = torch.randn(2, 3, 64, 48)
    with torch.no_grad():
        (got,), (wanted,) = model(images), plain(images)
        encoded = model.pos_block.get_submodule('0')(wanted[:, 1:], (4, 3))
    assert torch.equal(got[:, 0], wanted[:, 0])
    assert max_difference(got[:, 1:], encoded) < 1e-5
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


def test_target_qk_makes_queries_and_keys_of_the_encoded_tokens():
    model = pair((-1,), target='qk')[0].double()
    block, peg = model.blocks[0], model.pos_block.get_submodule('0')
    outputs = []
    model.patch_embed.register_forward_hook(lambda *args: outputs.append(args[2][0]))
    block.register_forward_hook(lambda *args: outputs.append(args[2]))
    model(torch.randn(2, 3, 48, 64).double())
    tokens, got = outputs
    cls_token = model.cls_token.expand(2, -1, -1)
    seen = torch.cat((cls_token, peg(tokens, (3, 4))), dim=1)
    x = torch.cat((cls_token, tokens), dim=1)
    weight, bias = block.attn.qkv.weight, block.attn.qkv.bias
    query, key = (block.norm1(seen) @ weight[:48].T + bias[:48]).chunk(2, dim=-1)
    value = block.norm1(x) @ weight[48:].T + bias[48:]
    query, key, value = (t.unflatten(-1, (2, 12)).transpose(1, 2) for t in (query, key, value))
    out = (query @ key.mT / 12**0.5).softmax(-1) @ value
    x = x + block.attn.proj(out.transpose(1, 2).flatten(2))
    x = x + block.mlp(block.norm2(x))
    assert max_difference(got, x) < 1e-10


def test_frozen_is_random_and_gets_no_gradient():
    model = column(position=dict(type='PEG', frozen=True)).train()
    model(torch.randn(1, 3, 32, 32))[0].square().sum().backward()
    assert model.pos_block.get_submodule('0').proj[0].weight.any()
    for name, p in model.named_parameters():
        assert (p.grad is None) is (not p.requires_grad) is name.startswith('pos_block'), name


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (dict(kernel_size=4), 'kernel_size must be an odd integer >= 1, got 4'),
        (dict(frozen='False'), "frozen must be True or False, got 'False'"),
        (dict(num_layers=0), 'num_layers must be an integer >= 1, got 0'),
        (dict(kind='dense'), "kind must be one of ['depthwise', 'separable'], got 'dense'"),
        (dict(padding='same'), "padding must be one of ['none', 'zero'], got 'same'"),
        (dict(norm='LN'), "norm must be one of ['BN', None], got 'LN'"),
        (dict(act='Swish'), "act must be one of ['GELU', None, 'ReLU'], got 'Swish'"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        PEG(8, **arguments)
    with pytest.raises(ValueError, match=re.escape(message)):
        column(position=dict(type='PEG', **arguments))


ONE_SEQUENCE = "after_blocks must be a sequence of block indices or a range such as '0-5', got "


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (dict(after_blocks=(4,)), 'after_blocks must hold integers in [-1, 3], got 4 in (4,)'),
        (dict(after_blocks=()), 'after_blocks must name at least one block'),
        (dict(after_blocks=(1, 1)), 'after_blocks must name each block once, got (1, 1)'),
        (dict(after_blocks=0), f'{ONE_SEQUENCE}0'),
        (dict(after_blocks='-1-3'), f"{ONE_SEQUENCE}'-1-3'"),
        (dict(after_blocks=(i for i in (0, 1))), f'{ONE_SEQUENCE}<'),
        (dict(after_blocks='2-2'), 'after_blocks must name at least one block in [-1, 3]'),
        (dict(target='v'), "target must be one of ['qk', 'qkv'], got 'v'"),
        (dict(target='qk', after_blocks=(3,)), 'must hold integers in [-1, 2], got 3'),
        (dict(target='qk', padding='none'), "padding must be 'zero' with target='qk'"),
    ],
)
def test_wrong_places(arguments, message):
    stage = Stage(dim=8, depth=4, used=4, head_dim=4, grid=(4, 4))
    with pytest.raises(ValueError, match=re.escape(message)):
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
    layers = [encoding.layer_id(f'{i}.proj.0.weight') for i in range(len(wanted))]
    assert layers == [(0, block) for block in wanted]
    assert encoding.blocks_of(depth) == wanted


@pytest.mark.parametrize(('batch', 'size'), [(1, 1), (2, 1), (1, 2)])
def test_batch_norm_is_not_trained_on_one_token(batch, size):
    peg, tokens = PEG(8, norm='BN'), torch.randn(batch, size * size, 8)
    if batch * size > 1:
        peg(tokens, (size, size))
    else:
        with pytest.raises(ValueError, match=r"norm must be None to train PEG .*, got 'BN'"):
            peg(tokens, (1, 1))
    assert peg.eval()(tokens, (size, size)).isfinite().all()


@pytest.mark.parametrize('shape', [(2, 11, 8), (2, 12, 9), (12, 8)])
def test_tokens_that_do_not_fill_the_grid(shape):
    with pytest.raises(ValueError, match=r'tokens must be \(B, 3 \* 4, 8\) .*, got shape \('):
        PEG(8)(torch.randn(shape), (3, 4))

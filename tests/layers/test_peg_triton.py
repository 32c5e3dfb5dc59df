"""The Triton kernel against the convolution: on a GPU where there is one, else under Triton's interpreter."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from cpvt_backbones import PEG
from cpvt_backbones.layers import peg as peg_module

pytest.importorskip('triton')

from cpvt_backbones.layers import peg_triton

DEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'


@pytest.fixture
def everywhere(monkeypatch):
    """PEG takes the kernel on any device."""
    monkeypatch.setattr(peg_module, '_on_gpu', lambda tokens: True)


def with_gradients(peg, tokens, grid, slope):
    tokens = tokens.detach().requires_grad_()
    out = peg(tokens, grid)
    return (out, *torch.autograd.grad(out, (tokens, *peg.parameters()), slope))


def pair(dim, **options):
    """The kernel and the convolution with the same weights."""
    kernel, plain = PEG(dim, implementation='triton', **options).to(DEVICE), PEG(dim, **options).to(DEVICE)
    plain.load_state_dict(kernel.state_dict())
    return kernel, plain


@pytest.mark.usefixtures('everywhere')
@pytest.mark.parametrize('kernel_size', [1, 3, 5, 7])
@pytest.mark.parametrize(
    ('batch', 'grid', 'dim', 'bias'),
    [
        (1, (1, 1), 3, True),
        (2, (7, 13), 70, True),  # not a multiple of any block
        (3, (4, 8), 64, False),  # one block exactly
        (1, (1, 19), 16, True),
        (2, (17, 2), 5, False),
    ],
)
def test_values_and_gradients(batch, grid, dim, bias, kernel_size):
    kernel, plain = pair(dim, kernel_size=kernel_size, bias=bias)
    tokens, slope = torch.randn(2, batch, grid[0] * grid[1], dim, device=DEVICE)
    got, wanted = with_gradients(kernel, tokens, grid, slope), with_gradients(plain, tokens, grid, slope)
    assert len(got) == 3 + bias
    for g, w in zip(got, wanted, strict=True):
        assert g.shape == w.shape
        assert g.dtype == w.dtype
        torch.testing.assert_close(g, w, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures('everywhere')
def test_tokens_and_gradients_in_any_layout():
    kernel, plain = pair(6)
    grid, both = (5, 3), torch.randn(2, 16, 6, device=DEVICE)
    beside = both[:, 1:]  # what is left of a class token
    assert not beside.is_contiguous()
    across = torch.randn(2, 6, 15, device=DEVICE).transpose(1, 2)  # channels apart
    for tokens in (beside, across, both[:1, 1:].expand(2, -1, -1)):
        for slope in (torch.ones((), device=DEVICE).expand(2, 15, 6), across, both[:, :-1]):
            pairs = zip(
                with_gradients(kernel, tokens, grid, slope), with_gradients(plain, tokens, grid, slope), strict=True
            )
            for g, w in pairs:
                torch.testing.assert_close(g, w, atol=1e-5, rtol=1e-5)
    first = both[:, 0].clone()
    kernel(beside, grid)
    assert torch.equal(both[:, 0], first)  # the class token stays where and what it was


@pytest.mark.usefixtures('everywhere')
def test_many_parts_make_one_gradient(monkeypatch):
    grid, (tokens, slope) = (9, 18), torch.randn(2, 2, 162, 3, device=DEVICE)
    triton, plain = pair(3)
    wanted = with_gradients(plain, tokens, grid, slope)
    for programs in (1, 7, 10_000):
        monkeypatch.setattr(peg_triton, 'PROGRAMS', programs)
        for g, w in zip(with_gradients(triton, tokens, grid, slope), wanted, strict=True):
            torch.testing.assert_close(g, w, atol=1e-4, rtol=1e-5)


@pytest.mark.usefixtures('everywhere')
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision_sums_in_single(dtype):
    kernel, plain = pair(8, kernel_size=7)
    tokens = torch.randn(1, 81, 8, device=DEVICE).to(dtype)
    wanted = plain(tokens.float(), (9, 9))
    got = kernel(tokens, (9, 9))  # weights stay in fp32, as under autocast
    assert got.dtype == dtype
    assert torch.equal(got, wanted.to(dtype)) or (got.float() - wanted).abs().max() <= wanted.abs().max() * (
        2**-10 if dtype == torch.float16 else 2**-7  # the interpreter cuts bf16, a GPU rounds it
    )


@pytest.mark.usefixtures('everywhere')
def test_layers_in_a_row_and_fused():
    kernel, plain = pair(4, num_layers=3)
    tokens = torch.randn(2, 12, 4, device=DEVICE)
    torch.testing.assert_close(kernel(tokens, (3, 4)), plain(tokens, (3, 4)), atol=1e-5, rtol=1e-5)
    assert kernel.fuse()
    torch.testing.assert_close(kernel(tokens, (3, 4)), plain(tokens, (3, 4)), atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures('everywhere')
def test_the_operation_keeps_torchs_rules():
    tokens = torch.randn(2, 6, 4, device=DEVICE, requires_grad=True)
    conv = nn.Conv2d(4, 4, 3, groups=4, device=DEVICE)
    torch.library.opcheck(peg_triton.peg, (tokens, conv.weight, conv.bias, 2, 3, True))


def test_a_cpu_takes_the_convolution(monkeypatch):
    monkeypatch.setattr(peg_module, '_triton_peg', None)  # must not be called
    kernel, plain = (peg.cpu() for peg in pair(4))
    tokens = torch.randn(1, 6, 4)
    assert torch.equal(kernel(tokens, (2, 3)), plain(tokens, (2, 3)))


@pytest.mark.parametrize(
    'options',
    [dict(kind='separable'), dict(padding='none'), dict(kernel_size=9), dict(norm='BN'), dict(act='GELU')],
)
def test_what_the_kernel_does_not_do_is_named(options):
    (name,) = options
    with pytest.raises(ValueError, match=rf"implementation must be 'convolution' with {name}=.*, got 'triton'"):
        PEG(4, implementation='triton', **options)
    with pytest.raises(ValueError, match="implementation must be one of .*'convolution', 'triton'.*, got 'cuda'"):
        PEG(4, implementation='cuda')


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from cpvt_backbones.layers import peg_triton

blocks = dict(BLOCK_H=peg_triton.BLOCK_H, BLOCK_W=peg_triton.BLOCK_W, BLOCK_C=peg_triton.BLOCK_C)
for kernel, constants in (
    (peg_triton._correlate, dict(SIDE=3, FLIP=False, RESIDUAL=True, HAS_BIAS=True)),
    (peg_triton._weight_sums, dict(SIDE=3, ROWS=16)),
):
    constants |= blocks
    kinds = {'tokens': '*bf16', 'grad': '*bf16', 'out': '*bf16', 'weight': '*fp32', 'bias': '*fp32', 'sums': '*fp32'}
    signature = {
        name: 'constexpr' if name in constants else kinds.get(name, 'i64' if 'stride' in name else 'i32')
        for name in kernel.arg_names
    }
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=places)
    compiled = triton.compile(source, target=GPUTarget('cuda', 90, 32))
    assert compiled.asm['cubin'], kernel
print('compiled')
"""


def test_the_kernels_compile_for_a_gpu(tmp_path):
    """Down to machine code, which needs no GPU and which the interpreter says nothing of."""
    env = {key: value for key, value in os.environ.items() if key != 'TRITON_INTERPRET'}
    env['TRITON_CACHE_DIR'] = str(tmp_path)
    done = subprocess.run([sys.executable, '-c', COMPILE], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.strip().endswith('compiled'), done.stderr

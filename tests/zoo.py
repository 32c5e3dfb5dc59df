"""Tiny models and small tools for the tests."""

import torch
from torch import nn

from cpvt_backbones import CPVT, MultiScaleCPVT, PyramidCPVT

COLUMN = dict(embed_dims=24, depth=4, num_heads=2, mlp_ratio=2.0)
PYRAMID = dict(
    depths=(2, 1, 2, 2),
    embed_dims=(8, 12, 16, 24),
    num_heads=(1, 2, 2, 3),
    mlp_ratios=(2.0,) * 4,
    sr_ratios=(4, 2, 2, 1),
)

PEG = dict(type='PEG', after_blocks=(0,))
POSITIONS = {
    'none': None,
    'peg': PEG,
    'peg_before': dict(type='PEG', after_blocks=(-1,)),
    'peg_qk': dict(type='PEG', after_blocks=(-1,), target='qk'),
    'peg_bn': dict(type='PEG', norm='BN', act='ReLU', bias=False),
    'learned': dict(type='Learned'),
    'sin_cos': dict(type='SinCos'),
    'relative': dict(type='Relative', clip=3),
    'learned_and_peg': [dict(type='Learned'), PEG],
}


def column(**kwargs):
    return CPVT(**{'arch': COLUMN, 'img_size': 64, **kwargs})


def multi_scale(**kwargs):
    return MultiScaleCPVT(**{'arch': COLUMN, 'img_size': 64, **kwargs})


def pyramid(**kwargs):
    return PyramidCPVT(**{'arch': PYRAMID, 'img_size': 64, **kwargs})


# Every kind of dense model: name -> builder taking further keyword arguments.
DENSE = {
    'column': lambda **kw: column(**kw),
    'column_gap': lambda **kw: column(with_cls_token=False, **kw),
    'column_windowed': lambda **kw: column(window_size=3, global_blocks=(1,), **kw),
    'multi_scale_last': lambda **kw: multi_scale(source='last', **kw),
    'multi_scale_last_8': lambda **kw: multi_scale(source='last', patch_size=8, **kw),
    'multi_scale_last_cls': lambda **kw: multi_scale(source='last', with_cls_token=True, **kw),
    'multi_scale_taps': lambda **kw: multi_scale(source='taps', **kw),
    'multi_scale_taps_8': lambda **kw: multi_scale(source='taps', patch_size=8, **kw),
    'multi_scale_windowed': lambda **kw: multi_scale(window_size=3, global_blocks=(1, 3), **kw),
    'multi_scale_taps_windowed_8': lambda **kw: multi_scale(source='taps', patch_size=8, window_size=4, **kw),
    'pyramid': lambda **kw: pyramid(**kw),
    'pyramid_cls': lambda **kw: pyramid(with_cls_token=True, **kw),
}


def randomise(model: nn.Module) -> nn.Module:
    """Give every parameter a value far from its neutral start, so that no mistake hides behind a 0 or a 1."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.add_(torch.randn_like(parameter) * 0.05)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def max_difference(left, right) -> float:
    return (left.double() - right.double()).abs().max().item()


def assert_equal_outputs(left, right) -> None:
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert torch.equal(a, b)

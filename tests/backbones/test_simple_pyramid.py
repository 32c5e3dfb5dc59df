"""ViTDet's neck against its formula, with the names of weights in mmdet's project ViTDet."""

import pytest
import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from tiny import max_difference, randomise

from cpvt_backbones.backbones import SimplePyramid


def norm(x, weights, name):
    values = [weights[f'{name}.{leaf}'][:, None, None] for leaf in ('weight', 'bias')]
    mean, variance = x.mean(1, keepdim=True), x.var(1, keepdim=True, unbiased=False)
    return (x - mean) / (variance + 1e-5).sqrt() * values[0] + values[1]


def upsample(x, weights, name):
    return F.conv_transpose2d(x, weights[f'{name}.weight'], weights[f'{name}.bias'], stride=2)


def by_formula(x, weights, num_outs):
    finest = upsample(x, weights, 'fpn1.0')
    finest = upsample(F.gelu(norm(finest, weights, 'fpn1.1')), weights, 'fpn1.3')
    pooled = F.max_pool2d(x, 2, ceil_mode=True)
    outputs = []
    for i, level in enumerate((finest, upsample(x, weights, 'fpn2.0'), x, pooled)):
        for part, padding in ((f'lateral_convs.{i}', 0), (f'fpn_convs.{i}', 1)):
            level = F.conv2d(level, weights[f'{part}.conv.weight'], padding=padding)
            level = norm(level, weights, f'{part}.norm_layer')
        outputs.append(level)
    while len(outputs) < num_outs:
        outputs.append(outputs[-1][:, :, ::2, ::2])
    return outputs


@pytest.mark.parametrize('num_outs', [4, 6])
def test_outputs_are_those_of_the_formula(num_outs):
    neck = randomise(SimplePyramid(in_channels=24, out_channels=8, num_outs=num_outs)).double()
    feature_map = torch.randn(2, 24, 5, 7, dtype=torch.float64)
    outputs = neck((torch.zeros(1), feature_map))
    wanted = by_formula(feature_map, neck.state_dict(), num_outs)
    for got, want in zip(outputs, wanted, strict=True):
        assert got.is_contiguous() and max_difference(got, want) < 1e-10


def test_heads_have_its_norm_under_the_published_names():
    cnn = pytest.importorskip('mmcv.cnn')
    module = cnn.ConvModule(4, 8, 3, norm_cfg=dict(type='LayerNorm2d'))
    assert {'conv.weight', 'norm_layer.weight', 'norm_layer.bias'} == {*module.state_dict()}
    assert module.norm_layer.eps == 1e-5
    assert isinstance(MODELS.build(dict(type='SimplePyramid', in_channels=8)), SimplePyramid)


def test_widths_that_cannot_be_quartered_are_refused():
    with pytest.raises(ValueError, match='in_channels must be .*, got 3'):
        SimplePyramid(in_channels=3)

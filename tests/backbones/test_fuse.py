"""`fuse()`: the same numbers from fewer operations, on a copy.

Compared in fp64: one rounding is 1e-16, and a hundred operations in a row amplify it to no more
than 1e-12.
"""

import pytest
import torch
from tiny import POSITIONS, column, multi_scale, pyramid
from torch import nn

from cpvt_backbones import PEG

PEGS = {
    **{name: position for name, position in POSITIONS.items() if 'peg' in name},
    'stacked': dict(type='PEG', num_layers=3, kernel_size=5),
    'no_bias': dict(type='PEG', bias=False),
    'bn': dict(type='PEG', norm='BN', bias=False),
    'separable': dict(type='PEG', kind='separable'),
    'unpadded': dict(type='PEG', padding='none'),
}
NOT_FUSED = ('peg_bn', 'separable', 'unpadded')  # an activation, a 1 x 1 convolution, no identity


def models(position):
    yield column(position=position)
    if position != PEGS['unpadded']:
        yield pyramid(position=position)
        yield multi_scale(position=position)


@pytest.mark.parametrize('name', PEGS)
def test_the_copy_agrees_and_the_model_stays(name):
    for model in models(PEGS[name]):
        model.double()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):  # statistics that are not the initial ones
                nn.init.uniform_(module.running_mean)
                nn.init.uniform_(module.running_var, 0.5, 2.0)
        before = {key: value.clone() for key, value in model.state_dict().items()}
        fused = model.train().fuse()
        assert model.training and not fused.training
        assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
        assert not any(parameter.requires_grad for parameter in fused.parameters())
        model.eval()
        for size in ((64, 64), (97, 131), (70, 33)):
            images = torch.randn(2, 3, *size, dtype=torch.float64)
            with torch.no_grad():
                for expected, found in zip(model(images), fused(images), strict=True):
                    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize('name', PEGS)
def test_fused_weights_are_not_taken_for_others(name):
    model = column(position=PEGS[name])
    fused = model.fuse()
    pegs = [module for module in fused.modules() if isinstance(module, PEG)]
    assert all((peg.fused is not None) == (name not in NOT_FUSED) for peg in pegs)
    if name not in NOT_FUSED:
        with pytest.raises(RuntimeError, match='fused'):
            model.load_state_dict(fused.state_dict())

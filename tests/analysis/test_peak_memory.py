"""Peak memory against arithmetic, and its repeatability."""

import pytest
import torch
from torch import nn

from cpvt_backbones import CPVT, PyramidCPVT
from cpvt_backbones.analysis.memory import peak_memory


def blocks(mib):
    """Allocate three blocks, two of them at a time."""
    first = torch.ones(mib << 18)
    second = first + 1
    del first
    return second + 1


@pytest.mark.full
def test_peak_is_independent_of_earlier_allocations():
    for before in (8, 200, 3):
        kept = blocks(before)
        assert peak_memory(lambda: blocks(32), 'cpu') == pytest.approx(
            64, abs=1e-4
        )  # and the scalar that is added
        del kept


def test_peak_of_a_training_step():
    """Hidden map, its gradient, and the gradients of both weights."""
    model = nn.Sequential(nn.Linear(256, 1024, bias=False), nn.Linear(1024, 256, bias=False))
    tokens = torch.randn(1024, 256)
    hidden, output, weight = 4, 1, 1  # MiB

    def step():
        model(tokens).sum().backward()
        model.zero_grad(set_to_none=True)

    step()
    with torch.no_grad():
        assert peak_memory(lambda: model(tokens), 'cpu') == hidden + output
    assert 2 * hidden + weight <= peak_memory(step, 'cpu') <= 2 * hidden + 2 * weight + 2 * output


def test_a_backbone_needs_no_more_than_its_peer():
    """No tensor is held longer than a peer holds it."""
    timm = pytest.importorskip('timm')
    pairs = (
        ('deit_tiny_patch16_224', CPVT(arch='tiny', position=None, out_type='raw')),
        ('deit_tiny_patch16_224', CPVT(arch='tiny', out_type='raw')),
        ('twins_pcpvt_small', PyramidCPVT(arch='small', out_indices=3)),
    )
    images = torch.rand(2, 3, 224, 224)
    for name, model in pairs:
        peer = timm.create_model(name, num_classes=0)
        most, found = (peak_of_call(backbone.eval(), images) for backbone in (peer, model))
        assert found <= 1.01 * most


@torch.no_grad()
def peak_of_call(model, images):
    return peak_memory(lambda: model(images), 'cpu')

"""Peak memory is what the formulas say, and the same each time."""

import pytest
import torch
from torch import nn

from cpvt_backbones.analysis.memory import peak_memory
from cpvt_backbones.backbones import PyramidCPVT


def blocks(mib):
    """Three blocks, of which two are there at a time."""
    first = torch.ones(mib << 18)
    second = first + 1
    del first
    return second + 1


def test_a_known_call_whatever_was_there_before():
    for before in (8, 200, 3):
        kept = blocks(before)
        assert peak_memory(lambda: blocks(32), 'cpu') == pytest.approx(64, abs=1e-4)  # the 1 that is added, too
        del kept


def test_activations_of_training():
    """Two layers keep the hidden map for their backward pass; its gradient stands beside it at the peak."""
    model = nn.Sequential(nn.Linear(256, 1024, bias=False), nn.Linear(1024, 256, bias=False)).requires_grad_(False)
    tokens = torch.randn(1024, 256, requires_grad=True)
    hidden, output = 4, 1  # MiB

    def step():
        model(tokens).sum().backward()
        tokens.grad = None

    step()
    with torch.no_grad():
        assert peak_memory(lambda: model(tokens), 'cpu') == hidden + output
    assert hidden + output <= peak_memory(step, 'cpu') <= hidden + 2 * output + 0.1


def test_a_backbone_needs_the_same_each_time():
    model = PyramidCPVT(arch='tiny').eval()
    images = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        model(images)
        first, second = (peak_memory(lambda: model(images), 'cpu') for _ in range(2))
    assert first == second > 0

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


def test_activations_and_gradients_of_training():
    """The hidden map waits for the backward pass; there its gradient and those of both weights join it."""
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


def test_a_backbone_needs_the_same_each_time():
    model = PyramidCPVT(arch='tiny').eval()
    images = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        model(images)
        first, second = (peak_memory(lambda: model(images), 'cpu') for _ in range(2))
    assert first == second > 0

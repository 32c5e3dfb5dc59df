"""Peak memory against arithmetic, and its repeatability."""

import pytest
import torch
from torch import nn

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

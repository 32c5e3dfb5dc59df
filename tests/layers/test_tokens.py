"""What the layers ask of torch, over versions of torch."""

import torch
from torch.fx import _symbolic_trace

from cpvt_backbones.layers.tokens import is_symbolic


class Asks(torch.nn.Module):
    def forward(self, x):
        self.answer = is_symbolic()
        return x


def test_symbolic_traces_are_noticed():
    model = Asks()
    torch.fx.symbolic_trace(model)
    assert model.answer is True
    model(torch.ones(1))
    assert model.answer is False


def test_torchs_function_is_asked_where_there_is_one(monkeypatch):
    """From torch 2.15 on there is no flag beside it, and no forward call worked."""
    monkeypatch.setattr(_symbolic_trace, 'is_fx_symbolic_tracing', lambda: True, raising=False)
    assert is_symbolic()
    monkeypatch.delattr(_symbolic_trace, 'is_fx_symbolic_tracing')
    monkeypatch.setattr(_symbolic_trace, '_is_fx_tracing_flag', True, raising=False)
    assert is_symbolic()

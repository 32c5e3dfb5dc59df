"""Figures of the benchmark against models and clocks whose cost is known."""

import itertools
import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from benchmarks import measure
from benchmarks.cases import BenchmarkCase, read_suite
from benchmarks.measure import count_flops, measure_case, peg_share
from benchmarks.report import COLUMNS, read_rows
from benchmarks.routes import ROUTES, base_of


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    """A machine of 1 GFLOP/s and 1 GB/s."""
    monkeypatch.setattr(measure, 'measure_limits', lambda case: (1e9, 1e9))


@pytest.mark.parametrize('mode', ['forward', 'train'])
def test_operations_bytes_and_shares(mode):
    case = BenchmarkCase(('narrow', 'wide'), 32, 48, 2, mode=mode)
    narrow, wide = measure_case(case, 1)
    assert sorted(narrow) == sorted(COLUMNS)
    flops = 2 * 2 * 3 * 32 * 48 * 10 * (3 if mode == 'train' else 1)
    assert narrow['gflop'] == pytest.approx(flops / 1e9)
    assert wide['gflop'] == pytest.approx(200 * narrow['gflop'])
    assert narrow['matmul_share'] == pytest.approx(flops / narrow['seconds'] / 1e9)
    if mode == 'forward':  # images, weights and output, once each
        floats = 2 * 3 * 32 * 48 + 3 * 32 * 48 * 10 + 2 * 10
        assert narrow['gbyte'] == pytest.approx(4 * floats / 1e9)
    assert narrow['copy_share'] == pytest.approx(narrow['gbyte'] / narrow['seconds'])
    assert narrow['quartile1'] <= narrow['seconds'] <= narrow['quartile3']
    assert narrow['images_per_second'] == pytest.approx(2 / narrow['seconds'])


def test_shares_are_of_the_faster_limits(monkeypatch):
    limits = iter([(1e9, 4e9), (2e9, 3e9)])
    monkeypatch.setattr(measure, 'measure_limits', lambda case: next(limits))
    (row,) = measure_case(BenchmarkCase(('narrow',), 32, 48, 2), 1)
    assert row['matmul_share'] == pytest.approx(row['gflop'] / row['seconds'] / 2)
    assert row['copy_share'] == pytest.approx(row['gbyte'] / row['seconds'] / 4)


def test_models_take_turns_and_another_one_starts_each_turn(monkeypatch):
    order = []
    make_call = measure.make_call

    def recorded(model, run, case):
        call = make_call(model, run, case)
        return lambda: (order.append(model[1].out_features), call())

    monkeypatch.setattr(measure, 'make_call', recorded)
    measure_case(BenchmarkCase(('narrow', 'wide'), 32, 48, 2, repeats=3), 1)
    assert order[-6:] == [10, 2000, 2000, 10, 10, 2000]


def test_flops_of_cpvt_are_those_of_deit_and_five_pegs():
    case = BenchmarkCase(('cpvt_tiny', 'timm_deit_tiny'), 64, 64, 1)
    cpvt, deit = (count_flops(name, case) for name in case.models)
    assert cpvt - deit == pytest.approx(5 * 2 * 9 * 192 * 16, rel=1e-6)


def test_a_compiled_model_has_the_operations_of_the_eager_one(monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, 'compile', lambda model: compiled.append(model) or model)
    eager, other = measure_case(
        BenchmarkCase(('narrow', 'narrow_compiled'), 32, 48, 2, repeats=1), 1
    )
    assert len(compiled) == 1
    assert (eager['gflop'], eager['gbyte']) == (other['gflop'], other['gbyte'])


@pytest.mark.parametrize('suffix', ['', *ROUTES])
def test_names_of_routes(suffix):
    assert base_of(f'semantic_fpn{suffix}') == 'semantic_fpn'


def test_peg_share_is_measured_for_models_with_pegs():
    case = BenchmarkCase(('cpvt_tiny', 'timm_deit_tiny'), 64, 64, 1, repeats=1)
    cpvt, deit = measure_case(case, 1)
    assert 0 < cpvt['peg_share'] < 1
    assert math.isnan(deit['peg_share'])


def test_peg_share_is_that_of_the_costliest_peg(monkeypatch):
    ticks = itertools.count()  # a clock that advances when it is read, and by a layer's cost

    class Layer(nn.Module):
        def __init__(self, cost):
            super().__init__()
            self.cost = cost

        def forward(self, x):
            for _ in range(self.cost):
                next(ticks)
            return x

    monkeypatch.setattr(measure, 'time', SimpleNamespace(perf_counter=lambda: next(ticks)))
    layers = nn.Sequential(Layer(0), Layer(3), Layer(1))
    # From start to stop 1, 4 and 2; two more readings between the layers, one before and one after.
    assert peg_share(list(layers), lambda: layers(torch.ones(1)), repeats=5) == (1 + 3) / (
        1 + 4 + 2 + 4
    )
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers)


def test_the_machine_is_described():
    case = BenchmarkCase(('narrow',), 32, 48, 2)
    assert 'processor ' in measure.describe_machine(case.device)
    assert f'torch {torch.__version__}' in measure.describe_machine(case.device)


@pytest.mark.parametrize(
    ('kept', 'text'), [(True, 'memory kept'), (False, "the allocator's default")]
)
def test_a_row_records_the_day_and_what_becomes_of_freed_memory(monkeypatch, kept, text):
    """Page faults decide ratios at large sizes, so that rows of two settings must be told apart."""
    monkeypatch.setattr(measure, 'keep_memory', lambda: kept)
    (row,) = measure.measure_keeping_memory(BenchmarkCase(('narrow',), 32, 48, 2), 1)
    assert re.search(rf', \d{{4}}-\d\d-\d\d, {text}$', row['machine'])


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (dict(models=('nobody',)), r"models must be one of \[.*got 'nobody'"),
        (dict(models=('pyramid_cpvt_tiny_fused',), mode='train'), 'models must be trainable'),
        (
            dict(models=('pyramid_cpvt_tiny_fused_compiled',), mode='train'),
            'models must be trainable',
        ),
        (dict(models=('narrow',), dtype='fp8'), 'dtype must be one of'),
        (dict(models=('narrow',), repeats=0), 'repeats must be'),
    ],
)
def test_errors_of_a_case(arguments, message):
    with pytest.raises(ValueError, match=message):
        BenchmarkCase(**dict(height=32, width=32, batch=1) | arguments)


def test_operations_are_those_of_the_committed_measurements():
    """Every peer can be built and is the model that was measured."""
    rows = read_rows(Path(__file__).parents[2] / 'docs/benchmarks/cpu.csv')
    cases = [case for case in read_suite('cpu')[0] if case.comparison in ('columns', 'pyramids')]
    models = {name: case for case in cases for name in case.models}
    for name, case in models.items():
        (gflop,) = case.select(rows).query('model == @name')['gflop'].unique()
        assert count_flops(name, case) / 1e9 == pytest.approx(gflop, rel=1e-4), (
            name
        )  # five digits in the CSV

"""The benchmarks run small; their figures are right for models of known cost."""

import math
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from torch import nn

from benchmarks import (
    detector_price,
    exported,
    in_turns,
    measure,
    pipeline,
    report,
    speed,
)
from benchmarks.cases import SUITES, BenchmarkCase, Comparison, read_suite
from benchmarks.measure import count_flops, measure_case
from benchmarks.models import MODELS
from benchmarks.report import COLUMNS

ROOT = Path(__file__).resolve().parents[2]
FLOATS = 3 * 32 * 48  # of an image


def linear(width):
    """A model of one matrix for images of 32 x 48 px."""
    return lambda: nn.Sequential(nn.Flatten(), nn.Linear(FLOATS, width, bias=False))


MODELS |= {'narrow': linear(10), 'wide': linear(2000)}
CASE = BenchmarkCase(('narrow', 'wide'), 32, 48, 2, repeats=3)


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """A machine of 1 GFLOP/s and 1 GB/s, and the allocator of the other tests."""
    monkeypatch.setattr(measure, 'measure_limits', lambda case: (1e9, 1e9))
    for module in (in_turns, measure, pipeline):
        monkeypatch.setattr(module, 'keep_memory', lambda: False)


def rows_of(case, seconds, **figures):
    """A row for each model of a case, as a round leaves them; ``seconds`` by the model."""
    defaults = dict(round=1, peak_mib=10.0, gflop=1.0, matmul_share=0.5, gbyte=1.0)
    defaults |= dict(copy_share=0.25, peg_share=0.25, machine='a processor, 2 cores')
    rows = []
    for model, time in seconds.items():
        times = dict(seconds=time, quartile1=time * 0.9, quartile3=time * 1.1)
        rate = dict(model=model, images_per_second=case.batch / time)
        rows.append(case.setting | defaults | times | rate | figures)
    return pd.DataFrame(rows)[COLUMNS]


def cells(table):
    """Rows of a Markdown table below its header."""
    lines = table.splitlines()[2:]
    return [[cell.strip() for cell in line.strip('|').split('|')] for line in lines]


# -- speed.py
# --------------------------------------------------------------------------------------------------


class Here:
    """In place of the pool of processes: what is submitted runs in this one."""

    def __init__(self, *args, **options):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def submit(self, function, *args):
        result = function(*args)
        return SimpleNamespace(result=lambda: result)


@pytest.mark.full
def test_speed_measures_once_and_its_figures_are_those_of_a_matrix(tmp_path, monkeypatch):
    monkeypatch.setattr(speed, 'ProcessPoolExecutor', Here)
    out = tmp_path / 'bench.csv'
    words = '--models narrow wide --sizes 32x48:2 --modes forward train --repeats 2 --rounds 2'
    speed.main([*words.split(), '--out', str(out)])
    before = out.read_bytes()
    speed.main([*words.split(), '--out', str(out)])
    assert out.read_bytes() == before
    rows = report.read_rows(out)
    assert len(rows) == 8
    for row in rows.to_dict('records'):
        width, train = dict(narrow=10, wide=2000)[row['model']], row['mode'] == 'train'
        flops = 2 * 2 * FLOATS * width * (3 if train else 1)
        assert row['gflop'] == pytest.approx(flops / 1e9, rel=1e-3)
        assert row['matmul_share'] == pytest.approx(row['gflop'] / row['seconds'], rel=1e-3)
        if not train:  # images, weights and output, once each
            floats = 2 * FLOATS + FLOATS * width + 2 * width
            assert row['gbyte'] == pytest.approx(4 * floats / 1e9, rel=1e-3)
        assert row['quartile1'] <= row['seconds'] <= row['quartile3']
        assert row['images_per_second'] == pytest.approx(2 / row['seconds'], rel=1e-3)


def test_models_take_turns_and_another_one_starts_each_turn(monkeypatch):
    order = []
    make_call = measure.make_call

    def recorded(model, run, case):
        call = make_call(model, run, case)
        return lambda: (order.append(model[1].out_features), call())

    monkeypatch.setattr(measure, 'make_call', recorded)
    measure_case(CASE, 1)
    assert order[-6:] == [10, 2000, 2000, 10, 10, 2000]


@pytest.mark.full
def test_operations_are_those_of_the_committed_measurements():
    """Every peer can be built and is the model that was measured."""
    rows = report.read_rows(ROOT / 'docs/benchmarks/cpu.csv')
    cases = [case for case in read_suite('cpu')[0] if case.comparison in ('columns', 'pyramids')]
    models = {name: case for case in cases for name in case.models}
    for name, case in models.items():
        (gflop,) = case.select(rows).query('model == @name')['gflop'].unique()
        # Five digits in the CSV.
        assert count_flops(name, case) / 1e9 == pytest.approx(gflop, rel=1e-4), name


def test_tables_have_the_median_of_the_ratios_of_the_rounds():
    times = [(0.5, 0.25), (9.0, 3.0), (0.5, 0.5)]  # ratios 2, 3 and 1
    shares = (0.5, math.nan, 0.25)
    rounds = []
    for number, (seconds, share) in enumerate(zip(times, shares, strict=True), start=1):
        figures = dict(round=number, peg_share=share)
        rounds.append(rows_of(CASE, dict(zip(CASE.models, seconds, strict=True)), **figures))
    rows = pd.concat(rounds)
    table = report.case_tables(rows)
    assert table.startswith('**models, 32 x 48, batch 2, fp32, forward, cpu**')
    wide = next(line for line in table.splitlines() if line.startswith('| wide'))
    assert wide.split('|')[2].strip() == '500 (450-550)'
    assert [float(cell) for cell in wide.split('|')[3:5]] == [4.0, 2.0]
    assert cells(report.peg_table(rows))[0] == ['narrow', str(CASE), '0.3750']

    compared = [Comparison('32 x 48 px', CASE, {'wide': 'this package', 'narrow': 'another'})]
    assert cells(report.comparison_table(compared, rows)) == [
        ['32 x 48 px', 'another', '2.00 (1.00-3.00)', '500', '500']
    ]


@pytest.mark.parametrize('suite', sorted(path.stem for path in SUITES.glob('*.yaml')))
def test_a_suite_compares_models_that_it_measures(suite):
    cases, compared = read_suite(suite)
    assert len({str(case) for case in cases}) == len(cases)  # rows of one setting took turns
    for comparison in compared:
        assert {*comparison.models} <= {*comparison.case.models}, comparison.what


# -- the other programs
# --------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_pipeline_times_every_route_of_prediction(tmp_path, monkeypatch):
    pytest.importorskip('mmpretrain')
    starts = [
        dict(dtype='', route=route, round=0, ms=1.0, cpu_ms=1.0)
        for route in (pipeline.IMPORT, 'tool, one image')
    ]
    monkeypatch.setattr(pipeline, 'measure_starts', lambda *_: starts)
    out = tmp_path / 'pipeline.csv'
    options = ['--count', '2', '--rounds', '1', '--dtypes', 'float32', '--out', str(out)]
    pipeline.main(['cpvt_tiny_gap-imagenette', *options])
    rows = pd.read_csv(out)
    assert len(rows) == rows['route'].nunique() == 9 and set(rows['images']) == {2}
    routes = rows[rows['dtype'] == 'float32']
    assert routes[routes['route'] == pipeline.BARE]['share'].tolist() == [1]
    assert (routes['beside_ms'] < routes['cpu_ms']).all(), 'the forward call is taken off'
    assert 'tool, pictures' in {*rows['route']}


@pytest.mark.full
def test_an_exported_file_is_timed_in_each_runtime():
    for package in ('mmseg', 'onnxscript', 'onnxruntime', 'openvino'):
        pytest.importorskip(package)
    found = exported.measure('semantic_fpn', 'PyramidCPVT-S', repeats=1, size=(32, 64))
    assert [*found] == ['PyTorch', *exported.RUNTIMES] and min(found.values()) > 0


@pytest.mark.full
@pytest.mark.parametrize('model', ['semantic_fpn', 'upernet'])
def test_segmentors_are_those_of_the_table(model, tmp_path, monkeypatch):
    pytest.importorskip('mmseg')
    monkeypatch.setitem(detector_price.SIZES, model, (64, 64))
    out = tmp_path / 'costs.csv'
    detector_price.main(['--model', model, '--repeats', '1', '--out', str(out)])
    stored = pd.read_csv(ROOT / f'docs/benchmarks/{model}.csv').set_index('backbone')
    found = pd.read_csv(out).set_index('backbone')
    assert found.parameters.to_dict() == stored.parameters.to_dict()
    assert (found[['ms', 'mib']] > 0).all(axis=None)

"""The benchmarks run small; their figures are right for models of known cost."""

import itertools
import math
import shutil
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from benchmarks import attention, fill_marked, measure, pipeline, relative_positions, report, speed
from benchmarks.cases import SUITES, BenchmarkCase, Ratio, read_suite
from benchmarks.measure import count_flops, measure_case, peg_share
from benchmarks.models import MODELS
from benchmarks.report import COLUMNS

ROOT = Path(__file__).resolve().parents[2]
CASE = BenchmarkCase(('cpvt_tiny', 'timm_deit_tiny'), 32, 48, 2)
TALL = replace(CASE, height=64)


def linear(width):
    """A model of one matrix for images of 32 x 48 px."""
    return lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 48, width, bias=False))


MODELS |= {'narrow': linear(10), 'wide': linear(2000)}


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    """A machine of 1 GFLOP/s and 1 GB/s."""
    monkeypatch.setattr(measure, 'measure_limits', lambda case: (1e9, 1e9))


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


# -- figures
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('mode', ['forward', 'train'])
def test_operations_bytes_and_shares_are_those_of_a_matrix(mode):
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
    assert narrow['quartile1'] <= narrow['seconds'] <= narrow['quartile3']
    assert narrow['images_per_second'] == pytest.approx(2 / narrow['seconds'])


def test_models_take_turns_and_another_one_starts_each_turn(monkeypatch):
    order = []
    make_call = measure.make_call

    def recorded(model, run, case):
        call = make_call(model, run, case)
        return lambda: (order.append(model[1].out_features), call())

    monkeypatch.setattr(measure, 'make_call', recorded)
    measure_case(BenchmarkCase(('narrow', 'wide'), 32, 48, 2, repeats=3), 1)
    assert order[-6:] == [10, 2000, 2000, 10, 10, 2000]


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
    share = peg_share(list(layers), lambda: layers(None), repeats=5)
    assert share == (1 + 3) / (1 + 4 + 2 + 4)
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers)


def test_operations_are_those_of_the_committed_measurements():
    """Every peer can be built and is the model that was measured."""
    rows = report.read_rows(ROOT / 'docs/benchmarks/cpu.csv')
    cases = [case for case in read_suite('cpu')[0] if case.comparison in ('columns', 'pyramids')]
    models = {name: case for case in cases for name in case.models}
    for name, case in models.items():
        (gflop,) = case.select(rows).query('model == @name')['gflop'].unique()
        # Five digits in the CSV.
        assert count_flops(name, case) / 1e9 == pytest.approx(gflop, rel=1e-4), name


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (dict(models=('nobody',)), r"models must be one of \[.*got 'nobody'"),
        (dict(models=('pyramid_cpvt_tiny_fused',), mode='train'), 'models must be trainable'),
        (dict(models=('narrow',), dtype='fp8'), 'dtype must be one of'),
        (dict(models=('narrow',), repeats=0), 'repeats must be'),
    ],
)
def test_errors_of_a_case(arguments, message):
    with pytest.raises(ValueError, match=message):
        BenchmarkCase(**dict(height=32, width=32, batch=1) | arguments)


# -- rows and tables
# --------------------------------------------------------------------------------------------------


def test_rows_survive_the_file_and_only_missing_rounds_are_measured(tmp_path):
    out = tmp_path / 'out/rows.csv'
    assert report.read_rows(out).empty
    todo = [(1, CASE), (1, TALL), (2, CASE), (2, TALL)]
    assert report.missing([CASE, TALL], out, rounds=2) == todo
    first = rows_of(CASE, dict.fromkeys(CASE.models, 1.0))
    second = rows_of(TALL, dict.fromkeys(TALL.models, 1.0), round=2, peg_share=math.nan)
    report.append_rows(out, first)
    report.append_rows(out, second)
    expected = pd.concat([first, second], ignore_index=True)
    pd.testing.assert_frame_equal(report.read_rows(out), expected)
    assert report.missing([CASE, TALL], out, rounds=2) == [(1, TALL), (2, CASE)]

    report.append_rows(out, rows_of(CASE, dict(narrow=1.0)))
    with pytest.raises(ValueError, match='in round 1 of "models, 32 x 48.*use another file'):
        report.missing([CASE], out, rounds=1)
    out.write_text('model,seconds\na,0.5\n')
    with pytest.raises(ValueError, match=r"columns must be .* got \['model', 'seconds'\]"):
        report.read_rows(out)


def test_tables_have_the_median_of_the_ratios_of_the_rounds():
    case = replace(CASE, models=('narrow', 'wide'))
    times = [(0.5, 0.25), (9.0, 3.0), (0.5, 0.5)]  # ratios 2, 3 and 1
    shares = (0.5, math.nan, 0.25)
    rounds = []
    for number, (seconds, share) in enumerate(zip(times, shares, strict=True), start=1):
        figures = dict(round=number, peg_share=share)
        rounds.append(rows_of(case, dict(zip(case.models, seconds, strict=True)), **figures))
    rows = pd.concat(rounds)
    table = report.case_tables(rows)
    assert table.startswith('**models, 32 x 48, batch 2, fp32, forward, cpu**')
    wide = next(line for line in table.splitlines() if line.startswith('| wide'))
    assert wide.split('|')[2].strip() == '500 (450-550)'
    assert [float(cell) for cell in wide.split('|')[3:5]] == [4.0, 2.0]
    assert cells(report.peg_table(rows))[0] == ['narrow', str(case), '0.3750']

    ratios = [
        Ratio('speed', case, 'wide', 1.0, 'narrow'),
        Ratio('too slow', case, 'wide', 2.5, 'narrow'),
        Ratio('memory', case, 'narrow', 2.0, 'wide', 'peak_mib'),
        Ratio('not run', case, 'cpvt_tiny', 1.0, 'narrow'),
    ]
    assert cells(report.ratio_table(ratios, rows)) == [
        ['speed', '2.00 (1.00-3.00)', '>= 1', 'reached'],
        ['too slow', '2.00 (1.00-3.00)', '>= 2.5', 'missed'],
        ['memory', '1.00', '<= 2', 'reached'],
        ['not run', '', '>= 1', ''],
    ]
    assert report.speed_ratios(ratios, rows) == ratios[:2]
    assert cells(report.milliseconds_table(ratios[:1], rows)) == [['speed', '2', '500', '500']]
    two = pd.concat([rows_of(case, dict(narrow=0.5)), rows_of(TALL, dict(narrow=2.0))])
    between = Ratio('size', TALL, 'narrow', 0.3, 'narrow', peer_case=case)
    assert list(between.values(two)) == [0.25]


@pytest.mark.parametrize(
    ('model', 'peer', 'toolbox'),
    [
        ('retinanet_pyramid_cpvt_small', 'retinanet_mmdet_pvt_small', 'mmdet'),
        ('semantic_fpn_pyramid_cpvt_small', 'semantic_fpn_mmseg_pcpvt_small', 'mmseg'),
    ],
)
def test_a_step_of_training_trains_every_parameter(model, peer, toolbox):
    pytest.importorskip(toolbox)
    case = BenchmarkCase((model,), 64, 96, 2, mode='train')
    trained = MODELS[model]().train()
    losses = tree_leaves(trained(torch.randn(2, 3, 64, 96)))
    sum(loss.mean() for loss in losses).backward()
    without = [name for name, value in trained.named_parameters() if value.grad is None]
    assert not without and all(bool(loss.isfinite().all()) for loss in losses)
    assert count_flops(model, case) == pytest.approx(count_flops(peer, case), rel=0.01)


@pytest.mark.parametrize('suite', sorted(path.stem for path in SUITES.glob('*.yaml')))
def test_ratios_of_a_suite_are_of_models_that_it_measures(suite):
    cases, ratios = read_suite(suite)
    assert len({str(case) for case in cases}) == len(cases)  # rows of one setting took turns
    for ratio in ratios:
        assert ratio.model in ratio.case.models, ratio.what
        peers = (ratio.peer_case or ratio.case).models
        assert ratio.peer is None or ratio.peer in peers, ratio.what


# -- the programs
# --------------------------------------------------------------------------------------------------


def test_speed_measures_once_and_writes_tables(tmp_path):
    """In a process of its own for each case, as it is used."""
    out = tmp_path / 'bench.csv'
    words = ['--models', 'cpvt_tiny', 'cpvt_tiny_gap', '--sizes', '32:1', '--repeats', '2']
    speed.main([*words, '--out', str(out)])
    before = out.read_bytes()
    speed.main([*words, '--out', str(out)])
    assert out.read_bytes() == before
    assert list(pd.read_csv(out)['model']) == ['cpvt_tiny', 'cpvt_tiny_gap']
    assert '| cpvt_tiny_gap |' in out.with_suffix('.md').read_text()


@pytest.mark.parametrize('suite', ['cpu', 'train'])
def test_pages_show_the_committed_measurements(suite, tmp_path, monkeypatch):
    def measure_nothing(todo, out):
        assert not todo, f'{out} lacks {todo}'

    monkeypatch.setattr(speed, 'measure', measure_nothing)
    page, out = tmp_path / 'speed.md', tmp_path / f'benchmarks/{suite}.csv'
    out.parent.mkdir()
    shutil.copy(ROOT / f'docs/benchmarks/{suite}.csv', out)
    committed = (ROOT / 'docs/speed.md').read_text()
    page.write_text(committed)
    (part,) = speed.marked_parts(page, suite)
    fill_marked(page, part, 'To be measured.')
    assert page.read_text() != committed
    speed.main(f'--suite {suite} --rounds 3 --out {out} --docs {page}'.split())
    assert page.read_text() == committed
    tables = (ROOT / f'docs/benchmarks/{suite}.md').read_text()
    assert out.with_suffix('.md').read_text() == tables
    if part == speed.PLOTTED:
        assert out.with_suffix('.png').stat().st_size > 5000


def test_pipeline_times_every_route_of_prediction(tmp_path, monkeypatch):
    pytest.importorskip('mmpretrain')
    starts = [
        dict(dtype='', route=route, round=0, ms=1.0, cpu_ms=1.0)
        for route in (pipeline.IMPORT, 'tool, one image')
    ]
    monkeypatch.setattr(pipeline, 'keep_memory', lambda: None)
    monkeypatch.setattr(pipeline, 'measure_starts', lambda *_: starts)
    out = tmp_path / 'pipeline.csv'
    options = ['--count', '2', '--rounds', '1', '--dtypes', 'float32', '--out', str(out)]
    pipeline.main(['cpvt_tiny_gap-imagenette', *options])
    rows = pd.read_csv(out)
    assert len(rows) == rows['route'].nunique() == 8 and set(rows['images']) == {2}
    routes = rows[rows['dtype'] == 'float32']
    assert routes[routes['route'] == pipeline.BARE]['share'].tolist() == [1]
    assert (routes['beside_ms'] < routes['cpu_ms']).all(), 'the forward call is taken off'
    assert 'tool, pictures' in out.with_suffix('.md').read_text()


def test_attention_is_timed_for_every_size_of_block(tmp_path):
    args = Namespace(out=tmp_path / 'attention.csv', repeats=1, threads=1)
    attention.measure(args, shapes=[(1, 2, 40, 40), (2, 1, 300, 20)])
    rows = pd.read_csv(args.out)
    assert rows['queries'].tolist() == [40, 300] and (rows['fused_ms'] > 0).all()
    assert rows['rows_64'].notna().all() and rows['rows_512'].notna().tolist() == [False, True]


def test_relative_positions_are_timed_in_every_way(tmp_path):
    args = Namespace(out=tmp_path / 'relative.csv', repeats=1, threads=1)
    relative_positions.measure(args, cases=[(2, 5)])
    rows = pd.read_csv(args.out).set_index(['training', 'way'])
    assert [len(rows.loc[training]) for training in (False, True)] == [4, 3]
    assert (rows['ms'] > 0).all() and (rows['mib'] > 0).all()

"""The benchmark's own arithmetic: rows, files, ratios, and what it counts."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from cpvt_backbones.analysis import benchmark, suites
from cpvt_backbones.analysis.benchmark import count_flops, peg_share, run_group, with_shares
from cpvt_backbones.analysis.benchmark_plot import draw_speed
from cpvt_backbones.analysis.benchmark_rows import (
    Group,
    Row,
    append_rows,
    markdown_table,
    over_rounds,
    peg_table,
    read_rows,
)
from cpvt_backbones.analysis.contestants import CONTESTANTS

GROUP = Group(height=32, width=48, batch=2)


@pytest.fixture
def contestants(monkeypatch):
    """Two models whose cost is known."""
    models = {
        'narrow': lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 48, 10, bias=False)),
        'wide': lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 48, 2000, bias=False)),
    }
    for name, build in models.items():
        monkeypatch.setitem(CONTESTANTS, name, build)


def row(model, seconds, *, group=GROUP, peak=10.0, number=1, peg_share=0.25):
    numbers = dict(seconds=seconds, quartile1=seconds * 0.9, quartile3=seconds * 1.1, images_per_second=2 / seconds)
    shares = dict(peak_mib=peak, gflop=1.0, matmul_share=0.5, gbyte=1.0, copy_share=0.25, peg_share=peg_share)
    setting = {f: getattr(group, f) for f in group.__dataclass_fields__}
    return Row(model=model, **setting, round=number, **numbers, **shares, machine='a processor, 2 cores')


@pytest.mark.parametrize('mode', ['forward', 'train'])
def test_operations_bytes_and_shares(contestants, mode):
    group = Group(height=32, width=48, batch=2, mode=mode)
    rows = run_group(['narrow', 'wide'], group, repeats=3)
    narrow, wide = (with_shares(row, matmul_rate=1e9, bandwidth=1e9) for row in rows)
    flops = 2 * 2 * 3 * 32 * 48 * 10 * (3 if mode == 'train' else 1)
    assert narrow.gflop == pytest.approx(flops / 1e9)
    assert wide.gflop == pytest.approx(200 * narrow.gflop)
    assert narrow.matmul_share == pytest.approx(flops / narrow.seconds / 1e9)
    if mode == 'forward':  # images, weights, output; once each
        floats = 2 * 3 * 32 * 48 + 3 * 32 * 48 * 10 + 2 * 10
        assert narrow.gbyte == pytest.approx(4 * floats / 1e9)
    assert narrow.copy_share == pytest.approx(narrow.gbyte * 1e9 / narrow.seconds / 1e9)
    assert narrow.quartile1 <= narrow.seconds <= narrow.quartile3
    assert narrow.images_per_second == pytest.approx(2 / narrow.seconds)


def test_models_take_turns(contestants, monkeypatch):
    order = []
    make = benchmark._make_call

    def noted(model, group, *, compiled):
        call = make(model, group, compiled=compiled)
        return lambda: (order.append(model[1].out_features), call())

    monkeypatch.setattr(benchmark, '_make_call', noted)
    run_group(['narrow', 'wide'], GROUP, repeats=3)
    assert order[-6:] == [10, 2000, 2000, 10, 10, 2000]


def test_flops_agree_between_ours_and_the_peer():
    """A column and DeiT differ by five PEGs and the table."""
    group = Group(height=64, width=64, batch=1)
    ours, peer = count_flops('cpvt_tiny', group), count_flops('timm_deit_tiny', group)
    pegs = 5 * 2 * 9 * 192 * 16
    assert ours - peer == pytest.approx(pegs, rel=1e-6)


@pytest.mark.parametrize(
    ('names', 'group', 'message'),
    [
        (['nobody'], GROUP, 'nobody'),
        (['pyramid_cpvt_tiny_fused'], Group(height=32, width=32, batch=1, mode='train'), 'trainable'),
        (['pyramid_cpvt_tiny_fused_compiled'], Group(height=32, width=32, batch=1, mode='train'), 'trainable'),
    ],
)
def test_errors(names, group, message):
    with pytest.raises(ValueError, match=message):
        run_group(names, group, repeats=1)


def test_rows_survive_the_file(tmp_path):
    path = tmp_path / 'out' / 'rows.csv'
    rows = [row('a', 0.5), row('b', 0.25, group=Group(height=7, width=9, batch=1, comparison='others'), number=2)]
    append_rows(path, rows[:1])
    append_rows(path, rows[1:])
    assert read_rows(path) == rows
    assert read_rows(tmp_path / 'none.csv') == []
    path.write_text('model,seconds\na,0.5\n')
    with pytest.raises(ValueError, match=r"rows.csv: the columns must be .* got \['model', 'seconds'\]"):
        read_rows(path)


def test_tables_and_plot(tmp_path):
    rows = [row('a', 0.5), row('b', 0.25)]
    table = markdown_table(rows)
    assert '| b | 250 (225-275) | 8.00 | 2.00 |' in table
    rounds = [*rows, row('a', 9.0, number=2), row('b', 3.0, number=2), row('a', 0.5, number=3), row('b', 0.5, number=3)]
    assert '| b | 500 (450-550) | 4.00 | 2.00 |' in markdown_table(rounds)  # of the ratios 2, 3 and 1
    others = [row('a', 0.5, group=Group(height=32, width=48, batch=2, comparison='others'))]
    assert [line for line in markdown_table([*rows, *others]).splitlines() if line.startswith('**')] == [
        '**models, 32 x 48, batch 2, fp32, forward, cpu**',
        '**others, 32 x 48, batch 2, fp32, forward, cpu**',
    ]
    draw_speed(rows, tmp_path / 'plot.png')
    assert (tmp_path / 'plot.png').stat().st_size > 5000


def test_ratios():
    rows = [row('a', 0.5, peak=30.0), row('b', 0.25, peak=10.0)]
    speed = suites.Ratio('b', 'speed', 'b', GROUP, 'a', 1.9)
    memory = suites.Ratio('a', 'memory', 'a', GROUP, 'b', 2.0)
    missing = suites.Ratio('c', 'speed', 'c', GROUP, 'a', 1.0)
    assert speed.value(rows) == pytest.approx(2) and speed.reached(2.0)
    assert memory.value(rows) == pytest.approx(3) and not memory.reached(3.0)
    assert missing.value(rows) is None
    lines = suites.ratio_table([speed, memory, missing], rows).splitlines()
    assert lines[2:] == ['| b | 2.00 | >= 1.9 | reached |', '| a | 3.00 | <= 2 | missed |', '| c |  | >= 1 |  |']


def test_ratios_over_rounds():
    """The median of the rounds' ratios, which is not the ratio of the medians."""
    rows = [row('a', a, number=n) for n, a in enumerate((1.0, 2.0, 9.0), start=1)]
    rows += [row('b', b, number=n) for n, b in enumerate((2.0, 2.0, 3.0), start=1)]
    speed = suites.Ratio('b', 'speed', 'b', GROUP, 'a', 1.0)
    assert suites.ratio_table([speed], rows).splitlines()[2] == '| b | 1.00 (0.50-3.00) | >= 1 | reached |'
    assert [(r.model, r.seconds, r.peak_mib) for r in over_rounds(rows)] == [('a', 2.0, 10.0), ('b', 2.0, 10.0)]


@pytest.mark.parametrize('suite', suites.RATIOS)
def test_every_ratio_is_read_off_a_meeting(suite):
    groups = [meeting.group for meeting in suites.MEETINGS[suite]]
    assert len(set(groups)) == len(groups)  # rows of one group took turns
    measured = {(model, meeting.group) for meeting in suites.MEETINGS[suite] for model in meeting.models}
    assert all(model.removesuffix(benchmark.COMPILED) in CONTESTANTS for model, _ in measured)
    for ratio in suites.RATIOS[suite]:
        assert (ratio.model, ratio.group) in measured, ratio.what
        assert (ratio.peer, ratio.peer_group or ratio.group) in measured, ratio.what


def test_a_model_meets_its_compiled_self(contestants, monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, 'compile', lambda model: compiled.append(model) or model)
    eager, other = run_group(['narrow', 'narrow_compiled'], GROUP, repeats=1)
    assert len(compiled) == 1 and (eager.gflop, eager.gbyte) == (other.gflop, other.gbyte)


def test_digits_enough_to_see_the_verdict():
    ratio = suites.Ratio('b', 'speed', 'b', GROUP, 'a', 1.0)
    assert [ratio.text(value) for value in (0.9982, 1.0001, 0.912, 0.99996)] == ['0.998', '1.00', '0.91', '0.99996']


def test_the_share_of_a_peg(monkeypatch):
    group = Group(height=64, width=64, batch=1)
    ours, peer = run_group(['cpvt_tiny', 'timm_deit_tiny'], group, repeats=1)
    assert 0 < ours.peg_share < 1 and math.isnan(peer.peg_share)

    ticks = itertools.count()  # a clock that ticks when it is read, and as often as a layer wants

    class Layer(nn.Module):
        def __init__(self, cost):
            super().__init__()
            self.cost = cost

        def forward(self, x):
            for _ in range(self.cost):
                next(ticks)
            return x

    monkeypatch.setattr(benchmark, 'time', SimpleNamespace(perf_counter=lambda: next(ticks)))
    layers = nn.Sequential(Layer(0), Layer(3), Layer(1))
    # From start to stop 1, 4 and 2; two readings more between them, one before and one after.
    share = peg_share(list(layers), lambda: layers(torch.ones(1)), repeats=5)
    assert share == (1 + 3) / (1 + 4 + 2 + 4)
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers)

    rounds = [row('a', 1.0, number=n, peg_share=share) for n, share in enumerate((0.5, math.nan, 0.25), start=1)]
    table = peg_table([*rounds, row('b', 1.0, peg_share=math.nan)])
    assert table.splitlines()[2:] == [f'| a | {GROUP} | 0.3750 |']

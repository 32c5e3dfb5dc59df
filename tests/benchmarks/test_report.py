"""The CSV, the tables, the ratios and the plot of the benchmark."""

import math
from dataclasses import replace

import pandas as pd
import pytest

from benchmarks import report
from benchmarks.cases import SUITES, BenchmarkCase, Ratio, read_suite

CASE = BenchmarkCase(('a', 'b'), 32, 48, 2)
TALL = replace(CASE, height=64)
OTHERS = replace(CASE, comparison='others')


def test_rows_survive_the_file(tmp_path, rows):
    path = tmp_path / 'out' / 'rows.csv'
    first, second = (
        rows(CASE, dict(a=0.5, b=0.25)),
        rows(OTHERS, dict(a=1.0), round=2, peg_share=math.nan),
    )
    report.append_rows(path, first)
    report.append_rows(path, second)
    pd.testing.assert_frame_equal(
        report.read_rows(path), pd.concat([first, second], ignore_index=True)
    )
    assert report.read_rows(tmp_path / 'none.csv').empty
    (tmp_path / 'empty.csv').touch()  # a run that was killed at once
    assert report.read_rows(tmp_path / 'empty.csv').empty
    path.write_text('model,seconds\na,0.5\n')
    with pytest.raises(
        ValueError, match=r"rows.csv: the columns must be .* got \['model', 'seconds'\]"
    ):
        report.read_rows(path)


def test_only_missing_rounds_are_measured(tmp_path, rows):
    out = tmp_path / 'rows.csv'
    assert report.missing([CASE, TALL], out, rounds=2) == [
        (1, CASE),
        (1, TALL),
        (2, CASE),
        (2, TALL),
    ]
    report.append_rows(out, rows(CASE, dict(a=1.0, b=1.0)))
    report.append_rows(out, rows(TALL, dict(b=1.0, a=1.0), round=2))
    assert report.missing([CASE, TALL], out, rounds=2) == [(1, TALL), (2, CASE)]
    assert report.missing([CASE], out, rounds=1) == []


@pytest.mark.parametrize('models', ['a', 'abc'])
def test_other_models_of_the_same_case_are_refused(tmp_path, rows, models):
    out = tmp_path / 'rows.csv'
    report.append_rows(out, rows(CASE, dict.fromkeys(models, 1.0)))
    with pytest.raises(
        ValueError, match=r'rows.csv holds .* in round 1 of "models, 32 x 48.*use another file'
    ):
        report.missing([CASE], out, rounds=1)


def cells(table):
    """Rows of a Markdown table below its header."""
    return [
        [cell.strip() for cell in line.strip('|').split('|')] for line in table.splitlines()[2:]
    ]


def test_case_tables(rows):
    table = report.case_tables(rows(CASE, dict(a=0.5, b=0.25))).splitlines()
    assert table[0] == '**models, 32 x 48, batch 2, fp32, forward, cpu**'
    assert cells('\n'.join(table[2:]))[1] == [
        'b',
        '250 (225-275)',
        '8.00',
        '2.00',
        '10',
        '1.0',
        '0.50',
        '1.00',
        '0.25',
    ]


def test_case_tables_give_the_median_of_the_ratios_of_the_rounds(rows):
    times = [dict(a=0.5, b=0.25), dict(a=9.0, b=3.0), dict(a=0.5, b=0.5)]  # ratios 2, 3 and 1
    rounds = pd.concat(
        [rows(CASE, seconds, round=number) for number, seconds in enumerate(times, start=1)]
    )
    assert '500 (450-550) |       4.00 |              2.00' in report.case_tables(rounds)


def test_case_tables_keep_comparisons_apart(rows):
    tables = report.case_tables(
        pd.concat([rows(CASE, dict(a=0.5, b=0.25)), rows(OTHERS, dict(a=0.5))])
    )
    assert [line for line in tables.splitlines() if line.startswith('**')] == [
        f'**{CASE}**',
        f'**{OTHERS}**',
    ]


def test_windowed_models_tell_how_many_blocks_are_global():
    names = [
        'multi_scale_cpvt_small_windowed',
        'multi_scale_cpvt_tiny_all_windowed',
        'multi_scale_cpvt_small',
        'b',
    ]
    assert [report.label(name)[len(name) :] for name in names] == [
        ' (4 of 12 global)',
        ' (0 of 12 global)',
        '',
        '',
    ]


def test_plot(tmp_path, rows):
    report.draw_speed(rows(CASE, dict(a=0.5, b=0.25)), tmp_path / 'one.png')
    both = pd.concat([rows(CASE, dict(a=0.5, b=0.25)), rows(OTHERS, dict(a=0.5))])
    report.draw_speed(both, tmp_path / 'two.png')
    assert all((tmp_path / name).stat().st_size > 5000 for name in ('one.png', 'two.png'))


def test_peg_table_gives_the_median_of_the_measured_rounds(rows):
    rounds = [
        rows(CASE, dict(a=1.0), round=n, peg_share=share)
        for n, share in enumerate((0.5, math.nan, 0.25))
    ]
    table = report.peg_table(pd.concat([*rounds, rows(CASE, dict(b=1.0), peg_share=math.nan)]))
    assert cells(table) == [['a', str(CASE), '0.3750']]


def test_ratios(rows):
    measured = pd.concat(
        [rows(CASE, dict(a=0.5), peak_mib=30.0), rows(CASE, dict(b=0.25), peak_mib=10.0)]
    )
    speed = Ratio('b', CASE, 'b', 1.9, 'a')
    memory = Ratio('a', CASE, 'a', 2.0, 'b', 'peak_mib')
    share = Ratio('share', CASE, 'a', 0.4, None, 'matmul_share')
    absent = Ratio('c', CASE, 'c', 1.0, 'a')
    assert [list(ratio.values(measured)) for ratio in (speed, memory, share, absent)] == [
        [2],
        [3],
        [0.5],
        [],
    ]
    assert cells(report.ratio_table([speed, memory, share, absent], measured)) == [
        ['b', '2.00', '>= 1.9', 'reached'],
        ['a', '3.00', '<= 2', 'missed'],
        ['share', '0.50', '>= 0.4', 'reached'],
        ['c', '', '>= 1', ''],
    ]
    assert cells(report.ratio_table([speed], measured, bounds=False)) == [['b', '2.00']]


def test_ratio_between_two_cases(rows):
    measured = pd.concat([rows(CASE, dict(a=0.5, b=0.1)), rows(TALL, dict(a=2.0, b=0.1))])
    assert list(Ratio('a', TALL, 'a', 0.3, 'a', peer_case=CASE).values(measured)) == [0.25]


def test_ratio_of_rounds_is_the_median_of_the_ratios(rows):
    times = [(1.0, 2.0), (2.0, 2.0), (9.0, 3.0)]
    measured = pd.concat(
        [rows(CASE, dict(a=a, b=b), round=n) for n, (a, b) in enumerate(times, start=1)]
    )
    assert cells(report.ratio_table([Ratio('b', CASE, 'b', 1.0, 'a')], measured)) == [
        ['b', '1.00 (0.50-3.00)', '>= 1', 'reached']
    ]


def test_digits_are_enough_to_see_the_verdict():
    ratio = Ratio('b', CASE, 'b', 1.0, 'a')
    texts = [report.digits_for_verdict(ratio, value) for value in (0.9982, 1.0001, 0.912, 0.99996)]
    assert texts == ['0.998', '1.00', '0.91', '0.99996']


@pytest.mark.parametrize('suite', [path.stem for path in SUITES.glob('*.yaml')])
def test_every_ratio_of_a_suite_is_measured(suite):
    cases, ratios = read_suite(suite)
    assert len({str(case) for case in cases}) == len(cases)  # rows of one setting took turns
    for ratio in ratios:
        assert ratio.model in ratio.case.models, ratio.what
        assert ratio.peer is None or ratio.peer in (ratio.peer_case or ratio.case).models, (
            ratio.what
        )

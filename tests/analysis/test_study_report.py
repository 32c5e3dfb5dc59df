"""The report says what the CSV says, and a verdict follows from the interval alone."""

import math
from csv import DictReader
from dataclasses import replace
from pathlib import Path
from statistics import mean, variance

import pytest

from cpvt_backbones.analysis.study_report import (
    LABELS,
    REFUTED,
    SUPPORTED,
    UNDECIDED,
    UNTESTED,
    Comparison,
    accuracy,
    change,
    chosen,
    claims,
    difference,
    draw_sizes,
    draw_variants,
    rates_table,
    report,
)
from cpvt_backbones.analysis.study_rows import Row, read_rows

scipy_stats = pytest.importorskip('scipy.stats')


def rows_of(**scores):
    """One row a seed, of each variant's accuracies at 112 px, and twice as much lost at 224 px."""
    return [
        Row(name.replace('_', '-'), seed, 1.0, 8, size, top1 - loss, None if size > 112 else 0.1 * (seed + 1))
        for name, values in scores.items()
        for seed, top1 in enumerate(values)
        for size, loss in ((112, 0), (224, 2 * seed))
    ]


def test_interval_is_welchs():
    left, right = [50.0, 52.0, 51.5], [48.0, 47.0, 49.5]
    found = difference(left, right)
    # Written out from the formula.
    a, b = variance(left) / 3, variance(right) / 3
    freedom = (a + b) ** 2 / (a**2 / 2 + b**2 / 2)
    half = scipy_stats.t.ppf(0.975, freedom) * math.sqrt(a + b)
    assert found.mean == pytest.approx(mean(left) - mean(right))
    assert (found.low, found.high) == pytest.approx((found.mean - half, found.mean + half))


@pytest.mark.parametrize(
    ('left', 'right', 'verdict'),
    [
        ([60, 61, 62], [50, 51, 52], SUPPORTED),
        ([50, 51, 52], [60, 61, 62], REFUTED),
        ([50, 55, 60], [49, 56, 58], UNDECIDED),
        ([90], [10], UNTESTED),  # one seed decides nothing
        ([], [10, 11], UNTESTED),
    ],
)
def test_a_verdict_needs_the_whole_interval_on_one_side(left, right, verdict):
    rows = rows_of(peg_0=left, none=right)
    comparison = Comparison('peg-0', 'none', accuracy(112), 'top-1')
    opposite = Comparison('peg-0', 'none', accuracy(112), 'top-1', greater=False)
    assert comparison.verdict(rows) == verdict
    assert opposite.verdict(rows) == {SUPPORTED: REFUTED, REFUTED: SUPPORTED}.get(verdict, verdict)


def test_a_change_is_taken_seed_by_seed():
    assert change(224, 112)(rows_of(none=[50, 60, 70]), 'none') == [0, -2, -4]


def test_a_claim_falls_with_its_weakest_part():
    worst = next(claim for claim in claims(112) if claim.letter == 'a')
    good, bad = [60, 61, 62], [40, 41, 42]
    all_better = rows_of(none=bad, sincos=good, learned=good, peg_0=good, peg_0_5=good)
    assert worst.verdict(all_better) == SUPPORTED
    assert worst.verdict(rows_of(none=good, sincos=good, learned=good, peg_0=good, peg_0_5=bad)) == REFUTED
    assert worst.verdict(rows_of(none=bad, sincos=good, learned=good, peg_0=good)) == UNTESTED
    close = [bad[0] + 0.5, bad[1] - 0.5, bad[2] + 0.1]
    assert worst.verdict(rows_of(none=bad, sincos=close, learned=good, peg_0=good, peg_0_5=good)) == UNDECIDED


def test_larger_sizes_are_the_papers():
    """384 and 448 px after 224 are 192 and 224 px after 112."""
    told = [str(part) for claim in claims(112) if claim.letter[0] == 'c' for part in claim.comparisons]
    assert all('112 to 192 px' in text for text in told[:6]) and all('112 to 224 px' in text for text in told[6:])


def test_every_claim_speaks_of_known_variants():
    letters = [claim.letter for claim in claims(112)]
    assert letters == ['a', 'b', 'c', "c'", *'defghij']
    named = {c.left for claim in claims(112) for c in claim.comparisons}
    named |= {c.right for claim in claims(112) for c in claim.comparisons if c.right}
    assert named <= set(LABELS)


def test_of_several_rates_the_best_on_the_first_seed_counts():
    rows = [
        Row('learned', seed, rate, 8, 112, top1)
        for seed, rate, top1 in ((0, 1.0, 50.0), (0, 2.0, 55.0), (1, 2.0, 40.0), (0, 0.5, 54.0))
    ]
    assert {(row.seed, row.rate_factor) for row in chosen(rows, 112)} == {(0, 2.0), (1, 2.0)}
    tied = [replace(row, top1=50.0) for row in rows]
    assert chosen(tied, 112) == chosen(tied[::-1], 112) == [tied[3]]  # whatever the order of the rows
    shown = rates_table(rows, 112).splitlines()[2:]
    assert shown == ['| learned table | 0.5 | 54.0 |', '| learned table | 1 | 50.0 |', '| learned table | 2 | 55.0 |']


def test_the_report_carries_the_numbers(tmp_path):
    rows = rows_of(none=[41, 42, 43], learned=[45, 46, 47], peg_0=[50, 51, 52])
    text = report(rows, 112)
    assert '| no encoding | 3 | 42.0 ± 1.0 | 40.0 ± 1.0 | 0.200 ± 0.100 |' in text
    assert 'PEG at 0 minus learned table, top-1 at 112 px, > -1 | +5.00 (' in text
    line = next(line for line in text.splitlines() if line.startswith('| | PEG at 0 minus no encoding'))
    assert line.endswith(' | +4.2 | supported |')  # the paper's difference beside
    assert 'sin-cos |' not in text.split('claim')[0]  # not run, no row
    for draw in (draw_sizes, draw_variants):
        path = tmp_path / f'{draw.__name__}.png'
        draw(rows, path, 112)
        assert path.stat().st_size > 5000


def test_the_page_says_what_its_csv_says():
    docs = Path(__file__).resolve().parents[2] / 'docs'
    csv = docs / 'evidence' / 'positional_encoding.csv'
    rows = read_rows(csv)
    page = (docs / 'evidence.md').read_text()
    _, _, rest = page.partition('<!-- positional-encoding: begin -->\n')
    written, _, _ = rest.partition('\n<!-- positional-encoding: end -->')
    assert written == report(rows, min(row.size for row in rows), pictures='evidence')
    with (docs / 'evidence' / 'runs.csv').open() as file:
        runs = {(line['variant'], line['seed'], line['rate_factor']) for line in DictReader(file)}
    assert runs == {(row.variant, str(row.seed), str(row.rate_factor)) for row in rows}  # no row without its run

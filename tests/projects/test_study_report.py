"""Report: it has the numbers of the CSV files, and a verdict follows from the corrected p-value."""

import math
import shutil
from pathlib import Path
from statistics import mean, variance

import pandas as pd
import pytest
from positional_encoding.claims import (
    REFUTED,
    SHIFT,
    SUPPORTED,
    TOP1,
    UNDECIDED,
    UNTESTED,
    Claim,
    Comparison,
    Difference,
    accuracy,
    best_rates,
    change,
    claims,
    count_tested,
    holm,
    judge,
)
from positional_encoding.report import (
    classify_report,
    draw_classify,
    draw_transfer,
    marked,
    rates_table,
    transfer_report,
    write_report,
)
from positional_encoding.runs import write_json
from positional_encoding.variants import VARIANTS

scipy_stats = pytest.importorskip('scipy.stats')
DOCS = Path(__file__).resolve().parents[2] / 'docs'


def results_of(**scores):
    """One row for each seed, of each variant's accuracies at 112 px, and twice as much lost at 224
    px.
    """
    rows = [
        (
            name.replace('_', '-'),
            seed,
            1.0,
            8,
            size,
            top1 - loss,
            None if size > 112 else 0.1 * (seed + 1),
        )
        for name, values in scores.items()
        for seed, top1 in enumerate(values)
        for size, loss in ((112, 0), (224, 2 * seed))
    ]
    return pd.DataFrame(
        rows, columns=['variant', 'seed', 'rate_factor', 'epochs', 'size', 'top1', 'shift_error']
    )


def dense_results(encodings, starts, seeds):
    """mIoU of 20 plus the seed at two sizes; one point more for PEG."""
    rows = [
        ('camvid', encoding, start, seed, size, 'mIoU', 20.0 + seed + (encoding == 'peg'))
        for encoding in encodings
        for start in starts
        for seed in seeds
        for size in (0.5, 1.0)
    ]
    return pd.DataFrame(
        rows, columns=['task', 'encoding', 'start', 'seed', 'size', 'metric', 'value']
    )


def verdicts_of(comparisons, results):
    """Verdicts of the comparisons of one claim."""
    (judged,) = judge([Claim('a', '', comparisons)], results)
    return [part.verdict for part in judged.parts]


def cells(text):
    """Rows of all tables in a report, without the padding."""
    rows = [line.strip('|').split('|') for line in text.splitlines() if line.startswith('|')]
    return [tuple(cell.strip() for cell in row) for row in rows]


def test_the_interval_is_that_of_welch():
    left, right = [50.0, 52.0, 51.5], [48.0, 47.0, 49.5]
    found = Difference.between(left, right)
    # Written out from the formula.
    a, b = variance(left) / 3, variance(right) / 3
    freedom = (a + b) ** 2 / (a**2 / 2 + b**2 / 2)
    half = scipy_stats.t.ppf(0.975, freedom) * math.sqrt(a + b)
    assert found.mean == pytest.approx(mean(left) - mean(right))
    assert (found.low, found.high) == pytest.approx((found.mean - half, found.mean + half))
    for bound in (0.0, -1.0, 7.0):
        tested = Difference.between(left, right, bound)
        statistic = abs(found.mean - bound) / math.sqrt(a + b)
        assert tested.p_value == pytest.approx(2 * scipy_stats.t.sf(statistic, freedom))
        assert tested[:3] == pytest.approx(found[:3]), 'the interval does not depend on the bound'


def test_the_p_value_of_one_sample_is_that_of_student():
    values, bound = [2.0, 3.0, 5.5], 1.0
    statistic = (mean(values) - bound) / math.sqrt(variance(values) / 3)
    expected = 2 * scipy_stats.t.sf(statistic, 2)
    assert Difference.between(values, None, bound).p_value == pytest.approx(expected)


def test_the_p_value_of_equal_values_is_zero_or_one():
    assert Difference.between([5.0, 5.0], [3.0, 3.0]).p_value == 0
    assert Difference.between([5.0, 5.0], [3.0, 3.0], bound=2.0).p_value == 1
    assert Difference.between([5.0], [3.0, 3.0]).p_value is None


@pytest.mark.parametrize(
    ('p_values', 'corrected'),
    [
        # 4 x 0.005, 3 x 0.01, 2 x 0.03, and 0.04 is raised to the one before it
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.6, None, 0.7], [1.0, None, 1.0]),
        ([0.03, 0.03], [0.06, 0.06]),
        ([0.04], [0.04]),
        ([None], [None]),
        ([], []),
    ],
)
def test_holm_by_hand(p_values, corrected):
    assert holm(p_values) == [value and pytest.approx(value) for value in corrected]


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
def test_a_verdict_needs_a_small_p_value_and_the_right_side(left, right, verdict):
    results = results_of(peg_0=left, none=right)
    comparison = Comparison('peg-0', 'none', accuracy(112), 'top-1')
    opposite = Comparison('peg-0', 'none', accuracy(112), 'top-1', greater=False)
    reverse = {SUPPORTED: REFUTED, REFUTED: SUPPORTED}
    assert verdicts_of([comparison], results) == [verdict]
    assert verdicts_of([opposite], results) == [reverse.get(verdict, verdict)]


def test_a_verdict_is_corrected_over_its_family():
    """p = 0.03 is enough alone, and not beside three others; another measure does not count."""
    results = results_of(peg_0=[50.0, 52.0, 54.0], none=[46.0, 47.0, 48.0])
    comparison = Comparison('peg-0', 'none', accuracy(112), 'top-1')
    (part,) = judge([Claim('a', '', [comparison])], results)[0].parts
    assert 0.025 < part.p_value < 0.05 and part.verdict == SUPPORTED
    assert verdicts_of([comparison] * 4, results) == [UNDECIDED] * 4
    others = [comparison._replace(family=SHIFT)] * 3
    assert verdicts_of([comparison, *others], results) == [SUPPORTED, *[UNDECIDED] * 3]
    not_run = [Comparison('sincos', 'none', accuracy(112), 'top-1')] * 3
    assert verdicts_of([comparison, *not_run], results) == [SUPPORTED, *[UNTESTED] * 3]


def test_the_correction_is_over_all_claims():
    results = results_of(peg_0=[50.0, 52.0, 54.0], none=[46.0, 47.0, 48.0])
    asked = [
        Claim(letter, '', [Comparison('peg-0', 'none', accuracy(112), 'top-1')])
        for letter in 'abcd'
    ]
    assert [one.verdict for one in judge(asked, results)] == [UNDECIDED] * 4


def test_the_count_of_claims_leaves_out_what_the_paper_does_not_claim():
    results = results_of(peg_0=[60, 61, 62], none=[50, 51, 52])
    run = [Comparison('peg-0', 'none', accuracy(112), 'top-1')]
    missing = [Comparison('sincos', 'none', accuracy(112), 'top-1')]
    asked = [
        Claim('a', '', run),
        Claim('b', '', missing),
        Claim('c', '', run),
        Claim("c'", '', run),
        Claim('d', '', missing),
        Claim('x', '', run, in_paper=False),
    ]
    assert count_tested(judge(asked, results)) == (2, 4)


def test_the_pages_have_the_count_and_the_verdicts_of_the_csv_file():
    results = best_rates(pd.read_csv(DOCS / 'evidence/positional_encoding.csv'), 112)
    judged = judge(claims(112), results)
    tested, of_paper = count_tested(judged)
    assert (tested, of_paper) == (11, 17)
    for page in (DOCS / 'evidence.md', DOCS.parent / 'README.md'):
        assert f"{tested} of the paper's {of_paper} claims" in ' '.join(page.read_text().split())
    parts = [part for one in judged for part in one.parts if part.comparison.family == TOP1]
    run = [part for part in parts if part.p_value is not None]
    assert len(run) == 31
    assert sum(part.difference.p_value < 0.05 for part in run) == 14
    assert sum(part.p_value < 0.05 for part in run) == 10
    verdicts = {one.claim.letter: one.verdict for one in judged}
    expected = dict.fromkeys(verdicts, UNTESTED) | dict.fromkeys('bfgr', SUPPORTED)
    expected |= dict.fromkeys([*'acdehik', "c'"], UNDECIDED) | {'j': REFUTED}
    assert verdicts == expected


def test_a_change_is_computed_seed_by_seed():
    assert change(224, 112)(results_of(none=[50, 60, 70]), 'none') == [0, -2, -4]


def test_a_claim_is_as_good_as_its_weakest_part():
    asked = claims(112)[:1]

    def verdict(**scores):
        return judge(asked, results_of(**scores))[0].verdict

    good, bad = [60, 61, 62], [40, 41, 42]
    close = [bad[0] + 0.5, bad[1] - 0.5, bad[2] + 0.1]
    assert verdict(none=bad, sincos=good, learned=good, peg_0=good, peg_0_5=good) == SUPPORTED
    assert verdict(none=good, sincos=good, learned=good, peg_0=good, peg_0_5=bad) == REFUTED
    assert verdict(none=bad, sincos=good, learned=good, peg_0=good) == UNTESTED
    assert verdict(none=bad, sincos=close, learned=good, peg_0=good, peg_0_5=good) == UNDECIDED


def test_larger_sizes_are_those_of_the_paper():
    """384 and 448 px after 224 are 192 and 224 px after 112, and 56 (a multiple of 8) and 64 px
    after 32.
    """
    assert {part.what for part in claims(32)[2].comparisons} == {'change of top-1, 32 to 56 px'}
    parts = [
        str(part) for claim in claims(112) if claim.letter[0] == 'c' for part in claim.comparisons
    ]
    assert all('112 to 192 px' in text for text in parts[:6]) and all(
        '112 to 224 px' in text for text in parts[6:]
    )


def test_claims_compare_variants_of_the_first_two_priorities():
    assert [claim.letter for claim in claims(112)] == ['a', 'b', 'c', "c'", *'defghijklmnopqr']
    named = {
        name
        for claim in claims(112)
        for part in claim.comparisons
        for name in (part.left, part.right)
        if name
    }
    assert named == {name for name, variant in VARIANTS.items() if variant.priority <= 2}


def test_of_several_rates_the_best_on_the_first_seed_counts():
    results = pd.DataFrame(
        [
            ('learned', 0, 1.0, 50.0),
            ('learned', 0, 2.0, 55.0),
            ('learned', 1, 2.0, 40.0),
            ('learned', 0, 0.5, 54.0),
        ],
        columns=['variant', 'seed', 'rate_factor', 'top1'],
    ).assign(size=112)
    assert best_rates(results, 112)['rate_factor'].tolist() == [2.0, 2.0]
    tied = results.assign(top1=50.0)
    for order in (tied, tied[::-1]):
        assert best_rates(order, 112)['rate_factor'].tolist() == [0.5]
    tuned = results.assign(tuning=[60.0, 50.0, 50.0, 50.0])  # on images that are not tested
    assert best_rates(tuned, 112)['rate_factor'].tolist() == [1.0]
    shown = cells(rates_table(results, 112))[2:]
    assert shown == [
        ('learned table', '0.5', '54.0'),
        ('learned table', '1', '50.0'),
        ('learned table', '2', '55.0'),
    ]


def test_the_report_has_the_numbers(tmp_path):
    results = results_of(none=[41, 42, 43], learned=[45, 46, 47], peg_0=[50, 51, 52])
    rows = cells(classify_report(results))
    assert ('no encoding', '3', '42.0 ± 1.0', '40.0 ± 1.0', '0.200 ± 0.100') in rows
    found = {row[1]: row[2:] for row in rows if row[0] == ''}
    assert found['PEG at 0 minus learned table, top-1 at 112 px, > -1'][0].startswith('+5.00 (')
    assert found['PEG at 0 minus no encoding, top-1 at 112 px, > 0'][2:] == ('+4.2', 'supported')
    # Three comparisons are run at 112 px, and one change; the smallest p-value counts four times.
    p_value = Difference.between([50, 51, 52], [41, 42, 43]).p_value
    assert found['PEG at 0 minus no encoding, top-1 at 112 px, > 0'][1] == f'{4 * p_value:.3f}'
    assert not [row for row in rows if row[0] == 'sin-cos']  # not run
    draw_classify(results, tmp_path)
    for name in ('sizes', 'variants'):
        assert (tmp_path / f'{name}.png').stat().st_size > 5000


def test_the_dense_report_has_the_numbers(tmp_path):
    results = dense_results(['learned', 'peg'], ['scratch', 'pretrained'], [0, 1])
    text = transfer_report(results, pictures='there')
    rows = cells(text)
    assert rows[2] == ('scratch', 'peg', '2', '21.5 ± 0.7', '21.5 ± 0.7')
    assert rows[6][:3] == ('scratch: peg minus learned', '', '') and rows[6][3].startswith('+1.0 (')
    assert rows[9][0] == 'learned: pretrained minus scratch'
    assert '](there/dense_transfer.png)' in text
    assert '*' not in ''.join(rows[6]), 'no difference is significant'
    draw_transfer(results, tmp_path)
    assert (tmp_path / 'dense_transfer.png').stat().st_size > 5000


def test_a_star_marks_what_survives_the_correction_over_the_sizes():
    survives = Difference(2.0, 1.0, 3.0, p_value=0.012)
    not_quite = Difference(2.0, 0.1, 3.9, p_value=0.03)
    zero = Difference(0.0, -1.0, 1.0, p_value=0.9)
    texts = marked([survives, not_quite, zero, Difference(1.0)], digits=1)
    assert [text.endswith('*') for text in texts] == [True, False, False, False]
    assert marked([survives, not_quite, zero, zero, zero], digits=1) == [
        '+2.0 (+1.0 to +3.0)',
        '+2.0 (+0.1 to +3.9)',
        *['+0.0 (-1.0 to +1.0)'] * 3,
    ]


def test_the_dense_report_leaves_out_what_was_not_run():
    text = transfer_report(dense_results(['peg'], ['scratch'], [0]))
    assert cells(text)[2:] == [('scratch', 'peg', '1', '21.0', '21.0')]


def test_the_page_is_reproduced_from_its_csv_files(tmp_path):
    page, folder = tmp_path / 'evidence.md', tmp_path / 'evidence'
    shutil.copytree(DOCS / 'evidence', folder)
    page.write_text((DOCS / 'evidence.md').read_text())
    write_report(tmp_path / 'nowhere', page)
    assert page.read_text() == (DOCS / 'evidence.md').read_text()
    for table, runs in (('positional_encoding', 'runs'), ('dense_transfer', 'dense_transfer_runs')):
        assert (folder / f'{table}.csv').read_bytes() == (
            DOCS / 'evidence' / f'{table}.csv'
        ).read_bytes()
        results, runs = pd.read_csv(folder / f'{table}.csv'), pd.read_csv(folder / f'{runs}.csv')
        names = [
            name
            for name in ('variant', 'task', 'encoding', 'start', 'seed', 'rate_factor')
            if name in results
        ]
        assert set(runs[names].itertuples(index=False)) == set(
            results[names].itertuples(index=False)
        )


def test_finished_runs_enter_the_csv_files(tmp_path):
    run = dict(variant='none', seed=0, rate_factor=1.0)
    rows = [
        dict(epochs=3, size=size, top1=50.0, shift_error=error)
        for size, error in ((112, 0.25), (224, None))
    ]
    environment = dict(
        processor='two cores', threads='1', Python='3.11.7 (main)', PyTorch='2.11.0', OpenCV='4'
    )
    record = dict(run=run, rows=rows, commits='abc', environment=environment, config='')
    write_json(tmp_path / 'classify/none_seed-0/record.json', record)
    write_report(tmp_path)
    assert (
        (tmp_path / 'positional_encoding.csv').read_text()
        == 'variant,seed,rate_factor,epochs,size,top1,shift_error\n'
        'none,0,1.0,3,112,50.0,0.25\nnone,0,1.0,3,224,50.0,\n'
    )
    assert (
        (tmp_path / 'runs.csv').read_text()
        == 'variant,seed,rate_factor,epochs,commits,processor,threads,python,torch\n'
        'none,0,1.0,3,abc,two cores,1,3.11.7,2.11.0\n'
    )
    assert ('no encoding', '1', '50.0', '50.0', '0.250') in cells(
        (tmp_path / 'report.md').read_text()
    )
    (tmp_path / 'classify/none_seed-0').rename(tmp_path / 'elsewhere')
    write_json(tmp_path / 'classify/none_seed-1/record.json', record | dict(run=dict(run, seed=1)))
    write_report(tmp_path)
    results = pd.read_csv(tmp_path / 'positional_encoding.csv')
    assert results['seed'].tolist() == [0, 0, 1, 1] and results['top1'].tolist() == [50.0] * 4, (
        'seed 0 is kept'
    )
    assert pd.read_csv(tmp_path / 'runs.csv')['seed'].tolist() == [0, 1]
    with pytest.raises(ValueError, match='nowhere has no finished run'):
        write_report(tmp_path / 'nowhere')

"""The report of the study: its numbers are those of the CSV files, and its verdicts follow from
corrected p-values.
"""

import math
import re
import shutil
from pathlib import Path
from statistics import mean, variance

import pandas as pd
import pytest
from positional_encoding import objects
from positional_encoding.claims import (
    REFUTED,
    SHIFT,
    SUPPORTED,
    UNDECIDED,
    UNTESTED,
    Claim,
    Comparison,
    Difference,
    accuracy,
    best_rates,
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
    objects_report,
    transfer_report,
    write_report,
)
from positional_encoding.runs import write_json
from positional_encoding.variants import VARIANTS, encoding_of

from benchmarks import plots

scipy_stats = pytest.importorskip('scipy.stats')
DOCS = Path(__file__).resolve().parents[2] / 'docs'
EVIDENCE = (DOCS / 'evidence.md').read_text()


def results_of(**scores):
    """A row for each seed at 112 px, and one at 224 px with twice the seed lost."""
    rows = []
    for name, values in scores.items():
        for seed, top1 in enumerate(values):
            run = dict(variant=name.replace('_', '-'), seed=seed, rate_factor=1.0, epochs=8)
            rows.append(run | dict(size=112, top1=top1, shift_error=0.1 * (seed + 1)))
            rows.append(run | dict(size=224, top1=top1 - 2 * seed, shift_error=None))
    return pd.DataFrame(rows)


def dense_results(encodings, starts, seeds):
    """mIoU of 20 plus the seed at two sizes; one point more for PEG."""
    rows = []
    for encoding in encodings:
        for start in starts:
            for seed in seeds:
                run = dict(task='camvid', encoding=encoding, start=start, seed=seed)
                value = 20.0 + seed + (encoding == 'peg')
                rows += [run | dict(size=size, metric='mIoU', value=value) for size in (0.5, 1.0)]
    return pd.DataFrame(rows)


def better(left='peg-0', **options):
    """The comparison of a variant with no encoding, by top-1 at 112 px."""
    return Comparison(left, 'none', accuracy(112), 'top-1', **options)


def verdicts_of(comparisons, results):
    (judged,) = judge([Claim('a', '', comparisons)], results)
    return [part.verdict for part in judged.parts]


def cells(text):
    """Rows of all tables in a report, without the padding."""
    rows = [line.strip('|').split('|') for line in text.splitlines() if line.startswith('|')]
    return [tuple(cell.strip() for cell in row) for row in rows]


# -- statistics
# --------------------------------------------------------------------------------------------------


def test_intervals_and_p_values_are_those_of_welch_and_student():
    left, right = [50.0, 52.0, 51.5], [48.0, 47.0, 49.5]
    a, b = variance(left) / 3, variance(right) / 3
    freedom = (a + b) ** 2 / (a**2 / 2 + b**2 / 2)
    half = scipy_stats.t.ppf(0.975, freedom) * math.sqrt(a + b)
    difference = mean(left) - mean(right)
    for bound in (0.0, -1.0, 7.0):
        found = Difference.between(left, right, bound)
        assert found[:3] == pytest.approx((difference, difference - half, difference + half))
        statistic = abs(difference - bound) / math.sqrt(a + b)
        assert found.p_value == pytest.approx(2 * scipy_stats.t.sf(statistic, freedom))

    values = [2.0, 3.0, 5.5]
    statistic = (mean(values) - 1) / math.sqrt(variance(values) / 3)
    expected = 2 * scipy_stats.t.sf(statistic, 2)
    assert Difference.between(values, None, 1.0).p_value == pytest.approx(expected)
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
    reverse = {SUPPORTED: REFUTED, REFUTED: SUPPORTED}
    assert verdicts_of([better()], results) == [verdict]
    assert verdicts_of([better(greater=False)], results) == [reverse.get(verdict, verdict)]


def test_a_verdict_is_corrected_over_its_family_and_all_claims():
    """p = 0.03 is enough alone, and not beside three others; another measure does not count."""
    results = results_of(peg_0=[50.0, 52.0, 54.0], none=[46.0, 47.0, 48.0])
    (part,) = judge([Claim('a', '', [better()])], results)[0].parts
    assert 0.025 < part.p_value < 0.05 and part.verdict == SUPPORTED
    assert verdicts_of([better()] * 4, results) == [UNDECIDED] * 4
    others = [better()._replace(family=SHIFT)] * 3
    assert verdicts_of([better(), *others], results) == [SUPPORTED, *[UNDECIDED] * 3]
    assert verdicts_of([better(), *[better('sincos')] * 3], results) == [SUPPORTED, *[UNTESTED] * 3]
    asked = [Claim(letter, '', [better()]) for letter in 'abcd']
    assert [one.verdict for one in judge(asked, results)] == [UNDECIDED] * 4


def test_a_claim_is_as_good_as_its_weakest_part():
    def verdict(**scores):
        return judge(claims(112)[:1], results_of(**scores))[0].verdict

    good, bad = [60, 61, 62], [40, 41, 42]
    close = [bad[0] + 0.5, bad[1] - 0.5, bad[2] + 0.1]
    assert verdict(none=bad, sincos=good, learned=good, peg_0=good, peg_0_5=good) == SUPPORTED
    assert verdict(none=good, sincos=good, learned=good, peg_0=good, peg_0_5=bad) == REFUTED
    assert verdict(none=bad, sincos=good, learned=good, peg_0=good) == UNTESTED
    assert verdict(none=bad, sincos=close, learned=good, peg_0=good, peg_0_5=good) == UNDECIDED


def test_the_claims_are_those_of_the_paper():
    """384 and 448 px after 224 are 192 and 224 px after 112, and 56 (a multiple of 8) and 64 px
    after 32.
    """
    assert [claim.letter for claim in claims(112)] == ['a', 'b', 'c', "c'", *'defghijklmnopqr']
    parts = [part for claim in claims(112) for part in claim.comparisons]
    named = {name for part in parts for name in (part.left, part.right) if name}
    assert named == {name for name, variant in VARIANTS.items() if variant.priority <= 2}
    assert {part.what for part in claims(32)[2].comparisons} == {'change of top-1, 32 to 56 px'}
    changes = [str(part) for claim in claims(112)[2:4] for part in claim.comparisons]
    assert all('112 to 192 px' in text for text in changes[:6])
    assert all('112 to 224 px' in text for text in changes[6:])

    results = results_of(peg_0=[60, 61, 62], none=[50, 51, 52])
    letters = dict(a='peg-0', b='sincos', c='peg-0', d='sincos')
    asked = [Claim(letter, '', [better(left)]) for letter, left in letters.items()]
    asked += [Claim("c'", '', [better()]), Claim('x', '', [better()], in_paper=False)]
    assert count_tested(judge(asked, results)) == (2, 4)


def test_of_several_rates_the_best_on_the_first_seed_counts():
    runs = [(0, 1.0, 50.0), (0, 2.0, 55.0), (1, 2.0, 40.0), (0, 0.5, 54.0)]
    results = pd.DataFrame(runs, columns=['seed', 'rate_factor', 'top1'])
    results = results.assign(variant='learned', size=112)
    assert best_rates(results, 112)['rate_factor'].tolist() == [2.0, 2.0]
    tied = results.assign(top1=50.0)
    for order in (tied, tied[::-1]):
        assert best_rates(order, 112)['rate_factor'].tolist() == [0.5]
    tuned = results.assign(tuning=[60.0, 50.0, 50.0, 50.0])  # on images that are not tested
    assert best_rates(tuned, 112)['rate_factor'].tolist() == [1.0]


# -- tables
# --------------------------------------------------------------------------------------------------


def test_the_report_has_the_numbers(tmp_path):
    results = results_of(none=[41, 42, 43], learned=[45, 46, 47], peg_0=[50, 51, 52])
    rows = cells(classify_report(results))
    assert ('no encoding', '3', '42.0 ± 1.0', '40.0 ± 1.0', '0.200 ± 0.100') in rows
    found = {row[1]: row[2:] for row in rows if row[0] == ''}
    assert found['PEG at 0 minus learned table, top-1 at 112 px, > -1'][0].startswith('+5.00 (')
    above = found['PEG at 0 minus no encoding, top-1 at 112 px, > 0']
    assert above[2:] == ('+4.2', 'supported')
    # Three comparisons are run at 112 px, and one change; the smallest p-value counts four times.
    p_value = Difference.between([50, 51, 52], [41, 42, 43]).p_value
    assert above[1] == f'{4 * p_value:.3f}'
    assert not [row for row in rows if row[0] == 'sin-cos']  # not run
    draw_classify(results, tmp_path)
    for name in ('sizes', 'variants', 'claims'):
        assert (tmp_path / f'{name}.png').stat().st_size > 5000


def test_the_dense_report_has_the_numbers(tmp_path):
    results = dense_results(['learned', 'peg'], ['scratch', 'pretrained'], [0, 1])
    rows = cells(transfer_report(results))
    assert rows[2] == ('random weights', 'PEG', '2', '21.5 ± 0.7', '21.5 ± 0.7')
    assert rows[6][:3] == ('random weights: PEG minus table', '', '') and rows[6][3].startswith(
        '+1.0 ('
    )
    assert '*' not in ''.join(rows[6]), 'no difference is significant'
    draw_transfer(results, tmp_path)
    assert (tmp_path / 'dense_transfer.png').stat().st_size > 5000
    alone = cells(transfer_report(dense_results(['peg'], ['scratch'], [0])))
    assert alone[2:] == [('random weights', 'PEG', '1', '21.0', '21.0')]

    # A star marks what survives the correction over the sizes.
    survives = Difference(2.0, 1.0, 3.0, p_value=0.012)
    not_quite = Difference(2.0, 0.1, 3.9, p_value=0.03)
    texts = marked([survives, not_quite, Difference(1.0)], digits=1)
    assert [text.endswith('*') for text in texts] == [True, True, False]
    zeros = [Difference(0.0, -1.0, 1.0, p_value=0.9)] * 3
    texts = marked([survives, not_quite, *zeros], digits=1)
    assert texts == ['+2.0 (+1.0 to +3.0)', '+2.0 (+0.1 to +3.9)', *['+0.0 (-1.0 to +1.0)'] * 3]


def test_objects_are_split_into_thirds_by_area(tmp_path):
    (tmp_path / 'meta').mkdir()
    names = [f'{index}.png' for index in range(6 * objects.EVERY)]
    (tmp_path / 'meta/test.txt').write_text(''.join(f'{name} 0\n' for name in names))
    sides = (1, 7, 3, 5, 2, 6)
    boxes = [f'{name}\t2\t3\t{1 + k}\t{2 + k}\n' for name, k in zip(names[::3], sides, strict=True)]
    (tmp_path / 'boxes.tsv').write_text(''.join(boxes))
    groups = objects.group_images(tmp_path)
    found = [groups[name] for name in names[::3]]
    assert found == ['small', 'large', 'middle', 'middle', 'small', 'large']


def test_the_table_of_objects_has_the_share_that_is_correct():
    runs = [dict(variant='rope', seed=seed, rate_factor=1.0) for seed in (0, 1)]
    results = pd.DataFrame([run | dict(size=32, top1=50.0) for run in runs])
    rows = []
    for run in runs:
        for way, size in (('resized', 32), ('resized', 64), ('padded', 64)):
            for group, correct in (('small', 1), ('large', 5 + (way == 'padded'))):
                row = dict(way=way, size=size, object=group, images=10)
                rows.append(run | row | dict(correct=correct + run['seed']))
    text = objects_report(pd.DataFrame(rows), results)
    assert '10 small' in text and '10 large' in text
    table = cells(text)
    assert table[0][2:] == ('32 px', '64 px', '64 px, padded')
    large = next(row for row in table if 'large' in row)
    assert large[2:] == ('55.0 ± 7.1', '55.0 ± 7.1', '65.0 ± 7.1')
    assert objects_report(pd.DataFrame(rows), results.assign(rate_factor=2.0)) == ''


def test_finished_runs_enter_the_csv_files_and_others_stay(tmp_path):
    run = dict(variant='none', seed=0, rate_factor=1.0)
    rows = [
        dict(epochs=3, size=112, top1=50.0, shift_error=0.25),
        dict(epochs=3, size=224, top1=50.0, shift_error=None),
    ]
    environment = dict(processor='two cores', threads='1', Python='3.11.7 (main)', PyTorch='2.11.0')
    record = dict(run=run, rows=rows, commits='abc', environment=environment, config='')
    write_json(tmp_path / 'classify/none_seed-0/record.json', record)
    write_report(tmp_path)
    assert (tmp_path / 'positional_encoding.csv').read_text().splitlines()[1:] == [
        'none,0,1.0,3,112,50.0,0.25',
        'none,0,1.0,3,224,50.0,',
    ]
    (line,) = (tmp_path / 'runs.csv').read_text().splitlines()[1:]
    assert line == 'none,0,1.0,3,abc,two cores,1,3.11.7,2.11.0'
    table = cells((tmp_path / 'report.md').read_text())
    assert ('no encoding', '1', '50.0', '50.0', '0.250') in table
    (tmp_path / 'classify/none_seed-0').rename(tmp_path / 'elsewhere')
    write_json(tmp_path / 'classify/none_seed-1/record.json', record | dict(run=dict(run, seed=1)))
    write_report(tmp_path)
    assert pd.read_csv(tmp_path / 'positional_encoding.csv')['seed'].tolist() == [0, 0, 1, 1]
    assert pd.read_csv(tmp_path / 'runs.csv')['seed'].tolist() == [0, 1]
    with pytest.raises(ValueError, match='nowhere has no finished run'):
        write_report(tmp_path / 'nowhere')


# -- pages
# --------------------------------------------------------------------------------------------------


def test_the_pages_are_reproduced_from_their_csv_files(tmp_path):
    folder = tmp_path / 'evidence'
    shutil.copytree(DOCS / 'evidence', folder)
    write_report(tmp_path / 'nowhere', folder)
    for name in ('imagenette', 'tiny_imagenet', 'dense_transfer'):
        page = f'{name}.md'
        assert (folder / page).read_text() == (DOCS / 'evidence' / page).read_text()
    keys = {'variant', 'task', 'encoding', 'start', 'seed', 'rate_factor'}
    for table, runs in (('positional_encoding', 'runs'), ('dense_transfer', 'dense_transfer_runs')):
        results, machines = (pd.read_csv(folder / f'{name}.csv') for name in (table, runs))
        names = [name for name in results if name in keys]
        rows = [set(one[names].itertuples(index=False)) for one in (results, machines)]
        assert rows[0] == rows[1]


def test_the_pages_have_the_count_and_the_verdicts_of_the_csv_file():
    results = best_rates(pd.read_csv(DOCS / 'evidence/positional_encoding.csv'), 112)
    judged = judge(claims(112), results)
    tested, of_paper = count_tested(judged)
    assert (tested, of_paper) == (11, 17)
    for page in (DOCS / 'evidence.md', DOCS.parent / 'README.md'):
        assert f"{tested} of the paper's {of_paper} claims" in ' '.join(page.read_text().split())
    top1 = results.groupby(['variant', 'size'])['top1'].mean()
    lead = {one: top1['peg-0-5', 112] - top1[one, 112] for one in ('learned', 'rope')}
    assert f'{lead["learned"]:+.1f} points of top-1 over a table' in EVIDENCE
    assert f'{lead["rope"]:+.1f} over RoPE' in EVIDENCE
    gains = [top1[one, 224] - top1[one, 112] for one in ('peg-0-5', 'none')]
    assert 'PEG gains {:.2f} points and no encoding {:.2f}'.format(*gains) in EVIDENCE
    told = dict(re.findall(r"^- \*\*([\w ]+):\*\* ((?:[a-r]'?(?:, )?)+)", EVIDENCE, re.M))
    for verdict in (SUPPORTED, REFUTED, UNDECIDED, UNTESTED):
        letters = [one.claim.letter for one in judged if one.verdict == verdict]
        assert told[verdict.capitalize()].strip(', ') == ', '.join(letters)


def test_every_encoding_has_one_colour_that_is_seen_on_both_backgrounds():
    assert {encoding_of(name) for name in VARIANTS} <= plots.ENCODINGS.keys()
    assert encoding_of('learned-peg-0') == 'table+peg' and encoding_of('peg-0-gap') == 'peg'
    assert len(set(plots.ENCODINGS.values())) == len(plots.ENCODINGS)
    for color in (*plots.ENCODINGS.values(), *plots.VERDICTS.values(), plots.GREY):
        for background in (plots.LIGHT, plots.DARK):
            darker, lighter = sorted(map(luminance, (color, background)))
            assert (lighter + 0.05) / (darker + 0.05) >= 3, (color, background)


def luminance(color):
    """Relative luminance of WCAG 2."""
    shares = [int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

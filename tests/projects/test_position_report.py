"""The report of the study: its numbers are those of the CSV files, and its verdicts follow from
corrected p-values.
"""

import math
import re
import shutil
from itertools import pairwise
from pathlib import Path
from statistics import mean, variance

import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
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
    holm,
    judge,
)
from positional_encoding.forest import draw_claims
from positional_encoding.report import marked, write_report
from positional_encoding.runs import write_json
from positional_encoding.variants import VARIANTS

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


def better(left='peg-0', **options):
    """The comparison of a variant with no encoding, by top-1 at 112 px."""
    return Comparison(left, 'none', accuracy(112), 'top-1', **options)


def verdicts_of(comparisons, results):
    (judged,) = judge([Claim('a', '', comparisons)], results)
    return [part.verdict for part in judged.parts]


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
        ([None], [None]),
    ],
)
def test_holm_by_hand(p_values, corrected):
    assert holm(p_values) == [value and pytest.approx(value) for value in corrected]


def test_a_verdict_is_corrected_over_its_family_and_all_claims():
    """p = 0.03 is enough alone, and not beside three others; another measure does not count."""
    results = results_of(peg_0=[50.0, 52.0, 54.0], none=[46.0, 47.0, 48.0])
    (part,) = judge([Claim('a', '', [better()])], results)[0].parts
    assert 0.025 < part.p_value < 0.05 and part.verdict == SUPPORTED
    assert verdicts_of([better(greater=False)], results) == [REFUTED]
    assert verdicts_of([better()] * 4, results) == [UNDECIDED] * 4
    others = [better()._replace(family=SHIFT)] * 3
    assert verdicts_of([better(), *others], results) == [SUPPORTED, *[UNDECIDED] * 3]
    assert verdicts_of([better(), *[better('sincos')] * 3], results) == [SUPPORTED, *[UNTESTED] * 3]
    asked = [Claim(letter, '', [better()]) for letter in 'abcd']
    assert [one.verdict for one in judge(asked, results)] == [UNDECIDED] * 4


def test_a_claim_has_the_verdict_of_its_weakest_part():
    def verdict(**scores):
        return judge(claims(112)[:1], results_of(**scores))[0].verdict

    good, bad = [60, 61, 62], [40, 41, 42]
    close = [bad[0] + 0.5, bad[1] - 0.5, bad[2] + 0.1]
    assert verdict(none=bad, sincos=good, learned=good, peg_0=good, peg_0_5=good) == SUPPORTED
    assert verdict(none=good, sincos=good, learned=good, peg_0=good, peg_0_5=bad) == REFUTED
    assert verdict(none=bad, sincos=good, learned=good, peg_0=good) == UNTESTED
    one_seed = dict(none=bad, sincos=good, learned=good, peg_0=good, peg_0_5=[61])
    assert verdict(**one_seed) == UNTESTED
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


def test_a_star_marks_what_differs_after_the_correction_over_the_sizes():
    survives = Difference(2.0, 1.0, 3.0, p_value=0.012)
    not_quite = Difference(2.0, 0.1, 3.9, p_value=0.03)
    texts = marked([survives, not_quite, Difference(1.0)], digits=1)
    assert [text.endswith('*') for text in texts] == [True, True, False]
    zeros = [Difference(0.0, -1.0, 1.0, p_value=0.9)] * 3
    texts = marked([survives, not_quite, *zeros], digits=1)
    assert texts == ['+2.0 (+1.0 to +3.0)', '+2.0 (+0.1 to +3.9)', *['+0.0 (-1.0 to +1.0)'] * 3]


# -- CSV files and pages
# --------------------------------------------------------------------------------------------------


def test_finished_runs_enter_the_csv_files_and_others_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(plots, 'save_figure', lambda figure, path: None)
    run = dict(variant='none', seed=0, rate_factor=1.0)
    rows = [dict(epochs=3, size=112, top1=50.0, shift_error=0.25)]
    environment = dict(processor='two cores', threads='1', Python='3.11.7 (main)', PyTorch='2.11.0')
    record = dict(run=run, rows=rows, commits='abc', environment=environment, config='')
    for seed in (0, 1):
        folder = tmp_path / f'classify/none_seed-{seed}'
        write_json(folder / 'record.json', record | dict(run=dict(run, seed=seed)))
        write_report(tmp_path)
        shutil.rmtree(folder)
    results, machines = (
        (tmp_path / f'{name}.csv').read_text().splitlines()[1:]
        for name in ('positional_encoding', 'runs')
    )
    assert results == [f'none,{seed},1.0,3,112,50.0,0.25' for seed in (0, 1)]
    assert machines == [f'none,{seed},1.0,3,abc,two cores,1,3.11.7,2.11.0' for seed in (0, 1)]
    for seed in (2, 3):
        changed = dict(run=dict(run, seed=seed), config=f'width={seed}')
        write_json(tmp_path / f'classify/none_seed-{seed}/record.json', record | changed)
    with pytest.raises(ValueError, match='seeds 2 and 3 of .* trained with different configs'):
        write_report(tmp_path)


@pytest.fixture(scope='module')
def evidence(tmp_path_factory):
    """The pages and pictures, written from the committed CSV files without runs."""
    folder = tmp_path_factory.mktemp('docs') / 'evidence'
    shutil.copytree(DOCS / 'evidence', folder)
    for picture in folder.glob('*.png'):
        picture.unlink()
    write_report(folder.parent / 'nowhere', folder)
    return folder


@pytest.mark.parametrize(
    'page', ['imagenette.md', 'tiny_imagenet.md', 'dense_transfer.md', 'claims.md']
)
def test_a_page_is_reproduced_from_its_csv_files(page, evidence):
    text = (evidence / page).read_text()
    assert text == (DOCS / 'evidence' / page).read_text()
    for name in re.findall(r'\((\w+\.png)\)', text):
        assert (evidence / name).stat().st_size > 5000


def test_the_forest_plot_has_the_intervals_and_verdicts_of_the_csv_file(monkeypatch, tmp_path):
    judged = judge(claims(112), published())
    figures = []
    monkeypatch.setattr(plots, 'save_figure', lambda figure, path: figures.append(figure))
    draw_claims(judged, tmp_path / 'claims.png')
    axes = figures[0].axes
    drawn = {tuple(line.get_xdata()) for axis in axes for line in axis.lines}
    verdict, named = '', {}
    for axis in axes:
        for label in axis.get_yticklabels():
            text = ' '.join(label.get_text().split())
            if label.get_fontweight() == 'bold':
                verdict = text.lower()
            else:
                named[text] = verdict
    tested = [one for one in judged if one.verdict != UNTESTED]
    assert named == {one.claim.name: one.verdict for one in tested}
    for one in tested:
        difference = one.weakest.difference
        assert one.weakest.verdict == one.verdict
        assert difference[1:3] in drawn and (difference.mean,) in drawn


def published():
    """The committed results, each variant at its best rate."""
    return best_rates(pd.read_csv(DOCS / 'evidence/positional_encoding.csv'), 112)


def test_every_claim_stands_once_with_its_verdict_and_its_difference():
    page = (DOCS / 'evidence/claims.md').read_text()
    lines = [line for line in page.splitlines() if line.startswith('| ')][1:]
    rows = {cells[0]: cells[1:] for cells in (re.split(r' *\| *', line)[1:-1] for line in lines)}
    judged = judge(claims(112), published())
    assert len(lines) == len(judged) and rows.keys() == {one.claim.name for one in judged}
    for one in judged:
        verdict, difference, *_ = rows[one.claim.name]
        assert verdict == one.verdict
        assert difference == ('' if verdict == UNTESTED else one.weakest.difference.text())
    order = [SUPPORTED, REFUTED, UNDECIDED, UNTESTED]
    places = [order.index(verdict) for verdict, *_ in rows.values()]
    assert places == sorted(places)


def test_labels_of_lines_that_end_together_do_not_overlap():
    figure, (axis,) = plots.new_figure(3.6)
    for name, end in (('a', 0.50), ('b', 0.51), ('c', 0.52), ('d', 0.9), ('e', 0)):
        axis.plot([0, 1], [0.2, end], label=name)
    plots.label_lines(axis)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    boxes = [Text.get_window_extent(text, canvas.get_renderer()) for text in axis.texts]
    assert [text.get_text() for text in axis.texts] == ['e', 'a', 'b', 'c', 'd']
    for below, above in pairwise(boxes):
        assert below.y1 < above.y0

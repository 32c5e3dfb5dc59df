"""Claims as differences between variants, each with an interval and a corrected verdict."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import pandas as pd
import yaml

from .variants import VARIANTS

SUPPORTED, REFUTED, UNDECIDED, UNTESTED = 'supported', 'not supported', 'undecided', 'not tested'

LEVEL = 0.05  # of significance, after the correction
TOP1, SHIFT = 'top-1', 'shift error'  # families of comparisons

Measure = Callable[[pd.DataFrame, str], list[float]]
"""(results, variant) to one number a seed."""


class Difference(NamedTuple):
    """Difference between two means, ``None`` if one was not run, with its 95 % interval (Welch).

    ``p_value`` is two-sided, of the hypothesis that the difference equals a bound. Interval and
    p-value are ``None`` with fewer than two seeds on a side. Neither is corrected.
    """

    mean: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None

    @classmethod
    def between(
        cls, left: Sequence[float], right: Sequence[float] | None, bound: float = 0.0
    ) -> 'Difference':
        """Mean of ``left`` minus mean of ``right``; ``None`` stands for exactly 0."""
        from scipy.stats import ttest_1samp, ttest_ind

        if not left or right == []:
            return cls()
        middle = mean(left) - mean(right or [0.0])
        samples = [left] if right is None else [left, right]
        if min(map(len, samples)) < 2:
            return cls(middle)
        if not any(map(stdev, samples)):
            return cls(middle, middle, middle, float(middle == bound))
        shifted = [value - bound for value in left]
        if right is None:
            test = ttest_1samp(shifted, 0.0)
        else:
            test = ttest_ind(shifted, right, equal_var=False)
        interval = test.confidence_interval(0.95)
        low, high = float(interval.low) + bound, float(interval.high) + bound
        return cls(middle, low, high, float(test.pvalue))

    def text(self, digits: int = 2) -> str:
        """``'+2.42 (-1.15 to +5.99)'``."""
        if self.mean is None:
            return 'not run'
        interval = 'one seed'
        if self.low is not None:
            interval = f'{self.low:+.{digits}f} to {self.high:+.{digits}f}'
        return f'{self.mean:+.{digits}f} ({interval})'


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Correct the p-values of one family of tests by Holm's step-down method, in their order.

    The k-th smallest of n is multiplied by n - k + 1; none falls below a smaller one, or rises
    above 1. ``None`` stands for a test that was not run: it stays, and does not count.
    """
    run = [(p_value, index) for index, p_value in enumerate(p_values) if p_value is not None]
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p_value, index) in enumerate(sorted(run)):
        largest = max(largest, (len(run) - rank) * p_value)
        corrected[index] = min(largest, 1.0)
    return corrected


class Comparison(NamedTuple):
    """A testable part of a claim: ``measure`` of ``left`` minus ``right`` is greater than
    ``bound``.

    ``claims.yaml`` explains the attributes; ``what`` describes ``measure``, ``greater=False`` asks
    for less than ``bound``. The comparisons of one ``family`` are corrected together. ``label``
    names the comparison in the plot.
    """

    left: str
    right: str | None
    measure: Measure
    what: str
    greater: bool = True
    bound: float = 0.0
    paper: float | None = None
    family: str = TOP1
    label: str = ''

    def difference(self, results: pd.DataFrame) -> Difference:
        """The difference, its interval, and its p-value against ``bound``."""
        right = None if self.right is None else self.measure(results, self.right)
        return Difference.between(self.measure(results, self.left), right, self.bound)

    def __str__(self) -> str:
        other = '' if self.right is None else f' minus {VARIANTS[self.right].label}'
        sign = '>' if self.greater else '<'
        return f'{VARIANTS[self.left].label}{other}, {self.what}, {sign} {self.bound:g}'


class Claim(NamedTuple):
    """A claim: its letter in the report, its text, its parts, whether the paper makes it, and its
    name in the plot.
    """

    letter: str
    text: str
    comparisons: Sequence[Comparison]
    in_paper: bool = True
    short: str = ''

    @property
    def name(self) -> str:
        """``short`` as a title: ``'Five PEGs beat one PEG'``."""
        return self.short[:1].upper() + self.short[1:]


class Tested(NamedTuple):
    """A comparison with its result; ``p_value`` is corrected over the comparison's family."""

    comparison: Comparison
    difference: Difference
    p_value: float | None

    @property
    def verdict(self) -> str:
        """Undecided unless the corrected p-value is below 5 %; untested without one."""
        middle = self.difference.mean
        if middle is None or self.p_value is None:
            return UNTESTED
        if self.p_value >= LEVEL:
            return UNDECIDED
        return SUPPORTED if self.on_the_claimed_side else REFUTED

    @property
    def on_the_claimed_side(self) -> bool:
        """Whether the mean is beyond the bound, as the claim says."""
        middle = self.difference.mean
        assert middle is not None  # it was run
        return (middle > self.comparison.bound) == self.comparison.greater

    @property
    def doubt(self) -> float:
        """One-sided p-value of the claim, before the correction: 0 speaks for it, 1 against."""
        p_value = self.difference.p_value
        assert p_value is not None  # it was run
        return p_value / 2 if self.on_the_claimed_side else 1 - p_value / 2


class Judged(NamedTuple):
    """A claim with its tested comparisons."""

    claim: Claim
    parts: Sequence[Tested]

    @property
    def verdict(self) -> str:
        """Verdict of the weakest part.

        All parts must be supported; a refuted one refutes the claim, an untested one leaves it
        untested.
        """
        verdicts = [part.verdict for part in self.parts]
        for verdict in (REFUTED, UNTESTED, UNDECIDED):
            if verdict in verdicts:
                return verdict
        return SUPPORTED

    @property
    def weakest(self) -> Tested:
        """The comparison that speaks least for a tested claim. Its verdict is the claim's."""
        return max(self.parts, key=lambda part: part.doubt)


def judge(asked: Sequence[Claim], results: pd.DataFrame) -> list[Judged]:
    """Test all comparisons of the claims, with Holm's correction over those of one family."""
    parts = [part for claim in asked for part in claim.comparisons]
    found = [part.difference(results) for part in parts]
    corrected: list[float | None] = [None] * len(parts)
    for family in (TOP1, SHIFT):
        members = [index for index, part in enumerate(parts) if part.family == family]
        p_values = holm([found[index].p_value for index in members])
        for index, p_value in zip(members, p_values, strict=True):
            corrected[index] = p_value
    judged = []
    start = 0
    for claim in asked:
        end = start + len(claim.comparisons)
        tested = map(Tested, parts[start:end], found[start:end], corrected[start:end])
        judged.append(Judged(claim, list(tested)))
        start = end
    return judged


def count_tested(judged: Sequence[Judged]) -> tuple[int, int]:
    """Number of the paper's claims that are tested, and of all; c and c' are one claim."""
    of_paper = [one for one in judged if one.claim.in_paper]
    tested = {one.claim.letter[0] for one in of_paper if one.verdict != UNTESTED}
    return len(tested), len({one.claim.letter[0] for one in of_paper})


def accuracy(size: int) -> Measure:
    """Top-1 accuracy at a size."""
    return lambda results, variant: results[
        results['variant'].eq(variant) & results['size'].eq(size)
    ]['top1'].tolist()


def change(size: int, base: int) -> Measure:
    """Top-1 accuracy at a size minus that at the training size, seed by seed."""

    def measure(results: pd.DataFrame, variant: str) -> list[float]:
        mine = results[results['variant'] == variant]
        top1 = mine.pivot(index='seed', columns='size', values='top1').reindex(columns=[size, base])
        return (top1[size] - top1[base]).dropna().tolist()

    return measure


def shift_errors(results: pd.DataFrame, variant: str) -> list[float]:
    """Deviation of the features from following a shift by one patch."""
    return results.loc[results['variant'] == variant, 'shift_error'].dropna().tolist()


def best_rates(results: pd.DataFrame, train_size: int) -> pd.DataFrame:
    """Results of each variant at the learning rate that is best on its first seed.

    Of equals, the lowest rate.

    It is chosen by the column ``tuning`` where there is one.
    """
    trials = rate_trials(results, train_size)
    score = 'tuning' if 'tuning' in results else 'top1'
    best = trials.loc[trials.groupby('variant')[score].idxmax()].set_index('variant')['rate_factor']
    return results[results['rate_factor'] == results['variant'].map(best)]


def rate_trials(results: pd.DataFrame, train_size: int) -> pd.DataFrame:
    """Results of each variant's first seed at the training size, by learning rate."""
    trials = results[results['size'] == train_size].sort_values('rate_factor')
    return trials[trials['seed'] == trials.groupby('variant')['seed'].transform('min')]


def claims(train_size: int) -> list[Claim]:
    """The claims of ``claims.yaml``, for classifiers trained at ``train_size`` px."""
    sizes = dict(larger=round(train_size * 12 / 7 / 8) * 8, largest=train_size * 2)

    def comparison(
        label: str,
        left: str,
        right: str | None = None,
        size: str = '',
        measure: str = '',
        **rest: Any,
    ) -> Comparison:
        rest['label'] = label.format(**sizes)
        if measure:
            return Comparison(left, right, shift_errors, SHIFT, family=SHIFT, **rest)
        if size:
            what = f'change of top-1, {train_size} to {sizes[size]} px'
            return Comparison(left, right, change(sizes[size], train_size), what, **rest)
        return Comparison(left, right, accuracy(train_size), f'top-1 at {train_size} px', **rest)

    entries = yaml.safe_load(
        Path(__file__).with_suffix('.yaml').read_text(encoding='utf-8')
    ).items()
    found = []
    for letter, entry in entries:
        parts = [comparison(**part) for part in entry['parts']]
        text, short = entry['text'].format(**sizes), entry['short'].format(**sizes)
        found.append(Claim(letter, text, parts, entry.get('in_paper', True), short))
    return found

"""The paper's claims as differences between variants, each with a confidence interval and a verdict."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import pandas as pd
import yaml

from .variants import VARIANTS

SUPPORTED, REFUTED, UNDECIDED, UNTESTED = 'supported', 'not supported', 'undecided', 'not tested'

Measure = Callable[[pd.DataFrame, str], list[float]]
"""(results, variant) to one number a seed."""


class Difference(NamedTuple):
    """Difference between two means, ``None`` if one was not run, with its 95 % confidence interval (Welch).

    The interval is ``None`` with fewer than two seeds on a side.
    """

    mean: float | None = None
    low: float | None = None
    high: float | None = None

    @classmethod
    def between(cls, left: Sequence[float], right: Sequence[float] | None) -> 'Difference':
        """Mean of ``left`` minus mean of ``right``; ``None`` stands for exactly 0."""
        from scipy.stats import ttest_1samp, ttest_ind

        if not left or right == []:
            return cls()
        middle = mean(left) - mean(right or [0.0])
        samples = [left] if right is None else [left, right]
        if min(map(len, samples)) < 2:
            return cls(middle)
        if not any(map(stdev, samples)):
            return cls(middle, middle, middle)
        test = ttest_1samp(left, 0.0) if right is None else ttest_ind(left, right, equal_var=False)
        return cls(middle, *map(float, test.confidence_interval(0.95)))

    def text(self, digits: int = 2) -> str:
        """``'+2.42 (-1.15 to +5.99)'``."""
        if self.mean is None:
            return 'not run'
        interval = 'one seed' if self.low is None else f'{self.low:+.{digits}f} to {self.high:+.{digits}f}'
        return f'{self.mean:+.{digits}f} ({interval})'


class Comparison(NamedTuple):
    """A testable part of a claim: ``measure`` of ``left`` minus that of ``right`` is greater (or less) than ``bound``.

    ``claims.yaml`` explains the attributes; ``what`` describes ``measure``.
    """

    left: str
    right: str | None
    measure: Measure
    what: str
    greater: bool = True
    bound: float = 0.0
    paper: float | None = None

    def difference(self, results: pd.DataFrame) -> Difference:
        """The difference and its interval."""
        right = None if self.right is None else self.measure(results, self.right)
        return Difference.between(self.measure(results, self.left), right)

    def verdict(self, results: pd.DataFrame) -> str:
        """Verdict from the whole interval: undecided if it contains the bound, untested if there is none."""
        found = self.difference(results)
        if found.low is None or found.high is None:
            return UNTESTED
        if found.low <= self.bound <= found.high:
            return UNDECIDED
        return SUPPORTED if (found.low > self.bound) == self.greater else REFUTED

    def __str__(self) -> str:
        other = '' if self.right is None else f' minus {VARIANTS[self.right].label}'
        sign = '>' if self.greater else '<'
        return f'{VARIANTS[self.left].label}{other}, {self.what}, {sign} {self.bound:g}'


class Claim(NamedTuple):
    """A claim of the paper: its letter in the report, its text, and its parts."""

    letter: str
    text: str
    comparisons: Sequence[Comparison]

    def verdict(self, results: pd.DataFrame) -> str:
        """All parts must be supported; a refuted one refutes the claim, an untested one leaves it untested."""
        verdicts = [comparison.verdict(results) for comparison in self.comparisons]
        return next(verdict for verdict in (REFUTED, UNTESTED, UNDECIDED, SUPPORTED) if verdict in verdicts)


def accuracy(size: int) -> Measure:
    """Top-1 accuracy at a size."""
    return lambda results, variant: results[results['variant'].eq(variant) & results['size'].eq(size)]['top1'].tolist()


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
    """Results of each variant at the learning rate that is best on its first seed; of equals, the lowest rate.

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

    def comparison(left: str, right: str | None = None, size: str = '', measure: str = '', **rest: Any) -> Comparison:
        if measure:
            return Comparison(left, right, shift_errors, 'shift error', **rest)
        if size:
            what = f'change of top-1, {train_size} to {sizes[size]} px'
            return Comparison(left, right, change(sizes[size], train_size), what, **rest)
        return Comparison(left, right, accuracy(train_size), f'top-1 at {train_size} px', **rest)

    entries = yaml.safe_load(Path(__file__).with_suffix('.yaml').read_text(encoding='utf-8')).items()
    return [
        Claim(letter, entry['text'].format(**sizes), [comparison(**part) for part in entry['parts']])
        for letter, entry in entries
    ]

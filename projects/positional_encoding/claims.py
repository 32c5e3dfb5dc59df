"""The paper's claims as differences between variants, each with a confidence interval and a verdict."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import mean, stdev

import pandas as pd

from .variants import VARIANTS

MARGIN = 1.0
"""Percentage points that count as "as good": about the standard error of an accuracy on 2,000 images."""

SUPPORTED, REFUTED, UNDECIDED, UNTESTED = 'supported', 'not supported', 'undecided', 'not tested'

Measure = Callable[[pd.DataFrame, str], list[float]]
"""(results, variant) to one number a seed."""


@dataclass(frozen=True)
class Difference:
    """Difference between two means with its 95 % confidence interval (Welch).

    Attributes:
        mean: ``None`` if one of the two was not run.
        low, high: ``None`` with fewer than two seeds on a side.
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
        low, high = test.confidence_interval(0.95)
        return cls(middle, float(low), float(high))

    def text(self, digits: int = 2) -> str:
        """Mean and interval with so many digits after the point."""
        if self.mean is None:
            return 'not run'
        interval = 'one seed' if self.low is None else f'{self.low:+.{digits}f} to {self.high:+.{digits}f}'
        return f'{self.mean:+.{digits}f} ({interval})'


@dataclass(frozen=True)
class Comparison:
    """A testable part of a claim: ``measure`` of ``left`` minus that of ``right`` is greater (or less) than ``bound``.

    Attributes:
        left, right: Variants. ``right=None``: the number itself is tested.
        measure: Quantity that is compared.
        what: Description of the measure.
        greater: ``True`` if the difference should be greater than ``bound``.
        bound: Limit of the difference.
        paper: The paper's difference, where it has one (ImageNet, DeiT-tiny and CPVT-Ti, 300 epochs).
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


class Claim:
    """A claim of the paper.

    Args:
        letter: Name in the report.
        text: The claim in words.
        comparisons: Its parts. All must be supported; a refuted one refutes the claim, an untested one leaves it
            untested.
    """

    def __init__(self, letter: str, text: str, *comparisons: Comparison) -> None:
        self.letter, self.text, self.comparisons = letter, text, comparisons

    def verdict(self, results: pd.DataFrame) -> str:
        """Verdict on the whole claim."""
        verdicts = [comparison.verdict(results) for comparison in self.comparisons]
        return next(verdict for verdict in (REFUTED, UNTESTED, UNDECIDED, SUPPORTED) if verdict in verdicts)


def accuracy(size: int) -> Measure:
    """Top-1 accuracy at a size."""
    return lambda results, variant: results.loc[
        (results['variant'] == variant) & (results['size'] == size), 'top1'
    ].tolist()


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
    """Results of each variant at the learning rate that is best on its first seed; of equals, the lowest rate."""
    trials = rate_trials(results, train_size)
    best = trials.loc[trials.groupby('variant')['top1'].idxmax()].set_index('variant')['rate_factor']
    return results[results['rate_factor'] == results['variant'].map(best)]


def rate_trials(results: pd.DataFrame, train_size: int) -> pd.DataFrame:
    """Results of each variant's first seed at the training size, by learning rate."""
    trials = results[results['size'] == train_size].sort_values('rate_factor')
    return trials[trials['seed'] == trials.groupby('variant')['seed'].transform('min')]


def claims(train_size: int) -> tuple[Claim, ...]:
    """The claims that are tested."""
    # The paper trains at 224 px and tests at 384 and 448.
    larger, largest = train_size * 12 // 7, train_size * 2

    def more(left: str, right: str, paper: float, bound: float = 0.0, *, greater: bool = True) -> Comparison:
        return Comparison(left, right, accuracy(train_size), f'top-1 at {train_size} px', greater, bound, paper)

    def extrapolation(size: int, *paper: float | None) -> tuple[Comparison, ...]:
        """Tables lose accuracy at a size, and PEG loses less than they."""
        what = f'change of top-1, {train_size} to {size} px'
        pairs = [('learned', None), ('sincos', None), *product(('peg-0', 'peg-0-5'), ('learned', 'sincos'))]
        return tuple(
            Comparison(left, right, change(size, train_size), what, greater=right is not None, paper=figure)
            for (left, right), figure in zip(pairs, paper, strict=True)
        )

    return (
        Claim(
            'a',
            'No encoding is worse than sin-cos, a learned table and PEG',
            more('sincos', 'none', 4.0),
            more('learned', 'none', 4.0),
            more('peg-0', 'none', 4.2),
            more('peg-0-5', 'none', 5.2),
        ),
        Claim(
            'b',
            'PEG is at least as good as a learned table at the training size',
            more('peg-0', 'learned', 0.2, -MARGIN),
        ),
        Claim(
            'c',
            f"At {larger} px (the paper's 384 after 224) learned tables and sin-cos drop, and PEG drops less or gains",
            *extrapolation(larger, -1.0, -1.4, 1.8, 2.2, 1.8, 2.2),
        ),
        Claim(
            "c'",
            f"The same at {largest} px (the paper's 448)",
            *extrapolation(largest, -3.4, None, 2.8, None, 2.6, None),
        ),
        Claim('d', 'PEG at 0-5 beats PEG at 0', more('peg-0-5', 'peg-0', 1.0)),
        Claim(
            'e',
            'PEG at -1 with k = 3 is worse than at 0, and k = 27 closes the gap',
            more('peg-before', 'peg-0', -1.8, greater=False),
            more('peg-before-k27', 'peg-before', 1.9),
            more('peg-before-k27', 'peg-0', 0.1, -MARGIN),
        ),
        Claim('f', 'A frozen random PEG still beats no encoding', more('peg-0-frozen', 'none', 3.1)),
        Claim('g', '1 x 1 convolutions do not help', more('conv1x1-x12', 'none', 0.4, MARGIN, greater=False)),
        Claim(
            'h',
            'Removing the zero padding (with it, the identity) hurts',
            more('peg-0-unpadded', 'peg-0', -1.9, greater=False),
        ),
        Claim('i', 'With PEG, GAP beats the class token', more('peg-0-5-gap', 'peg-0-5', 1.5)),
        Claim(
            'j',
            "PEG's features follow a shift better than a table's",
            # With GAP, where the loss has seen the tokens that are compared.
            Comparison('peg-0-5-gap', 'learned-gap', shift_errors, 'shift error', greater=False),
        ),
    )

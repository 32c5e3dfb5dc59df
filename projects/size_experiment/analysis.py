"""Contrasts, correction and verdicts of the experiment, fixed before its runs."""

import math
from collections.abc import Mapping, Sequence
from statistics import mean, variance
from typing import NamedTuple

import pandas as pd
from positional_encoding.claims import LEVEL, REFUTED, SUPPORTED, UNDECIDED, UNTESTED, holm

from .protocol import ROWS

MARGIN = 2.0
"""Points that the table must be ahead of no encoding to count as trained."""
CONTRASTS = (('peg', 'none'), ('peg', 'table'), ('peg', 'rope'))
LABELS = {'none': 'no encoding', 'table': 'learned table', 'peg': 'PEG at 0-5', 'rope': 'RoPE'}


class Interval(NamedTuple):
    """A difference of means, its 95 % interval, and the two-sided p-value of no difference.

    Uncorrected; the standard deviation is pooled over all rows.
    """

    mean: float
    low: float
    high: float
    p_value: float

    def text(self) -> str:
        """``'+1.2 (-0.3 to +2.7)'``."""
        return f'{self.mean:+.1f} ({self.low:+.1f} to {self.high:+.1f})'


class Contrast(NamedTuple):
    """A row's outcome minus another's; ``p_value`` is corrected over the three contrasts."""

    left: str
    right: str
    difference: Interval
    p_value: float

    @property
    def verdict(self) -> str:
        """Whether the left row keeps more of its accuracy than the right one."""
        if self.p_value >= LEVEL:
            return UNDECIDED
        return SUPPORTED if self.difference.mean > 0 else REFUTED


class Analysis(NamedTuple):
    """Results of one measure.

    ``lead`` is the table's value minus that of no encoding at the training size, ``outcomes`` the
    change of each row with size minus that of no encoding, ``detectable`` the difference that a
    contrast finds with 80 % power.
    """

    lead: float
    outcomes: Mapping[str, Interval]
    contrasts: Sequence[Contrast]
    detectable: float

    @property
    def table_counts(self) -> bool:
        """Whether the table is far enough ahead of no encoding."""
        return self.lead >= MARGIN

    @property
    def verdict(self) -> str:
        """Whether PEG keeps more of its accuracy than the table and than RoPE.

        The verdict of the weaker contrast; untested against a table that does not count.
        """
        if not self.table_counts:
            return UNTESTED
        verdicts = [one.verdict for one in self.contrasts if one.right != 'none']
        for verdict in (REFUTED, UNDECIDED):
            if verdict in verdicts:
                return verdict
        return SUPPORTED


def changes(results: pd.DataFrame, base: float) -> dict[str, list[float]]:
    """Mean over all other sizes minus the value at size ``base``, for each seed of each row."""
    found: dict[str, list[float]] = {}
    for row in ROWS:
        mine = results[results['row'] == row]
        table = mine.pivot(index='seed', columns='size', values='value')
        others = table.drop(columns=base).mean(axis=1)
        found[row] = (others - table[base]).tolist()
    return found


def contrast(groups: Mapping[str, Sequence[float]], left: str, right: str) -> Interval:
    """Difference of two groups' means; the variance is pooled over all groups."""
    from scipy.stats import t

    freedom = sum(len(values) - 1 for values in groups.values())
    squares = sum((len(values) - 1) * variance(values) for values in groups.values())
    difference = mean(groups[left]) - mean(groups[right])
    error = math.sqrt(squares / freedom * (1 / len(groups[left]) + 1 / len(groups[right])))
    if error == 0:
        return Interval(difference, difference, difference, float(difference == 0))
    half = float(t.ppf(0.975, freedom)) * error
    p_value = 2 * float(t.sf(abs(difference) / error, freedom))
    return Interval(difference, difference - half, difference + half, p_value)


def detectable(groups: Mapping[str, Sequence[float]], power: float = 0.8) -> float:
    """Smallest difference of two groups of equal size that one contrast finds, in points.

    The level is the one that Holm's correction asks of the smallest p-value, 5 % / 3. The standard
    deviation is that of the results, so that this is a power after the fact.
    """
    from scipy.stats import t

    freedom = sum(len(values) - 1 for values in groups.values())
    squares = sum((len(values) - 1) * variance(values) for values in groups.values())
    error = math.sqrt(squares / freedom * 2 / len(next(iter(groups.values()))))
    level = LEVEL / len(CONTRASTS)
    return float(t.ppf(1 - level / 2, freedom) + t.ppf(power, freedom)) * error


def analyse(results: pd.DataFrame, base: float, seeds: Sequence[int]) -> Analysis:
    """Outcomes, contrasts and verdict.

    Args:
        results: Columns ``row``, ``seed``, ``size`` and ``value`` in percent.
        base: The training size.
        seeds: That each row must have at each size.

    Raises:
        ValueError: A value is missing, or there twice: fewer seeds are no answer.
    """
    sizes = sorted(set(results['size']))
    expected = sorted((row, seed, size) for row in ROWS for seed in seeds for size in sizes)
    mine = results[results['row'].isin(ROWS)]
    found = sorted(mine[['row', 'seed', 'size']].itertuples(index=False, name=None))
    if found != expected or base not in sizes:
        missing = sorted(set(expected) - set(found))
        raise ValueError(
            f'results: every row needs the seeds {list(seeds)} at every size once, and the size'
            f' {base:g}; missing: {missing[:5]}'
        )
    at_base = mine[mine['size'] == base].groupby('row')['value'].mean()
    groups = changes(mine, base)
    intervals = [contrast(groups, left, right) for left, right in CONTRASTS]
    corrected = holm([interval.p_value for interval in intervals])
    contrasts = [
        Contrast(left, right, interval, float(p_value or 0.0))
        for (left, right), interval, p_value in zip(CONTRASTS, intervals, corrected, strict=True)
    ]
    outcomes = {row: contrast(groups, row, 'none') for row in ROWS[1:]}
    lead = float(at_base['table'] - at_base['none'])
    return Analysis(lead, outcomes, contrasts, detectable(groups))

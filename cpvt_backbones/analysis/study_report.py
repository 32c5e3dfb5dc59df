"""What a study of position encodings says of the paper's claims: tables, verdicts and plots from its CSV alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from .study_rows import Row

MARGIN = 1.0
"""Percentage points that count as "as good": about the standard error of an accuracy on 2,000 images."""

LABELS = {
    'none': 'no encoding',
    'sincos': 'sin-cos',
    'learned': 'learned table',
    'relative': 'relative, K = 8',
    'peg-0': 'PEG at 0',
    'peg-0-5': 'PEG at 0-5',
    'none-gap': 'no encoding, GAP',
    'learned-gap': 'learned table, GAP',
    'peg-0-gap': 'PEG at 0, GAP',
    'peg-0-5-gap': 'PEG at 0-5, GAP',
    'peg-0-5-gap-distilled': 'PEG at 0-5, GAP, distilled',
    'peg-before': 'PEG at -1',
    'peg-before-k27': 'PEG at -1, k = 27',
    'peg-3': 'PEG at 3',
    'peg-0-x4': 'four layers at 0',
    'learned-peg-0': 'learned table + PEG at 0',
    'peg-0-qk': 'PEG at 0, Q and K only',
    'peg-0-frozen': 'PEG at 0, frozen random',
    'conv1x1-x12': 'twelve 1 x 1 layers',
    'peg-0-unpadded': 'PEG at 0, no zero padding',
}
"""Variants as the report names them, in its order."""

SUPPORTED, REFUTED, UNDECIDED, UNTESTED = 'supported', 'not supported', 'undecided', 'not tested'

Measure = Callable[[Sequence[Row], str], list[float]]
"""(rows of a study, variant) to one number a seed."""


@dataclass(frozen=True)
class Difference:
    """Mean of one variant's numbers minus another's, with its 95 % confidence interval (Welch) over seeds.

    Attributes:
        mean: ``None`` when one of them was not run.
        low, high: ``None`` with fewer than two seeds on a side.
    """

    mean: float | None
    low: float | None
    high: float | None

    def __str__(self) -> str:
        return self.text(2)

    def text(self, digits: int) -> str:
        """Mean and interval with so many digits after the point."""
        if self.mean is None:
            return 'not run'
        interval = 'one seed' if self.low is None else f'{self.low:+.{digits}f} to {self.high:+.{digits}f}'
        return f'{self.mean:+.{digits}f} ({interval})'


@dataclass(frozen=True)
class Comparison:
    """One testable part of a claim: ``left - right``, in ``measure``, is greater than ``bound`` (or less).

    Attributes:
        left, right: Variants. ``right=None``: the number itself is tested.
        measure: What is compared.
        greater: Whether the difference should lie above ``bound`` or below.
        what: The measure in words.
        paper: The paper's difference, if it has one (ImageNet, DeiT-tiny and CPVT-Ti, 300 epochs).
    """

    left: str
    right: str | None
    measure: Measure
    what: str
    greater: bool = True
    bound: float = 0.0
    paper: float | None = None

    def difference(self, rows: Sequence[Row]) -> Difference:
        """The difference and its interval."""
        left = self.measure(rows, self.left)
        right = [0.0] if self.right is None else self.measure(rows, self.right)
        return difference(left, right, known=self.right is None)

    def verdict(self, rows: Sequence[Row]) -> str:
        """Supported or not when the whole interval is on one side of the bound; untested without an interval."""
        found = self.difference(rows)
        if found.low is None or found.high is None:
            return UNTESTED
        if found.low > self.bound:
            return SUPPORTED if self.greater else REFUTED
        if found.high < self.bound:
            return REFUTED if self.greater else SUPPORTED
        return UNDECIDED

    def __str__(self) -> str:
        other = '' if self.right is None else f' minus {LABELS[self.right]}'
        sign = '>' if self.greater else '<'
        return f'{LABELS[self.left]}{other}, {self.what}, {sign} {self.bound:g}'


@dataclass(frozen=True)
class Claim:
    """A claim of the paper and the comparisons that it stands on.

    Attributes:
        letter: Its name in the report.
        text: What is claimed.
        comparisons: All must hold for the claim to; one that fails refutes it, one that was not run leaves it untested.
    """

    letter: str
    text: str
    comparisons: tuple[Comparison, ...]

    def verdict(self, rows: Sequence[Row]) -> str:
        """Of the whole claim."""
        verdicts = [comparison.verdict(rows) for comparison in self.comparisons]
        return next(verdict for verdict in (REFUTED, UNTESTED, UNDECIDED, SUPPORTED) if verdict in verdicts)


def difference(left: Sequence[float], right: Sequence[float], *, known: bool = False) -> Difference:
    """Mean of ``left`` minus mean of ``right``; ``known``: ``right`` is one exact number."""
    if not left or not right:
        return Difference(None, None, None)
    middle = mean(left) - mean(right)
    if len(left) < 2 or (len(right) < 2 and not known):
        return Difference(middle, None, None)
    from scipy.stats import ttest_1samp, ttest_ind

    if stdev(left) == 0 and (known or stdev(right) == 0):
        return Difference(middle, middle, middle)
    test = ttest_1samp(left, right[0]) if known else ttest_ind(left, right, equal_var=False)
    low, high = test.confidence_interval(0.95)
    return Difference(middle, float(low), float(high))


def accuracy(size: int) -> Measure:
    """Top-1 at a size."""
    return lambda rows, variant: [row.top1 for row in rows if (row.variant, row.size) == (variant, size)]


def change(size: int, base: int) -> Measure:
    """Top-1 at a size minus that at the training size, seed by seed."""

    def measure(rows: Sequence[Row], variant: str) -> list[float]:
        mine = {(row.seed, row.size): row.top1 for row in rows if row.variant == variant}
        return [mine[seed, size] - mine[seed, base] for seed, at in mine if at == base and (seed, size) in mine]

    return measure


def shift_error(rows: Sequence[Row], variant: str) -> list[float]:
    """How far the features fail to follow a shift by one patch."""
    return [row.shift_error for row in rows if row.variant == variant and row.shift_error is not None]


def claims(train_size: int) -> tuple[Claim, ...]:
    """The claims that the study is about."""
    at = f'top-1 at {train_size} px'
    # The paper trains at 224 px and tests at 384 and 448.
    larger, largest = train_size * 12 // 7, train_size * 2

    def more(left: str, right: str, paper: float, bound: float = 0.0, *, greater: bool = True) -> Comparison:
        return Comparison(left, right, accuracy(train_size), at, greater, bound, paper)

    def grows(left: str, right: str | None, size: int, paper: float | None, *, greater: bool = True) -> Comparison:
        what = f'change of top-1, {train_size} to {size} px'
        return Comparison(left, right, change(size, train_size), what, greater, paper=paper)

    return (
        Claim(
            'a',
            'No encoding is worse than sin-cos, a learned table and PEG',
            (
                more('sincos', 'none', 4.0),
                more('learned', 'none', 4.0),
                more('peg-0', 'none', 4.2),
                more('peg-0-5', 'none', 5.2),
            ),
        ),
        Claim(
            'b',
            'PEG is at least as good as a learned table at the training size',
            (more('peg-0', 'learned', 0.2, -MARGIN),),
        ),
        Claim(
            'c',
            f"At {larger} px (the paper's 384 after 224) learned tables and sin-cos drop, and PEG drops less or gains",
            (
                grows('learned', None, larger, -1.0, greater=False),
                grows('sincos', None, larger, -1.4, greater=False),
                grows('peg-0', 'learned', larger, 1.8),
                grows('peg-0', 'sincos', larger, 2.2),
                grows('peg-0-5', 'learned', larger, 1.8),
                grows('peg-0-5', 'sincos', larger, 2.2),
            ),
        ),
        Claim(
            "c'",
            f"The same at {largest} px (the paper's 448)",
            (
                grows('learned', None, largest, -3.4, greater=False),
                grows('sincos', None, largest, None, greater=False),
                grows('peg-0', 'learned', largest, 2.8),
                grows('peg-0', 'sincos', largest, None),
                grows('peg-0-5', 'learned', largest, 2.6),
                grows('peg-0-5', 'sincos', largest, None),
            ),
        ),
        Claim('d', 'PEG at 0-5 beats PEG at 0', (more('peg-0-5', 'peg-0', 1.0),)),
        Claim(
            'e',
            'PEG at -1 with k = 3 is worse than at 0, and k = 27 closes the gap',
            (
                more('peg-before', 'peg-0', -1.8, greater=False),
                more('peg-before-k27', 'peg-before', 1.9),
                more('peg-before-k27', 'peg-0', 0.1, -MARGIN),
            ),
        ),
        Claim('f', 'A frozen random PEG still beats no encoding', (more('peg-0-frozen', 'none', 3.1),)),
        Claim('g', '1 x 1 convolutions do not help', (more('conv1x1-x12', 'none', 0.4, MARGIN, greater=False),)),
        Claim(
            'h',
            'Removing the zero padding (with it, the identity) hurts',
            (more('peg-0-unpadded', 'peg-0', -1.9, greater=False),),
        ),
        Claim('i', 'With PEG, GAP beats the class token', (more('peg-0-5-gap', 'peg-0-5', 1.5),)),
        Claim(
            'j',
            "PEG's features follow a shift better than a table's",
            # With GAP, where the loss has seen the tokens that are compared.
            (Comparison('peg-0-5-gap', 'learned-gap', shift_error, 'shift error', greater=False),),
        ),
    )


def chosen(rows: Sequence[Row], train_size: int) -> list[Row]:
    """The rows that count: of a variant run at several learning rates, those of its best on the first seed."""
    best: dict[str, float] = {}
    for variant in {row.variant for row in rows}:
        mine = [row for row in rows if row.variant == variant and row.size == train_size]
        first = min(row.seed for row in mine)
        tried = sorted((row for row in mine if row.seed == first), key=lambda row: row.rate_factor)
        best[variant] = max(tried, key=lambda row: row.top1).rate_factor
    return [row for row in rows if row.rate_factor == best[row.variant]]


def summary_table(rows: Sequence[Row], train_size: int) -> str:
    """Top-1 of every variant at every size: mean, standard deviation over seeds, number of seeds."""
    kept = chosen(rows, train_size)
    sizes = sorted({row.size for row in kept})
    head = ['encoding', 'seeds', *(f'{size} px' for size in sizes), 'shift error']
    lines = ['| ' + ' | '.join(head) + ' |', '| --- |' + ' ---: |' * (len(head) - 1)]
    for variant, label in LABELS.items():
        errors = shift_error(kept, variant)
        cells = [accuracy(size)(kept, variant) for size in sizes]
        if cells[0]:
            shown = [spread(cell, 1) for cell in cells] + [spread(errors, 3)]
            lines.append('| ' + ' | '.join([label, str(len(cells[0])), *shown]) + ' |')
    return '\n'.join(lines)


def spread(values: Sequence[float], digits: int) -> str:
    """Mean and standard deviation."""
    if not values:
        return ''
    deviation = f' ± {stdev(values):.{digits}f}' if len(values) > 1 else ''
    return f'{mean(values):.{digits}f}{deviation}'


def claims_table(rows: Sequence[Row], train_size: int) -> str:
    """Every claim, its comparisons and its verdict."""
    kept = chosen(rows, train_size)
    lines = [
        "| | claim, and what it was taken to mean | difference (95 % interval) | the paper's | verdict |",
        '| --- | --- | --- | ---: | --- |',
    ]
    for claim in claims(train_size):
        lines.append(f'| **{claim.letter}** | **{claim.text}** | | | **{claim.verdict(kept)}** |')
        for part in claim.comparisons:
            paper = '' if part.paper is None else f'{part.paper:+.1f}'
            lines.append(f'| | {part} | {part.difference(kept)} | {paper} | {part.verdict(kept)} |')
    return '\n'.join(lines)


def rates_table(rows: Sequence[Row], train_size: int) -> str:
    """Top-1 at the training size, on the first seed, of the variants that had a choice of learning rates."""
    lines = ['| encoding | learning rate, relative | top-1 |', '| --- | ---: | ---: |']
    for variant in LABELS:
        mine = [row for row in rows if (row.variant, row.size) == (variant, train_size)]
        tried = {row.rate_factor: row.top1 for row in mine if row.seed == min(row.seed for row in mine)}
        for rate, top1 in sorted(tried.items()) if len(tried) > 1 else ():
            lines.append(f'| {LABELS[variant]} | {rate:g} | {top1:.1f} |')
    return '\n'.join(lines) if len(lines) > 2 else ''


def report(rows: Sequence[Row], train_size: int, *, pictures: str = '.') -> str:
    """The whole report as Markdown; ``pictures`` is the folder of the plots, relative to where the report stands."""
    rates = rates_table(rows, train_size)
    parts = [
        f'Top-1 (%), mean ± standard deviation over seeds; trained at {train_size} px for {rows[0].epochs} epochs.',
        summary_table(rows, train_size),
        f'![Top-1 against image size]({pictures}/sizes.png)',
        f'![Top-1 of every encoding at {train_size} px]({pictures}/variants.png)',
        f'The learning rates that were tried, first seed:\n\n{rates}' if rates else '',
        claims_table(rows, train_size),
    ]
    return '\n\n'.join(part for part in parts if part)


def draw_sizes(rows: Sequence[Row], path: Path, train_size: int) -> None:
    """Top-1 against image size: a line a variant (main rows), its seeds as a band."""
    axis, save = _axis(8, 4.4)
    kept = chosen(rows, train_size)
    sizes = sorted({row.size for row in kept})
    for variant in ('none', 'sincos', 'learned', 'peg-0', 'peg-0-5', 'peg-0-5-gap'):
        cells = [accuracy(size)(kept, variant) for size in sizes]
        if not cells[0]:
            continue
        style = '-' if variant.startswith('peg') else '--'
        (line,) = axis.plot(sizes, [mean(cell) for cell in cells], style, marker='o', ms=4, label=LABELS[variant])
        axis.fill_between(sizes, [min(c) for c in cells], [max(c) for c in cells], color=line.get_color(), alpha=0.15)
    axis.set_xticks(sizes)
    axis.set_xlabel(f'side of the test images (px); trained at {train_size} px')
    axis.set_ylabel('top-1 (%), mean and range over seeds')
    axis.legend(frameon=False, loc='center left', bbox_to_anchor=(1, 0.5))
    save(path)


def draw_variants(rows: Sequence[Row], path: Path, train_size: int) -> None:
    """Top-1 at the training size: mean and range over seeds, every seed a dot."""
    kept = chosen(rows, train_size)
    shown = {v: accuracy(train_size)(kept, v) for v in LABELS if accuracy(train_size)(kept, v)}
    ordered = sorted(shown, key=lambda variant: mean(shown[variant]))
    axis, save = _axis(6.4, 0.9 + 0.28 * len(ordered))
    for position, variant in enumerate(ordered):
        values, color = shown[variant], 'tab:blue' if 'peg' in variant else '0.5'
        axis.plot([min(values), max(values)], [position] * 2, '-', color=color, lw=2)
        axis.plot(values, [position] * len(values), '.', color=color, ms=6)
        axis.plot(mean(values), position, '|', color='k', ms=12)
    axis.set_yticks(range(len(ordered)), [LABELS[variant] for variant in ordered])
    axis.grid(axis='x', color='0.9')
    axis.set_xlabel(f'top-1 at {train_size} px (%); dots: seeds, stroke: mean')
    save(path)


def _axis(width: float, height: float):  # type: ignore[no-untyped-def]
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(width, height))
    axis.spines[['top', 'right']].set_visible(False)

    def save(path: Path) -> None:
        figure.tight_layout()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
        plt.close(figure)

    return axis, save

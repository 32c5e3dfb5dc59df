"""The claims as a forest plot: a difference for each, its interval, and the paper's value."""

import textwrap
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks import plots

from .claims import REFUTED, SHIFT, SUPPORTED, UNDECIDED, UNTESTED, Judged, Tested

VERDICTS = (SUPPORTED, REFUTED, UNDECIDED)
"""In the order of the plot."""

ROW = 0.36  # inches: two lines of a name
LETTERS = 27  # of a line
CLAIMED: dict[str, Any] = dict(color=plots.GREY, alpha=0.2, linewidth=0)
"""Style of the side of the bound that the claim predicts."""


def draw_claims(judged: Sequence[Judged], path: Path) -> None:
    """Draw the weakest comparison of every tested claim, if there is a claim: points of top-1
    first, the shift error below. The claims stand under their verdicts.

    Args:
        judged: Claims with their comparisons.
        path: PNG to write.
    """
    tested = sort_by_verdict([one for one in judged if one.verdict != UNTESTED])
    points = [one for one in tested if one.weakest.comparison.family != SHIFT]
    shifts = [one for one in tested if one.weakest.comparison.family == SHIFT]
    panels = [
        (points, 'difference of top-1 accuracy (points)'),
        (shifts, 'difference of the shift error'),
    ]
    panels = [(claims, title) for claims, title in panels if claims]
    if not panels:
        return
    rows = tuple(len(list_rows(claims)) for claims, _ in panels)
    figure, axes = plots.new_figure(0.9 + 0.4 * len(rows) + ROW * sum(rows), ratios=rows)
    for axis, (claims, title) in zip(axes, panels, strict=True):
        draw_panel(axis, claims)
        axis.set_xlabel(title)
    plots.add_legend(figure, legend_handles(), columns=3)
    plots.save_figure(figure, path)


def sort_by_verdict(judged: Sequence[Judged]) -> list[Judged]:
    """Supported claims first, then those that are not, undecided and untested ones."""
    order = (*VERDICTS, UNTESTED)
    return sorted(judged, key=lambda one: order.index(one.verdict))


def list_rows(claims: Sequence[Judged]) -> list[str | Judged]:
    """Rows of a panel: each verdict, and its claims below."""
    return [
        row
        for verdict, members in groupby(claims, key=lambda one: one.verdict)
        for row in (verdict, *members)
    ]


def draw_panel(axis: Any, claims: Sequence[Judged]) -> None:
    """A heading for each verdict, and a line for each of its claims."""
    rows = list_rows(claims)
    tested = [(place, one) for place, one in enumerate(rows) if isinstance(one, Judged)]
    for place, one in tested:
        axis.plot([0, 0], [place - 0.45, place + 0.45], color=plots.GREY, linewidth=0.8, alpha=0.6)
        draw_interval(axis, place, one.weakest)
    left, right = axis.get_xlim()
    for place, one in tested:
        comparison = one.weakest.comparison
        end = right if comparison.greater else left
        axis.barh(place, end - comparison.bound, left=comparison.bound, height=0.6, **CLAIMED)
    axis.set_xlim(left, right)
    names = [
        textwrap.fill(row.claim.name, LETTERS) if isinstance(row, Judged) else row.capitalize()
        for row in rows
    ]
    axis.set_yticks(range(len(names)), names)
    for label, row in zip(axis.get_yticklabels(), rows, strict=True):
        if not isinstance(row, Judged):
            label.set_fontweight('bold')
    axis.tick_params(axis='y', length=0)
    axis.locator_params(axis='x', nbins=5)
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.spines['left'].set_visible(False)
    plots.add_grid(axis, 'x')


def draw_interval(axis: Any, row: int, part: Tested) -> None:
    """Interval and mean in the colour of the verdict, and the paper's difference."""
    difference, paper = part.difference, part.comparison.paper
    color = plots.VERDICTS[part.verdict]
    axis.plot([difference.low, difference.high], [row, row], color=color, linewidth=2)
    axis.plot(difference.mean, row, 'o', color=color, markersize=5)
    if paper is not None:
        axis.plot(paper, row, 'D', mfc='none', mec=plots.GREY, ms=5)


def legend_handles() -> list[Any]:
    """Entries of the legend: the verdicts, the paper's difference, the claimed side."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    verdicts = [
        Line2D([], [], label=name, color=color, marker='o', linewidth=2)
        for name, color in plots.VERDICTS.items()
    ]
    paper = Line2D([], [], label="the paper's", marker='D', markerfacecolor='none')
    paper.set(linestyle='none', color=plots.GREY)
    return [*verdicts, paper, Patch(label='what the claim says', **CLAIMED)]

"""The claims as a forest plot: a difference for each, its interval, and the paper's value."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import plots

from .claims import SHIFT, UNTESTED, Judged, Tested

ROW = 0.2  # inches
CLAIMED: dict[str, Any] = dict(color=plots.GREY, alpha=0.2, linewidth=0)
"""Style of the side of the bound that the claim predicts."""


def draw_claims(judged: Sequence[Judged], path: Path) -> None:
    """Draw the weakest comparison of every tested claim, if there is a claim: points of top-1
    first, the shift error below.

    Args:
        judged: Claims with their comparisons.
        path: PNG to write.
    """
    tested = [one for one in judged if one.verdict != UNTESTED]
    points = [one for one in tested if one.weakest.comparison.family != SHIFT]
    shifts = [one for one in tested if one.weakest.comparison.family == SHIFT]
    panels = [
        (points, 'difference of top-1 accuracy (points)'),
        (shifts, 'difference of the shift error'),
    ]
    panels = [(claims, title) for claims, title in panels if claims]
    if not panels:
        return
    rows = tuple(2 * len(claims) for claims, _ in panels)
    figure, axes = plots.new_figure(1.2 + 0.4 * len(rows) + ROW * sum(rows), ratios=rows)
    for axis, (claims, title) in zip(axes, panels, strict=True):
        draw_panel(axis, claims)
        axis.set_xlabel(title)
    plots.add_legend(figure, legend_handles(), columns=3)
    plots.save_figure(figure, path)


def draw_panel(axis: Any, claims: Sequence[Judged]) -> None:
    """A heading for each claim, and its weakest comparison below."""
    for index, one in enumerate(claims):
        heading = axis.text(
            0.01,
            2 * index,
            f'{one.claim.short}: {one.verdict}',
            transform=axis.get_yaxis_transform(),
            color=plots.VERDICTS[one.verdict],
            fontsize=plots.TEXT,
            fontweight='bold',
            verticalalignment='center',
        )
        heading.set_in_layout(False)  # it is shorter than the axis is wide
        draw_interval(axis, 2 * index + 1, one.weakest)
    axis.axvline(0, color=plots.GREY, linewidth=0.8, alpha=0.5)
    left, right = axis.get_xlim()
    for index, one in enumerate(claims):
        comparison = one.weakest.comparison
        end = right if comparison.greater else left
        axis.barh(
            2 * index + 1, end - comparison.bound, left=comparison.bound, height=0.8, **CLAIMED
        )
    axis.set_xlim(left, right)
    names = [name for one in claims for name in (one.claim.letter, one.weakest.comparison.label)]
    axis.set_yticks(range(len(names)), names)
    axis.tick_params(axis='y', length=0)
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

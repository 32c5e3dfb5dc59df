"""The claims as a forest plot: each difference with its interval, and the paper's value."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import plots

from .claims import SHIFT, UNTESTED, Judged, Tested

ROW = 0.185  # inches


def draw_claims(judged: Sequence[Judged], path: Path) -> None:
    """Draw every tested claim, if there is one: points of top-1 first, the shift error below.

    Args:
        judged: Claims with their comparisons.
        path: PNG to write.
    """
    tested = [one for one in judged if one.verdict != UNTESTED]
    points = [one for one in tested if one.parts[0].comparison.family != SHIFT]
    shifts = [one for one in tested if one.parts[0].comparison.family == SHIFT]
    panels = [
        (points, 'difference of top-1 accuracy (points)'),
        (shifts, 'difference of the shift error'),
    ]
    panels = [(claims, title) for claims, title in panels if claims]
    if not panels:
        return
    rows = tuple(sum(1 + len(one.parts) for one in claims) for claims, _ in panels)
    figure, axes = plots.new_figure(1.2 + 0.4 * len(rows) + ROW * sum(rows), ratios=rows)
    for axis, (claims, title) in zip(axes, panels, strict=True):
        draw_panel(axis, claims)
        axis.set_xlabel(title)
    plots.add_legend(figure, legend_handles(), columns=3)
    plots.save_figure(figure, path)


def draw_panel(axis: Any, claims: Sequence[Judged]) -> None:
    """A heading for each claim, and a row for each of its comparisons."""
    names: list[str] = []
    for one in claims:
        heading = axis.text(
            0.01,
            len(names),
            f'{one.claim.short}: {one.verdict}',
            transform=axis.get_yaxis_transform(),
            color=plots.VERDICTS[one.verdict],
            fontsize=plots.TEXT,
            fontweight='bold',
            verticalalignment='center',
        )
        heading.set_in_layout(False)  # it is shorter than the axis is wide
        names.append(one.claim.letter)
        for part in one.parts:
            draw_row(axis, len(names), part)
            names.append(part.comparison.label)
    axis.set_yticks(range(len(names)), names)
    axis.tick_params(axis='y', length=0)
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.axvline(0, color=plots.GREY, linewidth=0.8, alpha=0.5)
    axis.spines['left'].set_visible(False)
    plots.add_grid(axis, 'x')


def draw_row(axis: Any, row: int, part: Tested) -> None:
    """Interval and mean in the colour of the verdict; the bound, and the paper's difference."""
    difference, comparison = part.difference, part.comparison
    color = plots.VERDICTS[part.verdict]
    axis.plot([difference.low, difference.high], [row, row], color=color, linewidth=2)
    axis.plot(difference.mean, row, 'o', color=color, markersize=5)
    axis.plot(comparison.bound, row, '>' if comparison.greater else '<', color=plots.GREY, ms=3.5)
    if comparison.paper is not None:
        axis.plot(comparison.paper, row, 'D', mfc='none', mec=plots.GREY, ms=5)


def legend_handles() -> list[Any]:
    """Entries of the legend: the verdicts, the paper's difference, the bound."""
    from matplotlib.lines import Line2D

    def entry(label: str, **style: Any) -> Any:
        return Line2D([], [], label=label, **style)

    verdicts = [
        entry(name, color=color, marker='o', linewidth=2) for name, color in plots.VERDICTS.items()
    ]
    grey = dict(linestyle='none', color=plots.GREY)
    paper = entry("the paper's", marker='D', markerfacecolor='none', **grey)
    return [*verdicts, paper, entry('claimed side', marker='>', **grey)]

"""Colours, sizes and backgrounds of the plots in docs.

A plot has no background of its own, so that one file serves the light and the dark theme. Text has
a contrast of at least 4.5 on white; every other colour has 3 on white and on the dark theme. No
grey has 4.5 on both, so ``docs/site/site.css`` brightens the plots in the dark theme.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

GREY = '#737373'
"""Text and axes: a contrast of 4.7 on white, and brightened 5.8 on the dark theme."""

ENCODINGS = {
    'none': '#8a8a8a',
    'sincos': '#c2588f',
    'table': '#c77700',
    'peg': '#2f86d1',
    'rope': '#8a63c9',
    'table+peg': '#8f8400',
    'peg+rope': '#12908c',
    'other': '#a5694f',
}
"""Colour of each position encoding, in every plot."""

PACKAGES = {'this package': ENCODINGS['peg'], 'other': ENCODINGS['none']}
"""Colour of the bars of this package, and of all others."""

VERDICTS = {
    'supported': '#1f9a63',
    'not supported': '#d9504c',
    'undecided': '#8a8a8a',
}
"""Colour of each verdict on a claim."""

WIDTH = 5.2
"""Inches of every plot: 9 points are 8 px on a phone, and 17 px where the site shows it widest."""

NARROW = 3.65
"""Inches of a plot for phones, where its text has 12 px."""

TEXT = 9  # points


def new_figure(height: float, *, ratios: tuple[float, ...] = (1,)) -> tuple[Any, list[Any]]:
    """An empty figure with panels one above the other.

    Args:
        height: Inches.
        ratios: Heights of the panels, relative to each other.

    Returns:
        The figure and the axes of its panels, from the top.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout='constrained')
    axes = figure.subplots(len(ratios), 1, squeeze=False, height_ratios=ratios)[:, 0]
    for axis in axes:
        axis.tick_params(colors=GREY, labelcolor=GREY, labelsize=TEXT)
        axis.spines[['top', 'right']].set_visible(False)
        axis.spines[['left', 'bottom']].set_color(GREY)
        for label in (axis.xaxis.label, axis.yaxis.label):
            label.set(color=GREY, fontsize=TEXT)
    return figure, list(axes)


def write_note(axis: Any, text: str, x: float = 0.98, y: float = 0.9) -> None:
    """Write a line into a panel that ends at (``x``, ``y``), shares of its width and height."""
    style = dict(color=GREY, fontsize=TEXT, horizontalalignment='right')
    axis.text(x, y, text, transform=axis.transAxes, **style)


def add_grid(axis: Any, which: str = 'both') -> None:
    """Draw thin lines at the ticks of ``which`` axis, behind everything."""
    axis.grid(axis=which, color=GREY, alpha=0.25, linewidth=0.6)
    axis.set_axisbelow(True)


def label_lines(axis: Any) -> None:
    """Write each line's label right of its last point, in its order, clear of the others.

    Call it when all lines are drawn. It takes the place of a legend.
    """
    lines = sorted(axis.get_legend_handles_labels()[0], key=lambda line: line.get_ydata()[-1])
    low, high = axis.get_ylim()
    gap = 0.062 * (high - low)  # a line of text in a panel of 3 inches
    heights = [float(line.get_ydata()[-1]) for line in lines]
    for _ in range(100):  # push neighbours apart
        for below, above in pairwise(range(len(lines))):
            missing = max(0, gap - (heights[above] - heights[below]))
            heights[below] -= missing / 2
            heights[above] += missing / 2
    for line, height in zip(lines, heights, strict=True):
        axis.annotate(
            line.get_label(),
            (line.get_xdata()[-1], line.get_ydata()[-1]),
            (1.02, height),
            textcoords=('axes fraction', 'data'),
            color=GREY,
            fontsize=TEXT,
            va='center',
            arrowprops=dict(arrowstyle='-', color=line.get_color(), linewidth=1.2),
        )


def add_legend(figure: Any, handles: list[Any] | None = None, columns: int = 2) -> None:
    """Put a legend above all panels; ``handles`` default to the labelled lines of the first."""
    figure.legend(
        handles=handles or figure.axes[0].get_legend_handles_labels()[0],
        frameon=False,
        fontsize=TEXT,
        labelcolor=GREY,
        ncols=columns,
        loc='outside upper left',
        columnspacing=1.4,
    )


def save_figure(figure: Any, path: Path) -> None:
    """Write a PNG without a background."""
    figure.savefig(path, dpi=200, transparent=True, metadata={'Software': None})


def save_narrow(figure: Any, path: Path) -> None:
    """Write the plot at the width of a phone, beside ``path``: ``cpu_narrow.png``.

    The site shows it on phones.
    """
    width = figure.get_figwidth()
    figure.set_figwidth(NARROW)
    save_figure(figure, path.with_stem(f'{path.stem}_narrow'))
    figure.set_figwidth(width)

"""Colours, sizes and backgrounds of the plots in docs.

A plot has no background of its own, so that one file serves the light and the dark theme. Text has
a contrast of at least 4.5 on white; every other colour has 3 on white and on the dark theme. No
grey has 4.5 on both, so ``docs/site/site.css`` brightens the plots in the dark theme.
"""

from pathlib import Path
from typing import Any

GREY = '#737373'
"""Text and axes: a contrast of 4.7 on white, and brightened 5.8 on the dark theme."""

PACKAGES = {'this package': '#2f86d1', 'other': '#8a8a8a'}
"""Colour of the bars of this package, and of all others."""

WIDTH = 5.2
"""Inches of every plot: 9 points are 8 px on a phone, and 17 px where the site shows it widest."""

TEXT = 9  # points


def new_figure(height: float) -> tuple[Any, Any]:
    """An empty figure of a height in inches, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout='constrained')
    axis = figure.subplots()
    axis.tick_params(colors=GREY, labelcolor=GREY, labelsize=TEXT)
    axis.spines[['top', 'right']].set_visible(False)
    axis.spines[['left', 'bottom']].set_color(GREY)
    for label in (axis.xaxis.label, axis.yaxis.label):
        label.set(color=GREY, fontsize=TEXT)
    return figure, axis


def save_figure(figure: Any, path: Path) -> None:
    """Write a PNG without a background."""
    figure.savefig(path, dpi=200, transparent=True, metadata={'Software': None})

"""The plot of a speed comparison."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from .benchmark_rows import Row, by_group, speeds


def draw_speed(rows: Sequence[Row], path: Path) -> None:
    """Bars of images a second relative to the first model of each group, one panel a group.

    A bar is the median over the rounds, a line goes from the lowest to the highest.

    Args:
        rows: Rows of any groups and rounds.
        path: The picture to write.
    """
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot as plt

    groups = {group: speeds(members) for group, members in by_group(rows).items()}
    heights = [len(ratios) + 1.2 for ratios in groups.values()]
    figure, axes = plt.subplots(
        len(groups), 1, figsize=(8, 0.32 * sum(heights) + 0.6), height_ratios=heights, squeeze=False
    )
    for axis, (group, ratios) in zip(axes[:, 0], groups.items(), strict=True):
        middle = [median(values) for values in ratios.values()]
        low, high = ([edge(values) for values in ratios.values()] for edge in (min, max))
        errors = [
            [m - edge for m, edge in zip(middle, low, strict=True)],
            [edge - m for m, edge in zip(middle, high, strict=True)],
        ]
        colors = ['0.7' if model.startswith(('timm', 'mm', 'algorithm')) else 'tab:blue' for model in ratios]
        positions = range(len(ratios), 0, -1)
        axis.barh(positions, middle, xerr=errors, color=colors, ecolor='0.3', height=0.7)
        for position, value, edge in zip(positions, middle, high, strict=True):
            axis.text(edge, position, f'  {value:.2f}', va='center', fontsize=7)
        axis.set_title(str(group), fontsize=8, loc='left')
        axis.set_yticks(positions, list(ratios))
        axis.set_xlim(0, max(high) * 1.15)
        axis.tick_params(labelsize=7)
        axis.tick_params(axis='y', length=0)
        axis.spines[['top', 'right', 'left']].set_visible(False)
    axes[-1, 0].set_xlabel(
        'images a second, relative to the first of each group (bars: median of the rounds, lines: lowest to highest)',
        fontsize=8,
    )
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)

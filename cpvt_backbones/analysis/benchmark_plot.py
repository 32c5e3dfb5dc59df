"""The plot of a speed comparison."""

from collections.abc import Sequence
from pathlib import Path

from .benchmark import Group, Row


def draw_speed(rows: Sequence[Row], path: Path) -> None:
    """Bars of images a second relative to the first model of each group, with their quartiles; one panel a group.

    Args:
        rows: Rows of any groups, one for each model and group.
        path: The picture to write.
    """
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot as plt

    groups: dict[Group, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    heights = [len(members) + 1.2 for members in groups.values()]
    figure, axes = plt.subplots(
        len(groups), 1, figsize=(8, 0.32 * sum(heights) + 0.6), height_ratios=heights, squeeze=False
    )
    for axis, (group, members) in zip(axes[:, 0], groups.items(), strict=True):
        base = members[0].seconds
        speeds = [base / row.seconds for row in members]
        errors = [
            [speed - base / row.quartile3 for speed, row in zip(speeds, members, strict=True)],
            [base / row.quartile1 - speed for speed, row in zip(speeds, members, strict=True)],
        ]
        ours = ['0.7' if row.model.startswith(('timm', 'mm', 'algorithm')) else 'tab:blue' for row in members]
        positions = range(len(members), 0, -1)
        axis.barh(positions, speeds, xerr=errors, color=ours, ecolor='0.3', height=0.7)
        for position, speed, row in zip(positions, speeds, members, strict=True):
            axis.text(base / row.quartile1, position, f'  {speed:.2f}', va='center', fontsize=7)
        axis.set_title(str(group), fontsize=8, loc='left')
        axis.set_yticks(positions, [row.model for row in members])
        axis.set_xlim(0, max(base / row.quartile1 for row in members) * 1.15)
        axis.tick_params(labelsize=7)
        axis.tick_params(axis='y', length=0)
        axis.spines[['top', 'right', 'left']].set_visible(False)
    axes[-1, 0].set_xlabel(
        'images a second, relative to the first of each group (bars: median, lines: quartiles)', fontsize=8
    )
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)

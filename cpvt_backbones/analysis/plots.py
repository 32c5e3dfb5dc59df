"""Plots of the analysis tools, drawn from their CSV files."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from .resolution import main_metric, read_rows
from .tables import group_by, read_table

_COLUMN_INCHES = 2.2


@contextmanager
def panels(path: Path, rows: int, columns: int, *, size: tuple[float, float]) -> Iterator[tuple[Any, np.ndarray]]:
    """Context of a figure with (rows, columns) axes of ``size`` inches each, saved to ``path`` at the end."""
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        rows, columns, figsize=(size[0] * columns, size[1] * rows), squeeze=False, layout='constrained'
    )
    try:
        yield figure, axes
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    finally:
        plt.close(figure)


def _whole_ticks(axis: Any, values: Sequence[float]) -> None:
    """Set a logarithmic x axis with one tick a value, without overlapping ticks."""
    axis.set_xscale('log', base=2)
    chosen: list[float] = []
    for value in sorted(set(values)):
        if not chosen or value > 1.12 * chosen[-1]:
            chosen.append(value)
    axis.set_xticks(chosen, [f'{value:g}' for value in chosen], fontsize=7)
    axis.minorticks_off()


def plain_axis(axis: Any, title: str, x: str) -> None:
    """Set title, x label and grid, and remove the frame."""
    axis.set_title(title, fontsize=9, loc='left')
    axis.set_xlabel(x, fontsize=8)
    axis.tick_params(labelsize=7)
    axis.spines[['top', 'right']].set_visible(False)
    axis.grid(alpha=0.25)


def draw_sweep(table: Path, path: Path, *, metric: str | None = None) -> None:
    """Plot metric, seconds an image and peak memory against the image size, one line a model.

    Args:
        table: CSV of a resolution sweep.
        path: The plot to write.
        metric: Column of the CSV; ``None``: see :func:`~cpvt_backbones.analysis.resolution.main_metric`.
    """
    rows = read_rows(table)
    metric = main_metric(rows) if metric is None else metric
    if not any(metric in row.metrics for row in rows):
        raise ValueError(f'metric must be a numeric column of {str(table)!r}, got {metric!r}')
    with panels(path, 1, 3, size=(3.9, 3.2)) as (_, axes):
        figures = (
            (metric, lambda row: row.metrics.get(metric, np.nan)),
            ('seconds an image', lambda row: row.seconds),
            ('peak memory of the forward call, MiB', lambda row: row.peak_mib),
        )
        for axis, (title, figure) in zip(axes[0], figures, strict=True):
            for name in dict.fromkeys(row.model for row in rows):
                own = sorted((row for row in rows if row.model == name), key=lambda row: row.height * row.width)
                sides = [round((row.height * row.width) ** 0.5) for row in own]
                axis.plot(sides, [figure(row) for row in own], marker='o', markersize=4, label=name)
                for side, row in zip(sides, own, strict=True):
                    if row.size == '1':  # ring: the config's test scale
                        axis.plot(side, figure(row), 'o', markersize=9, markerfacecolor='none', color='0.3')
            _whole_ticks(axis, [round((row.height * row.width) ** 0.5) for row in rows])
            plain_axis(axis, title, "px, root of the area (ring: the config's scale)")
            axis.set_ylim(bottom=0)
        axes[0, 0].legend(fontsize=7)


def draw_equivariance(table: Path, path: Path) -> None:
    """Plot the equivariance error against the shift, one line a model, with the spread over the images as a band."""
    with panels(path, 1, 1, size=(6, 3.6)) as (_, axes):
        axis, markers = axes[0, 0], itertools.cycle('os^vDPX')  # tells overlapping lines apart
        for (name,), rows in group_by(read_table(table), 'model').items():
            rows = sorted(rows, key=lambda row: int(row['shift']))
            shift, error, spread = (
                np.array([float(row[column]) for row in rows]) for column in ('shift', 'error', 'spread')
            )
            axis.plot(shift, error, marker=next(markers), markersize=5, label=name, alpha=0.8)
            axis.fill_between(shift, error - spread, error + spread, alpha=0.15)
        plain_axis(axis, 'equivariance error (0: features follow the shift)', 'shift of the image, px')
        axis.set_ylim(bottom=0)
        axis.legend(fontsize=8)


def draw_complexity(table: Path, path: Path) -> None:
    """Plot multiply-adds, attention's share and peak memory against the image size, one line a model."""
    figures = {'gmacs': 'G multiply-adds', 'attention_share': "attention's share of them", 'peak_mib': 'peak MiB'}
    groups = group_by(read_table(table), 'model')
    figures = {
        column: title for column, title in figures.items() if any(r.get(column) for g in groups.values() for r in g)
    }
    with panels(path, 1, len(figures), size=(3.9, 3.2)) as (_, axes):
        for axis, (column, title) in zip(axes[0], figures.items(), strict=True):
            all_sides = []
            for (name,), rows in groups.items():
                measured = sorted(
                    (round((int(r['height']) * int(r['width'])) ** 0.5), float(r[column])) for r in rows if r[column]
                )
                sides = [side for side, _ in measured]
                axis.plot(sides, [value for _, value in measured], marker='o', markersize=4, label=name)
                all_sides += sides
            _whole_ticks(axis, all_sides)
            if column != 'attention_share':
                axis.set_yscale('log')
            plain_axis(axis, title, 'px, root of the area')
        axes[0, 0].legend(fontsize=7)


def draw_attention_matrices(tables: dict[str, Path], path: Path) -> None:
    """Plot the attention matrices of several layers, one panel a layer.

    Args:
        tables: Layer name to the CSV of its matrix.
        path: The plot to write.
    """
    columns = min(len(tables), 4)
    with panels(path, -(-len(tables) // columns), columns, size=(3.0, 3.0)) as (figure, axes):
        for axis in axes.flat:
            axis.set_axis_off()
        for axis, (name, table) in zip(axes.flat, tables.items(), strict=False):
            matrix = np.loadtxt(table, delimiter=',', ndmin=2)
            # A few keys take most of the weight: clip at the 99.5th percentile. aspect='auto' keeps the panel square
            # where spatial reduction gives fewer keys than queries.
            shown = dict(vmin=0, vmax=np.quantile(matrix, 0.995), interpolation='nearest', aspect='auto')
            image = axis.imshow(matrix, **shown)
            axis.set_axis_on()
            axis.tick_params(labelsize=6)
            axis.set_title(f'{name}: queries down, keys across', fontsize=7, loc='left')
            figure.colorbar(image, ax=axis, fraction=0.045).ax.tick_params(labelsize=6)


def draw_attention_maps(table: Path, picture: np.ndarray, path: Path) -> None:
    """Plot attention maps over the picture, one row a layer and query, the mean over heads first.

    Args:
        table: CSV of attention maps.
        picture: (H, W, 3), uint8, RGB, at the model's input size.
        path: The plot to write.
    """
    groups = group_by(read_table(table), 'layer', 'query')
    heads = max(len({record['head'] for record in records}) for records in groups.values())
    with panels(path, len(groups), heads + 2, size=_panel_size(picture)) as (_, axes):
        for axis in axes.flat:
            axis.set_axis_off()
        for line, ((layer, query), records) in zip(axes, groups.items(), strict=True):
            line[0].imshow(picture)
            line[0].set_title(f'{layer}, query {query}', fontsize=7, loc='left')
            maps = {head: to_map(own, 'weight') for (head,), own in group_by(records, 'head').items()}
            cell = int(records[0]['cell'])
            named = {'mean of the heads': np.mean(list(maps.values()), axis=0)}
            named |= {f'head {head}': weights for head, weights in maps.items()}
            used = line[: 1 + len(named)]  # the first stages of a pyramid have fewer heads
            for axis, (title, weights) in zip(used[1:], named.items(), strict=True):
                axis.imshow(picture.mean(axis=2), cmap='gray', vmin=0, vmax=255)
                over = axis.imshow(enlarge(weights, cell, picture.shape), cmap='inferno', alpha=0.7, vmin=0)
                over.set_clim(0, max(weights.max(), 1e-12))
                axis.set_title(f'{title}, at most {weights.max():.3f}', fontsize=7, loc='left')
            if query != 'cls':
                x, y = (int(part) for part in query.split(' '))
                for axis in used:
                    axis.plot(x, y, marker='+', color='cyan', markersize=9, markeredgewidth=1.5)


def draw_feature_maps(table: Path, picture: np.ndarray, path: Path) -> None:
    """Plot the picture, and for each level three principal components as RGB and the channel norm.

    Args:
        table: CSV of feature maps.
        picture: (H, W, 3), uint8, RGB, at the model's input size.
        path: The plot to write.
    """
    levels = group_by(read_table(table), 'level')
    with panels(path, 2, len(levels) + 1, size=_panel_size(picture)) as (_, axes):
        for axis in axes.flat:
            axis.set_axis_off()
        axes[0, 0].imshow(picture)
        for column, ((level,), records) in enumerate(levels.items(), 1):
            cell = int(records[0]['cell'])
            colours = np.stack([to_map(records, name) for name in ('red', 'green', 'blue')], axis=-1)
            axes[0, column].imshow(enlarge(colours, cell, picture.shape))
            axes[0, column].set_title(f'level {level}, stride {cell}: components 1-3', fontsize=7, loc='left')
            norms = to_map(records, 'norm')
            axes[1, column].imshow(enlarge(norms, cell, picture.shape), cmap='viridis')
            axes[1, column].set_title(f'norm, {norms.min():.3g} to {norms.max():.3g}', fontsize=7, loc='left')


def _panel_size(picture: np.ndarray) -> tuple[float, float]:
    return _COLUMN_INCHES, _COLUMN_INCHES * picture.shape[0] / picture.shape[1] + 0.25


def to_map(records: Sequence[dict[str, str]], column: str) -> np.ndarray:
    """Arrange records with ``row`` and ``column`` as the map of another column."""
    places = np.array([(int(record['row']), int(record['column'])) for record in records])
    values = np.full(places.max(axis=0) + 1, np.nan)
    values[places[:, 0], places[:, 1]] = [float(record[column]) for record in records]
    return values


def enlarge(values: np.ndarray, cell: int, shape: Sequence[int]) -> np.ndarray:
    """Enlarge a map to the picture: each value fills its cell; cells beyond the picture are cut."""
    return values.repeat(cell, axis=0).repeat(cell, axis=1)[: shape[0], : shape[1]]

"""Plots of the tools that measure a model, drawn from their CSV files.

Each function reads the CSV ``table`` that its tool wrote and writes the plot ``path``. ``picture``
is the tool's image, (H, W, 3), uint8, RGB, at the model's input size.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cpvt_backbones.analysis.resolution import main_metric, read_rows
from cpvt_backbones.analysis.tables import Record, read_table
from cpvt_backbones.errors import InputError

_SMALL: Any = dict(fontsize=7, loc='left')


def draw_sweep(table: Path, path: Path, *, metric: str | None = None) -> None:
    """Plot metric, seconds an image and peak memory against the image size, one line a model.

    ``metric`` is a column; ``None``: see :func:`~cpvt_backbones.analysis.resolution.main_metric`.
    """
    rows = read_rows(table)
    metric = main_metric(rows) if metric is None else metric
    if not any(metric in row.metrics for row in rows):
        raise InputError(f'metric must be a numeric column of {str(table)!r}, got {metric!r}')
    records = read_table(table)
    titles = {
        metric: metric,
        'seconds': 'seconds an image',
        'peak_mib': 'peak memory of the forward call, MiB',
    }
    with _panels(path, 1, 3, size=(3.9, 3.2)) as (_, axes):
        for axis, (column, title) in zip(axes[0], titles.items(), strict=True):
            _draw_lines(
                axis,
                records,
                _side,
                column,
                title,
                "px, root of the area (ring: the config's scale)",
            )
            for record in records:
                if record['size'] == '1' and record[column]:
                    x, y = _side(record), float(record[column])
                    axis.plot(x, y, 'o', markersize=9, markerfacecolor='none', color='0.3')
            _set_log_ticks(axis, records)
            axis.set_ylim(bottom=0)
        axes[0, 0].legend(fontsize=7)


def draw_equivariance(table: Path, path: Path) -> None:
    """Plot the equivariance error against the shift, one line a model, with the spread over the
    images as a band.
    """
    records = sorted(read_table(table), key=lambda record: int(record['shift']))
    with _panels(path, 1, 1, size=(6, 3.6)) as (_, axes):
        axis, title = axes[0, 0], 'relative error (0: equivariant maps, or invariant vectors)'
        _draw_lines(
            axis,
            records,
            lambda record: int(record['shift']),
            'error',
            title,
            'shift of the image, px',
        )
        for own in group_by(records, 'model').values():
            shift = np.array([float(record['shift']) for record in own])
            error = np.array([float(record['error']) for record in own])
            spread = np.array([float(record['spread']) for record in own])
            axis.fill_between(shift, error - spread, error + spread, alpha=0.15)
        axis.set_ylim(bottom=0)
        axis.legend(fontsize=8)


def draw_complexity(table: Path, path: Path) -> None:
    """Plot multiply-adds, attention's share and peak memory against the image size, one line a
    model.
    """
    records = read_table(table)
    titles = {
        'gmacs': 'G multiply-adds',
        'attention_share': "attention's share of them",
        'peak_mib': 'peak MiB',
    }
    titles = {
        column: title
        for column, title in titles.items()
        if any(record.get(column) for record in records)
    }
    with _panels(path, 1, len(titles), size=(3.9, 3.2)) as (_, axes):
        for axis, (column, title) in zip(axes[0], titles.items(), strict=True):
            _draw_lines(axis, records, _side, column, title, 'px, root of the area')
            _set_log_ticks(axis, records)
            if column != 'attention_share':
                axis.set_yscale('log')
        axes[0, 0].legend(fontsize=7)


def draw_attention_matrices(table: Path, path: Path) -> None:
    """Plot the attention matrices of the layers in ``table``, ``matrix_<layer>.csv`` beside it, one
    panel a layer.
    """
    layers = {record['layer'] for record in read_table(table)}
    # By the numbers in the names: blocks.10 follows blocks.9.
    names = sorted(layers, key=lambda name: [int(n) for n in name.split('.') if n.isdigit()])
    tables = {name: table.with_name(f'matrix_{name}.csv') for name in names}
    columns = min(len(tables), 4)
    with _panels(path, -(-len(tables) // columns), columns, size=(3.0, 3.0), framed=False) as (
        figure,
        axes,
    ):
        for axis, (name, table) in zip(axes.flat, tables.items(), strict=False):
            matrix = np.loadtxt(table, delimiter=',', ndmin=2)
            # A few keys take most of the weight: clip at the 99.5th percentile. aspect='auto' keeps
            # the panel square where spatial reduction gives fewer keys than queries.
            shown = dict(
                vmin=0, vmax=np.quantile(matrix, 0.995), interpolation='nearest', aspect='auto'
            )
            image = axis.imshow(matrix, **shown)
            axis.set_axis_on()
            axis.tick_params(labelsize=6)
            axis.set_title(f'{name}: queries down, keys across', **_SMALL)
            figure.colorbar(image, ax=axis, fraction=0.045).ax.tick_params(labelsize=6)


def draw_attention_grids(table: Path, path: Path) -> None:
    """Plot the maps of the queries in two corners, and every query's map at its place.

    One row a layer.

    Reads ``matrix_<layer>.csv`` beside ``table`` too, of layers with at most 1,024 queries (larger
    ones are averaged).
    """
    records = [one for one in read_table(table) if int(one['height']) * int(one['width']) <= 1024]
    if not records:
        return
    with _panels(path, len(records), 3, size=(3.6, 3.8), framed=False) as (_, axes):
        for line, record in zip(axes, records, strict=True):
            matrix = np.loadtxt(
                table.with_name(f'matrix_{record["layer"]}.csv'), delimiter=',', ndmin=2
            )
            sides = ('height', 'width', 'key_height', 'key_width')
            maps = matrix.reshape([int(record[side]) for side in sides])
            framed = np.pad(maps, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=np.nan)
            title = f'all; distance {record["distance"]}, 3 x 3 {record["near"]} of uniform'
            shown = {f'{record["layer"]}: top left': maps[0, 0], 'bottom left': maps[-1, 0]}
            shown[title] = framed.transpose(0, 2, 1, 3).reshape(len(maps) * framed.shape[2], -1)
            for axis, (name, values) in zip(line, shown.items(), strict=True):
                axis.imshow(
                    values, vmin=0, vmax=np.nanquantile(values, 0.995), interpolation='nearest'
                )
                axis.set_title(name, **_SMALL)


def draw_attention_maps(table: Path, picture: np.ndarray, path: Path) -> None:
    """Plot attention maps over the picture, one row a layer and query, the mean over heads
    first.
    """
    groups = group_by(read_table(table), 'layer', 'query')
    heads = max(len(group_by(records, 'head')) for records in groups.values())
    with _panels(path, len(groups), heads + 2, size=_panel_size(picture), framed=False) as (
        _,
        axes,
    ):
        for line, ((layer, query), records) in zip(axes, groups.items(), strict=True):
            maps = {
                f'head {head}': to_map(own, 'weight')
                for (head,), own in group_by(records, 'head').items()
            }
            maps = {'mean of the heads': np.mean(list(maps.values()), axis=0), **maps}
            used = line[: 1 + len(maps)]  # the first stages of a pyramid have fewer heads
            used[0].imshow(picture)
            used[0].set_title(f'{layer}, query {query}', **_SMALL)
            for axis, (title, weights) in zip(used[1:], maps.items(), strict=True):
                axis.imshow(picture.mean(axis=2), cmap='gray', vmin=0, vmax=255)
                large, top = enlarge(weights, int(records[0]['cell']), picture.shape), weights.max()
                axis.imshow(large, cmap='inferno', alpha=0.7, vmin=0, vmax=max(top, 1e-12))
                axis.set_title(f'{title}, at most {top:.3f}', **_SMALL)
            if query != 'cls':
                x, y = map(int, query.split())
                for axis in used:
                    axis.plot(x, y, marker='+', color='cyan', markersize=9, markeredgewidth=1.5)


def draw_feature_maps(table: Path, picture: np.ndarray, path: Path) -> None:
    """Plot the picture, and for each level three principal components as RGB and the
    channel norm.
    """
    levels = group_by(read_table(table), 'level')
    with _panels(path, 2, len(levels) + 1, size=_panel_size(picture), framed=False) as (_, axes):
        axes[0, 0].imshow(picture)
        for (above, below), ((level,), records) in zip(axes.T[1:], levels.items(), strict=True):
            cell = int(records[0]['cell'])
            colours = np.stack(
                [to_map(records, name) for name in ('red', 'green', 'blue')], axis=-1
            )
            above.imshow(enlarge(colours, cell, picture.shape))
            above.set_title(f'level {level}, stride {cell}: components 1-3', **_SMALL)
            norms = to_map(records, 'norm')
            below.imshow(enlarge(norms, cell, picture.shape), cmap='viridis')
            below.set_title(f'norm, {norms.min():.3g} to {norms.max():.3g}', **_SMALL)


def group_by(records: Sequence[Record], *names: str) -> dict[tuple[str, ...], list[Record]]:
    """Group records by the values of some columns, in order of first appearance."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(record[name] for name in names), []).append(record)
    return groups


def to_map(records: Sequence[Record], column: str) -> np.ndarray:
    """Arrange records with ``row`` and ``column`` as the map of another column."""
    cells = np.array([(int(record['row']), int(record['column'])) for record in records])
    values = np.full(cells.max(axis=0) + 1, np.nan)
    values[cells[:, 0], cells[:, 1]] = [float(record[column]) for record in records]
    return values


def enlarge(values: np.ndarray, cell: int, shape: Sequence[int]) -> np.ndarray:
    """Enlarge a map to the picture: each value fills its cell; cells beyond the picture are cut."""
    return values.repeat(cell, axis=0).repeat(cell, axis=1)[: shape[0], : shape[1]]


@contextmanager
def _panels(
    path: Path, rows: int, columns: int, *, size: tuple[float, float], framed: bool = True
) -> Iterator[tuple[Any, np.ndarray]]:
    """Context of a figure with (rows, columns) axes of ``size`` inches each, saved to ``path`` at
    the end.
    """
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot as plt

    inches = (size[0] * columns, size[1] * rows)
    figure, axes = plt.subplots(rows, columns, squeeze=False, figsize=inches, layout='constrained')
    if not framed:
        for axis in axes.flat:
            axis.set_axis_off()
    try:
        yield figure, axes
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    finally:
        plt.close(figure)


def _draw_lines(
    axis: Any,
    records: Sequence[Record],
    x: Callable[[Record], int],
    column: str,
    title: str,
    label: str,
) -> None:
    """Plot a column against ``x``, one line a model; records without a value are left out."""
    markers = itertools.cycle('os^vDPX')  # overlapping lines stay distinguishable
    for (name,), own in group_by(records, 'model').items():
        points = np.array(
            sorted((x(record), float(record[column])) for record in own if record.get(column))
        )
        axis.plot(
            *points.reshape(-1, 2).T, marker=next(markers), markersize=4, alpha=0.8, label=name
        )
    axis.set_title(title, fontsize=9, loc='left')
    axis.set_xlabel(label, fontsize=8)
    axis.tick_params(labelsize=7, which='both')
    axis.spines[['top', 'right']].set_visible(False)
    axis.grid(alpha=0.25)


def _side(record: Record) -> int:
    return round((float(record['height']) * float(record['width'])) ** 0.5)


def _set_log_ticks(axis: Any, records: Sequence[Record]) -> None:
    """Set a logarithmic x axis with one tick an image size, without overlapping ticks."""
    axis.set_xscale('log', base=2)
    chosen: list[int] = []
    for side in sorted(map(_side, records)):
        if not chosen or side > 1.12 * chosen[-1]:
            chosen.append(side)
    axis.set_xticks(chosen, [str(side) for side in chosen], fontsize=7)
    axis.minorticks_off()


def _panel_size(picture: np.ndarray) -> tuple[float, float]:
    return 2.2, 2.2 * picture.shape[0] / picture.shape[1] + 0.25

"""Plots of the tools that measure a model, drawn from their CSV files.

Each function reads the CSV ``table`` that its tool wrote and writes the plot ``path``.
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


def group_by(records: Sequence[Record], *names: str) -> dict[tuple[str, ...], list[Record]]:
    """Group records by the values of some columns, in order of first appearance."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(record[name] for name in names), []).append(record)
    return groups


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

"""The CSV of measured rows, and its tables and plot."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from cpvt_backbones.errors import InputError

from . import plots
from .cases import SETTING, BenchmarkCase, Comparison, title
from .models import label

TIMES = ['seconds', 'quartile1', 'quartile3', 'images_per_second']
FIGURES = [*TIMES, 'peak_mib', 'gflop', 'matmul_share', 'gbyte', 'copy_share', 'peg_share']
"""Measured columns of the CSV; docs/speed.md explains them."""

COLUMNS = [SETTING[0], 'model', *SETTING[1:], 'round', *FIGURES, 'machine']


def read_rows(path: Path) -> pd.DataFrame:
    """Rows of a CSV that :func:`append_rows` wrote, none if there is no file.

    ``ValueError`` for other columns.
    """
    if _is_new(path):
        return pd.DataFrame(columns=COLUMNS)
    rows = pd.read_csv(path)
    if list(rows.columns) != COLUMNS:
        raise InputError(
            f'{path}: the columns must be {COLUMNS}, got {list(rows.columns)}; use another file'
        )
    return rows.astype(dict.fromkeys(FIGURES, float))


def append_rows(path: Path, rows: pd.DataFrame) -> None:
    """Add rows to a CSV, with a header if the file is new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows.to_csv(
        path,
        mode='a',
        header=_is_new(path),
        columns=COLUMNS,
        index=False,
        float_format='%.5g',
        na_rep='nan',
    )


def _is_new(path: Path) -> bool:
    return not path.exists() or path.stat().st_size == 0


def missing(
    cases: Sequence[BenchmarkCase], path: Path, *, rounds: int
) -> list[tuple[int, BenchmarkCase]]:
    """The rounds of cases that the CSV lacks.

    Raises:
        ValueError: It holds other models of a case, or only some: they took no turns with the rest.
    """
    rows = read_rows(path)
    todo = []
    for number, case in product(range(1, rounds + 1), cases):
        done = set(case.select(rows[rows['round'] == number])['model'])
        if not done:
            todo.append((number, case))
        elif done != set(case.models):
            raise InputError(
                f'out: {path} holds {sorted(done)} in round {number} of "{case}", '
                f'which took no turns with {sorted(set(case.models) ^ done)}; use another file'
            )
    return todo


def relative_speeds(rows: pd.DataFrame) -> pd.DataFrame:
    """Speed of each model (column) of one case in each round (index), relative to the first
    model.
    """
    names = rows['model'].unique()
    seconds = rows.pivot(index='round', columns='model', values='seconds')[names]
    return seconds.rdiv(seconds[names[0]], axis=0)


def case_tables(rows: pd.DataFrame) -> str:
    """One Markdown table a case: medians over the rounds.

    A speed is the median of the rounds' ratios.
    """
    texts = []
    for setting, members in rows.groupby(SETTING, sort=False):
        speeds = relative_speeds(members).median()
        medians = members.groupby('model', sort=False)[FIGURES].median()
        table = pd.DataFrame(
            {
                'model': label(str(row.Index)),
                'ms (quartiles)': (
                    f'{row.seconds * 1e3:.0f} ({row.quartile1 * 1e3:.0f}-{row.quartile3 * 1e3:.0f})'
                ),
                'images/s': f'{row.images_per_second:.2f}',
                f'speed against {members["model"].iloc[0]}': f'{speeds[row.Index]:.2f}',
                'peak MiB': f'{row.peak_mib:.0f}',
                'GFLOP': f'{row.gflop:.1f}',
                'of the matmul rate': f'{row.matmul_share:.2f}',
                'GB': f'{row.gbyte:.2f}',
                'of the copy bandwidth': f'{row.copy_share:.2f}',
            }
            for row in medians.itertuples()
        )
        texts.append(f'**{title(setting)}**\n\n{_markdown(table)}\n')
    return '\n'.join(texts)


def peg_table(rows: pd.DataFrame) -> str:
    """The share of a call that the costliest PEG of each model takes, as a Markdown table."""
    shares = (
        rows.dropna(subset='peg_share')
        .groupby([*SETTING, 'model'], sort=False)['peg_share']
        .median()
    )
    table = pd.DataFrame(
        {
            'model': label(model),
            'case': title(setting),
            'one PEG, share of the call': f'{share:.4f}',
        }
        for (*setting, model), share in shares.items()
    )
    return _markdown(table)


def comparison_table(compared: Sequence[Comparison], rows: pd.DataFrame) -> str:
    """Speeds against others as a Markdown table: median, lowest and highest over the rounds."""
    records = []
    for comparison in compared:
        speeds = comparison.speeds(rows).agg(['median', 'min', 'max'])
        times = comparison.milliseconds(rows)['median']
        for name in speeds.columns:
            middle, low, high = speeds[name]
            records.append(
                {
                    'model': comparison.what,
                    'compared with': comparison.models[name],
                    'times as fast': f'{middle:.2f} ({low:.2f}-{high:.2f})',
                    'ms a call': _milliseconds(times.iloc[0]),
                    'ms of the other': _milliseconds(times[name]),
                }
            )
    return _markdown(pd.DataFrame(records))


def _milliseconds(value: float) -> str:
    return f'{value:.0f}' if value >= 100 else f'{value:.1f}'


def _markdown(table: pd.DataFrame) -> str:
    sides = [
        'left' if name in ('model', 'case', 'compared with') else 'right' for name in table.columns
    ]
    return table.to_markdown(index=False, disable_numparse=True, colalign=sides)


def draw_bars(groups: Sequence[Comparison], rows: pd.DataFrame) -> Any:
    """Figure of the time of a call: a bar for the median over the rounds, and a line from the
    lowest to the highest. The axis names the processor.
    """
    count = sum(len(group.models) for group in groups)
    figure, axis = plots.new_figure(0.5 + 0.21 * (count + 1.4 * len(groups)))
    ticks: list[float] = []
    row = 0.0
    for group in groups:
        left = dict(xycoords=('figure fraction', 'data'), color=plots.GREY, fontsize=plots.TEXT)
        heading = axis.annotate(group.what, (0.01, row), **left)
        heading.set(verticalalignment='center', fontweight='bold', in_layout=False)
        colors = [plots.PACKAGES['this package'], *[plots.PACKAGES['other']] * len(group.models)]
        for time, color in zip(group.milliseconds(rows).itertuples(), colors, strict=False):
            row += 1
            ticks.append(row)
            _draw_bar(axis, row, time, color)
        row += 1.4
    axis.set_yticks(ticks, [label for group in groups for label in group.models.values()])
    axis.tick_params(axis='y', length=0)
    axis.spines['left'].set_visible(False)  # it would cross the headings
    axis.set_ylim(row - 0.7, -0.6)
    axis.margins(x=0.12)
    processors = {
        machine.partition(',')[0].removeprefix('processor ') for machine in rows['machine']
    }
    axis.set_xlabel(f'ms per call on {" and ".join(sorted(processors))} (lower is better)')
    return figure


def _draw_bar(axis: Any, row: float, time: Any, color: str) -> None:
    """A bar to the median, the line of its rounds, and the median as text."""
    axis.barh(row, time.median, height=0.72, color=color)
    # White on the bar, grey beyond it.
    axis.plot([time.min, time.median], [row, row], color='white', linewidth=1.2)
    axis.plot([time.median, time.max], [row, row], color=plots.GREY, linewidth=1.2)
    axis.annotate(
        f'{time.median:.0f}',
        (time.max, row),
        xytext=(4, 0),
        textcoords='offset points',
        verticalalignment='center',
        color=plots.GREY,
        fontsize=plots.TEXT,
    )

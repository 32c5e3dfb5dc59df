"""The CSV of measured rows, and its tables and plot."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from . import plots
from .cases import SETTING, BenchmarkCase, Ratio, title
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
        raise ValueError(
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
            raise ValueError(
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
            'one PEG, share of the call (at most 0.01)': f'{share:.4f}',
        }
        for (*setting, model), share in shares.items()
    )
    return _markdown(table)


def ratio_table(ratios: Sequence[Ratio], rows: pd.DataFrame) -> str:
    """Ratios as a Markdown table: median over the rounds, lowest and highest.

    Empty where nothing was measured. The goal of each row follows, and whether it is reached.
    """
    records = []
    for ratio in ratios:
        values = ratio.values(rows)
        measured = verdict = ''
        if len(values):
            middle = values.median()
            measured = digits_for_verdict(ratio, middle)
            if values.min() < values.max():
                measured += f' ({_digits(values.min())}-{_digits(values.max())})'
            verdict = 'reached' if ratio.reached(middle) else 'missed'
        records.append((ratio.what, measured, f'{ratio.sign} {ratio.bound:.3g}', verdict))
    return _markdown(pd.DataFrame(records, columns=['what', 'measured', 'goal', '']))


def digits_for_verdict(ratio: Ratio, value: float) -> str:
    """A value with as many digits as are needed to see whether it is within the bound."""
    texts = (_digits(value, digits) for digits in range(2, 6))
    return next(
        (text for text in texts if ratio.reached(float(text)) == ratio.reached(value)), repr(value)
    )


def _digits(value: float, digits: int = 2) -> str:
    return f'{value:.{digits + 1}g}' if value < 0.1 else f'{value:.{digits}f}'


def _markdown(table: pd.DataFrame) -> str:
    sides = ['left' if name in ('what', 'model', 'case', '') else 'right' for name in table.columns]
    return table.to_markdown(index=False, disable_numparse=True, colalign=sides)


def speed_ratios(ratios: Sequence[Ratio], rows: pd.DataFrame) -> list[Ratio]:
    """The measured ratios of speed between two models of one case."""
    return [
        ratio
        for ratio in ratios
        if ratio.peer
        and ratio.peer_case is None
        and ratio.figure == 'images_per_second'
        and len(ratio.values(rows))
    ]


def plotted_part(ratios: Sequence[Ratio], rows: pd.DataFrame, picture: str) -> str:
    """Plot of the speed ratios, their milliseconds, and a table of all other ratios.

    Args:
        ratios: Of the suite.
        rows: Measured rows.
        picture: Path of the plot, relative to the page.
    """
    speeds = speed_ratios(ratios, rows)
    others = [ratio for ratio in ratios if ratio not in speeds]
    parts = [
        f'![Speed over that of the peer, with goals]({picture})',
        milliseconds_table(speeds, rows),
        ratio_table(others, rows) if others else '',
    ]
    return '\n\n'.join(filter(None, parts))


def milliseconds_table(ratios: Sequence[Ratio], rows: pd.DataFrame) -> str:
    """Milliseconds a call of both models of each ratio, medians over the rounds, as Markdown."""
    records = []
    for ratio in ratios:
        seconds = ratio.case.select(rows).groupby('model')['seconds'].median()
        times = (f'{1e3 * seconds[model]:.0f}' for model in (ratio.model, ratio.peer))
        records.append((ratio.what, ratio.case.batch, *times))
    columns = ['what', 'images a call', 'ms', 'ms, peer']
    return _markdown(pd.DataFrame(records, columns=columns))


def draw_ratios(ratios: Sequence[Ratio], rows: pd.DataFrame, path: Path) -> None:
    """Draw the speed ratios: a dot for the median of the rounds, a line from lowest to highest,
    and a stroke at the goal.
    """
    shown = speed_ratios(ratios, rows)
    figure, (axis,) = plots.new_figure(1.0 + 0.33 * len(shown))
    for row, ratio in enumerate(shown):
        _draw_ratio(axis, row, ratio, ratio.values(rows))
    axis.set_xscale('log')
    axis.minorticks_off()
    ticks = (0.8, 1, 1.5, 2, 3)
    axis.set_xticks(ticks, [f'{tick:g}' for tick in ticks])
    axis.set_yticks([])
    axis.set_ylim(len(shown) - 0.5, -1.0)
    axis.spines['left'].set_visible(False)
    axis.set_xlabel('speed over that of the peer')
    plots.add_legend(figure, _legend_handles(), columns=3)
    plots.save_figure(figure, path)


def _draw_ratio(axis: Any, row: int, ratio: Ratio, values: pd.Series) -> None:
    """Name, and below it interval, median and goal of one ratio, with a thin line at 1."""
    middle = values.median()
    color = plots.BOUNDS['reached' if ratio.reached(middle) else 'missed']
    style = dict(color=plots.GREY, fontsize=plots.TEXT)
    name = axis.text(0, row - 0.42, ratio.what, transform=axis.get_yaxis_transform(), **style)
    name.set(verticalalignment='center', in_layout=False)
    below = [row - 0.2, row + 0.3]  # the name, so that nothing crosses it
    axis.plot([1, 1], below, color=plots.GREY, linewidth=0.8, alpha=0.5)
    axis.plot([values.min(), values.max()], [row, row], color=color, linewidth=2)
    axis.plot(middle, row, 'o', color=color, markersize=5)
    axis.plot(ratio.bound, row, '|', color=plots.GREY, markersize=9, markeredgewidth=1.5)
    # Beside the dots, on the side where the goal is not.
    above = ratio.bound > values.max()
    axis.annotate(
        digits_for_verdict(ratio, middle),
        (values.min() if above else values.max(), row),
        xytext=(-6 if above else 6, 0),
        textcoords='offset points',
        horizontalalignment='right' if above else 'left',
        verticalalignment='center',
        **style,
    )


def _legend_handles() -> list[Any]:
    from matplotlib.lines import Line2D

    dots = [
        Line2D([], [], label=name, color=color, marker='o', linewidth=2)
        for name, color in plots.BOUNDS.items()
    ]
    goal = Line2D(
        [], [], label='goal', color=plots.GREY, marker='|', linestyle='none', markersize=9
    )
    return [*dots, goal]

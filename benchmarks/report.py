"""The CSV of measured rows, and its tables and plot."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

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

    Empty where nothing was measured. The bound of each row follows, and whether it is reached.
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
    return _markdown(pd.DataFrame(records, columns=['what', 'measured', 'bound', '']))


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


def draw_speed(rows: pd.DataFrame, path: Path) -> None:
    """Bars of speed relative to the first model of each case: median of the rounds, lowest to
    highest as a line.
    """
    from matplotlib.figure import Figure

    cases = [
        (title(setting), relative_speeds(members))
        for setting, members in rows.groupby(SETTING, sort=False)
    ]
    columns = min(2, len(cases))
    bars = [
        max(case[1].shape[1] for case in cases[i : i + columns])
        for i in range(0, len(cases), columns)
    ]
    size = (6.5 * columns, 0.27 * sum(bars) + 0.35 * len(bars) + 0.6)
    figure = Figure(figsize=size, layout='constrained')
    heading = (
        'Images a second, relative to the first model of each case (blue: this package, grey:'
        ' others)'
    )
    figure.suptitle(f'{heading}\nbars: median of the rounds, lines: lowest to highest', fontsize=9)
    axes = figure.subplots(
        len(bars), columns, squeeze=False, height_ratios=[count + 1 for count in bars]
    )
    for index, axis in enumerate(axes.flat):
        if index < len(cases):
            _draw_case(axis, *cases[index], bars=bars[index // columns])
        else:
            axis.remove()
    figure.savefig(path, dpi=110)


def _draw_case(axis: Any, name: str, speeds: pd.DataFrame, *, bars: int) -> None:
    """Draw a case into axes with room for ``bars`` bars."""
    middle, low, high = speeds.median(), speeds.min(), speeds.max()
    style = dict(
        color=[
            '0.7' if name.startswith(('timm', 'mm', 'algorithm')) else 'tab:blue' for name in speeds
        ]
    )
    places = range(0, -len(speeds.columns), -1)
    drawn = axis.barh(
        places, middle, xerr=[middle - low, high - middle], ecolor='0.3', height=0.7, **style
    )
    axis.bar_label(drawn, fmt='%.2f', padding=5, fontsize=8, bbox=dict(color='white', pad=0))
    axis.axvline(1, color='0.3', linewidth=0.8, linestyle=':')
    axis.set_title(name, fontsize=8, loc='left', fontweight='bold')
    axis.set_yticks(places, [label(name).replace(' (', '\n(') for name in speeds], fontsize=7)
    axis.set(
        xticks=[], xlim=(0, max(high) * 1.12), ylim=(0.5 - bars, 0.5)
    )  # the bars carry their values
    axis.tick_params(axis='y', length=0)
    axis.spines[['top', 'right', 'bottom']].set_visible(False)

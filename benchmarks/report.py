"""The CSV of measured rows, and its tables and plot."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from .cases import SETTING, BenchmarkCase, Ratio, title
from .models import label

FIGURES = {
    'seconds': 'median time of a call',
    'quartile1': 'of that time',
    'quartile3': 'of that time',
    'images_per_second': 'batch / seconds',
    'peak_mib': 'memory that a call needs on top of the weights (`cpvt_backbones.analysis.memory.peak_memory`)',
    'gflop': 'operations of a call by formula (2 a multiply-add, attention in full; three times that for training)',
    'matmul_share': 'operations a second over the rate of a large matrix product in the same run',
    'gbyte': 'bytes that the operators of an eager call read and write, views left out, fused attention as one',
    'copy_share': 'bytes a second over the bandwidth of a large copy in the same run (above 1: caches)',
    'peg_share': 'largest share of a call that one PEG takes, nan where not measured',
}
"""Measured columns of the CSV to their meaning."""

COLUMNS = [SETTING[0], 'model', *SETTING[1:], 'round', *FIGURES, 'machine']


def read_rows(path: Path) -> pd.DataFrame:
    """Rows of a CSV that :func:`append_rows` wrote; none if there is no file.

    Raises:
        ValueError: The file has other columns.
    """
    if not path.exists():
        return pd.DataFrame(columns=COLUMNS)
    rows = pd.read_csv(path)
    if list(rows.columns) != COLUMNS:
        raise ValueError(f'{path}: the columns must be {COLUMNS}, got {list(rows.columns)}; use another file')
    return rows.astype(dict.fromkeys(FIGURES, float))


def append_rows(path: Path, rows: pd.DataFrame) -> None:
    """Add rows to a CSV, with a header if the file is new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    rows.to_csv(path, mode='a', header=new, columns=COLUMNS, index=False, float_format='%.5g', na_rep='nan')


def missing(cases: Sequence[BenchmarkCase], path: Path, *, rounds: int) -> list[tuple[int, BenchmarkCase]]:
    """The rounds of cases that the CSV lacks.

    Raises:
        ValueError: It holds other models of a case, or only some: they took no turns with the rest.
    """
    rows = read_rows(path)
    todo = []
    for number in range(1, rounds + 1):
        for case in cases:
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
    """Speed of each model (column) in each round (index), relative to the first model of the same round.

    Args:
        rows: Rows of one case.
    """
    names = rows['model'].unique()
    seconds = rows.pivot(index='round', columns='model', values='seconds')[names]
    return seconds.rdiv(seconds[names[0]], axis=0)


def case_tables(rows: pd.DataFrame) -> str:
    """One Markdown table a case: medians over the rounds; a speed is the median of the rounds' ratios."""
    texts = []
    for setting, members in rows.groupby(SETTING, sort=False):
        speeds = relative_speeds(members).median()
        medians = members.groupby('model', sort=False)[list(FIGURES)].median()
        table = pd.DataFrame(
            {
                'model': label(str(row.Index)),
                'ms (quartiles)': f'{row.seconds * 1e3:.0f} ({row.quartile1 * 1e3:.0f}-{row.quartile3 * 1e3:.0f})',
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
    shares = rows.dropna(subset='peg_share').groupby([*SETTING, 'model'], sort=False)['peg_share'].median()
    table = pd.DataFrame(
        {'model': label(model), 'case': title(setting), 'one PEG, share of the call (at most 0.01)': f'{share:.4f}'}
        for (*setting, model), share in shares.items()
    )
    return _markdown(table)


def ratio_table(ratios: Sequence[Ratio], rows: pd.DataFrame, *, bounds: bool = True) -> str:
    """Ratios as a Markdown table: median over the rounds, lowest and highest; empty where nothing was measured.

    Args:
        ratios: The rows of the table.
        rows: What was measured.
        bounds: Whether each row tells its bound, and whether it is reached.
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
    return _markdown(pd.DataFrame(records, columns=['what', 'measured', 'bound', '']).iloc[:, : 4 if bounds else 2])


def digits_for_verdict(ratio: Ratio, value: float) -> str:
    """A value with as many digits as it takes to see whether it is within the bound."""
    texts = (_digits(value, digits) for digits in range(2, 6))
    return next((text for text in texts if ratio.reached(float(text)) == ratio.reached(value)), repr(value))


def _digits(value: float, digits: int = 2) -> str:
    return f'{value:.{digits + 1}g}' if value < 0.1 else f'{value:.{digits}f}'


def _markdown(table: pd.DataFrame) -> str:
    is_text = table.columns.isin(['', 'what', 'model', 'case'])
    return table.to_markdown(
        index=False, disable_numparse=True, colalign=['left' if text else 'right' for text in is_text]
    )


def draw_speed(rows: pd.DataFrame, path: Path) -> None:
    """Bars of speed relative to the first model of each case: median of the rounds, lowest to highest as a line.

    Args:
        rows: Rows of any cases and rounds.
        path: The picture to write.
    """
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot as plt

    cases = {title(setting): relative_speeds(members) for setting, members in rows.groupby(SETTING, sort=False)}
    heights = [len(speeds.columns) + 1.5 for speeds in cases.values()]
    # Two columns of about one height: the left one ends with the case that reaches half of the whole.
    left = next(count for count in range(1, len(heights) + 1) if 2 * sum(heights[:count]) >= sum(heights))
    parts = [part for part in (slice(0, left), slice(left, None)) if heights[part]]
    size = (7 * len(parts), 0.24 * max(sum(heights[part]) for part in parts) + 0.7)
    figure = plt.figure(figsize=size, layout='constrained')
    figure.suptitle(
        'Images a second, relative to the first model of each case (blue: this package, grey: others)\n'
        'bars: median of the rounds, lines: lowest to highest',
        fontsize=9,
    )
    for part, half in zip(parts, figure.subfigures(1, len(parts), squeeze=False)[0], strict=True):
        axes = half.subplots(len(heights[part]), 1, height_ratios=heights[part], squeeze=False)[:, 0]
        for axis, (name, speeds) in zip(axes, list(cases.items())[part], strict=True):
            _draw_case(axis, name, speeds)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_case(axis: Any, name: str, speeds: pd.DataFrame) -> None:
    middle, low, high = speeds.median(), speeds.min(), speeds.max()
    peers = ('timm', 'mm', 'algorithm')
    colors = ['0.7' if model.startswith(peers) else 'tab:blue' for model in speeds.columns]
    positions = range(len(speeds.columns), 0, -1)
    axis.barh(positions, middle, xerr=[middle - low, high - middle], color=colors, ecolor='0.3', height=0.7)
    axis.axvline(1, color='0.3', linewidth=0.8, linestyle=':')
    for position, value, edge in zip(positions, middle, high, strict=True):
        axis.annotate(
            f'{value:.2f}',
            (edge, position),
            xytext=(6, 0),
            textcoords='offset points',
            va='center',
            fontsize=8,
            bbox=dict(color='white', pad=0),
        )
    axis.set_title(name, fontsize=8, loc='left', fontweight='bold')
    axis.set_yticks(positions, [label(model).replace(' (', '\n(') for model in speeds.columns], fontsize=8)
    axis.set_xticks([])  # the bars carry their values
    axis.set_xlim(0, max(high) * 1.12)
    axis.tick_params(axis='y', length=0)
    axis.spines[['top', 'right', 'bottom']].set_visible(False)

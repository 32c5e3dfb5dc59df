"""Tables, verdicts, and plots, from the results' CSV files alone."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pandas as pd

from cpvt_backbones.analysis.tables import fill_marked
from cpvt_backbones.checkpoints import atomic_write

from .claims import Difference, accuracy, best_rates, claims, rate_trials
from .runs import Record, read_records
from .transfer import STARTS
from .variants import MAIN, VARIANTS


def write_report(work_dir: Path, docs: Path | None = None) -> None:
    """Collect the finished runs in CSV files, and write tables and plots from these.

    Args:
        work_dir: Folder of the stages' runs. A stage without finished runs keeps the CSV files that are there.
        docs: Markdown page whose marked parts become the tables, with CSV files and plots in a folder of its name;
            ``None`` writes all into ``work_dir``.

    Raises:
        ValueError: There are neither finished runs nor CSV files.
    """
    folder, pictures = (work_dir, '.') if docs is None else (docs.with_suffix(''), docs.stem)
    parts = {}
    for stage, name, runs in (
        ('classify', 'positional_encoding', 'runs'),
        ('transfer', 'dense_transfer', 'dense_transfer_runs'),
    ):
        table = folder / f'{name}.csv'
        if records := read_records(work_dir / stage):
            write_csv(results_table(records), table)
            write_csv(runs_table(records), folder / f'{runs}.csv')
        if table.exists():
            report, draw = (classify_report, draw_classify) if stage == 'classify' else (transfer_report, draw_transfer)
            parts[name.replace('_', '-')] = report(pd.read_csv(table), pictures)
            draw(pd.read_csv(table), folder)
            print(f'report from {table}')
    if not parts:
        raise ValueError(f'work_dir: {work_dir} has no finished run, and {folder} no results')
    if docs is None:
        (folder / 'report.md').write_text('\n\n'.join(parts.values()) + '\n', encoding='utf-8')
    else:
        for name, text in parts.items():
            fill_marked(docs, name, text)


def results_table(records: Sequence[Record]) -> pd.DataFrame:
    """A row for every run and size."""
    return pd.DataFrame({**record['run'], **row} for record in records for row in record['rows'])


def runs_table(records: Sequence[Record]) -> pd.DataFrame:
    """A row for every run: where, and from which code, it was trained."""
    return pd.DataFrame(
        {
            **record['run'],
            'commits': record['commits'],
            'processor': record['environment']['processor'],
            'threads': record['environment']['threads'],
            'python': record['environment']['Python'].split()[0],
            'torch': record['environment']['PyTorch'],
        }
        for record in records
    )


def write_csv(table: pd.DataFrame, path: Path) -> None:
    """Write a table without its index."""
    with atomic_write(path) as file:
        table.to_csv(file, index=False)


def classify_report(results: pd.DataFrame, pictures: str = '.') -> str:
    """Report on the classifiers as Markdown; ``pictures`` is the folder of the plots, relative to the report."""
    size, epochs = results['size'].min(), results['epochs'].iloc[0]
    rates = rates_table(results, size)
    parts = [
        f'Top-1 (%), mean ± standard deviation over seeds; trained at {size} px for {epochs} epochs.',
        summary_table(results, size),
        f'![Top-1 against image size]({pictures}/sizes.png)',
        f'![Top-1 of every encoding at {size} px]({pictures}/variants.png)',
        *(['The learning rates that were tried, first seed:', rates] if rates else []),
        claims_table(results, size),
    ]
    return '\n\n'.join(parts)


def summary_table(results: pd.DataFrame, train_size: int) -> str:
    """Top-1 accuracy of every variant at every size: mean and standard deviation over seeds."""
    variants = best_rates(results, train_size).groupby('variant')
    table = variants.agg(seeds=('seed', 'nunique'))
    for size in sorted(results['size'].unique()):
        table[f'{size} px'] = variants.apply(lambda rows, at=size: spread(rows.loc[rows['size'] == at, 'top1'], 1))
    table['shift error'] = variants['shift_error'].agg(lambda errors: spread(errors.dropna(), 3))
    table = table.loc[[name for name in VARIANTS if name in table.index]]
    table.insert(0, 'encoding', [VARIANTS[name].label for name in table.index])
    return markdown(table)


def rates_table(results: pd.DataFrame, train_size: int) -> str:
    """Top-1 accuracy of the first seed at the training size, of the variants that were run at several rates."""
    trials = rate_trials(results, train_size)
    trials = trials[trials.duplicated('variant', keep=False)]
    if trials.empty:
        return ''
    columns = {
        'encoding': trials['variant'].map(lambda name: VARIANTS[name].label),
        'learning rate, relative': trials['rate_factor'].map('{:g}'.format),
        'top-1': trials['top1'].map('{:.1f}'.format),
    }
    return markdown(pd.DataFrame(columns))


def claims_table(results: pd.DataFrame, train_size: int) -> str:
    """Every claim, its comparisons, and its verdict."""
    kept = best_rates(results, train_size)
    rows = []
    for claim in claims(train_size):
        rows.append((f'**{claim.letter}**', f'**{claim.text}**', '', '', f'**{claim.verdict(kept)}**'))
        for part in claim.comparisons:
            paper = '' if part.paper is None else f'{part.paper:+.1f}'
            rows.append(('', str(part), part.difference(kept).text(), paper, part.verdict(kept)))
    head = ('', 'claim, and what it was taken to mean', 'difference (95 % interval)', "the paper's", 'verdict')
    return markdown(pd.DataFrame(rows, columns=head), 'lllrl')


def transfer_report(results: pd.DataFrame, pictures: str = '.') -> str:
    """Report on the dense transfer as Markdown; ``pictures`` is the folder of the plots, relative to the report."""
    parts = ['Mean ± standard deviation over seeds; differences with their 95 % confidence interval (Welch).']
    for (task, metric), rows in results.groupby(['task', 'metric']):
        parts += [f'**{task}, {metric}**', transfer_table(rows, digits=1 if metric == 'mIoU' else 3)]
    return '\n\n'.join([*parts, f'![Accuracy against test size]({pictures}/dense_transfer.png)'])


def transfer_table(results: pd.DataFrame, digits: int) -> str:
    """One task: every start and encoding at every size, then the differences between them."""
    encodings, starts = encodings_of(results), [start for start in STARTS if start in set(results['start'])]
    # (start, encoding) to the values of all seeds at each size
    values = {
        key: [
            column.dropna().tolist() for _, column in rows.pivot(index='seed', columns='size', values='value').items()
        ]
        for key, rows in results.groupby(['start', 'encoding'])
    }
    rows = []
    for start in starts:
        for encoding in encodings:
            cells = values[start, encoding]
            rows.append((start, encoding, len(cells[0]), *(spread(cell, digits) for cell in cells)))
    peg, *others = encodings
    compared = [(f'{start}: {peg} minus {other}', (start, peg), (start, other)) for start in starts for other in others]
    if len(starts) == 2:
        compared += [(f'{e}: pretrained minus scratch', ('pretrained', e), ('scratch', e)) for e in encodings]
    for name, left, right in compared:
        found = [Difference.between(*pair) for pair in zip(values[left], values[right], strict=True)]
        rows.append((name, '', '', *(difference.text(digits) for difference in found)))
    sizes = [f'{size:g} x' for size in sorted(results['size'].unique())]
    return markdown(pd.DataFrame(rows, columns=['start', 'encoding', 'seeds', *sizes]), 'll')


def encodings_of(results: pd.DataFrame) -> list[str]:
    """Encodings, PEG first, as the others are compared with it."""
    return sorted(results['encoding'].unique(), key=lambda name: (name != 'peg', name))


def spread(values: Sequence[float], digits: int) -> str:
    """Mean and standard deviation."""
    values = list(values)
    deviation = f' ± {stdev(values):.{digits}f}' if len(values) > 1 else ''
    return f'{mean(values):.{digits}f}{deviation}' if values else ''


def markdown(table: pd.DataFrame, align: str = 'l') -> str:
    """A Markdown table; ``align`` has ``l`` or ``r`` for the first columns, the rest is aligned right."""
    columns = ['left' if letter == 'l' else 'right' for letter in align.ljust(table.shape[1], 'r')]
    return table.to_markdown(index=False, disable_numparse=True, colalign=columns)


def draw_classify(results: pd.DataFrame, folder: Path) -> None:
    """Top-1 accuracy of the main variants against image size, and of all variants at the training size."""
    train_size = results['size'].min()
    kept = best_rates(results, train_size)
    with plot(folder / 'sizes.png', 8, 4.4) as (axis,):
        for name in MAIN:
            if name in set(kept['variant']):
                style = dict(linestyle='-' if name.startswith('peg') else '--', label=VARIANTS[name].label)
                draw_line(axis, kept[kept['variant'] == name], 'top1', **style)
        axis.set_xticks(sorted(kept['size'].unique()))
        axis.set_xlabel(f'side of the test images (px); trained at {train_size} px')
        axis.set_ylabel('top-1 (%), mean and range over seeds')
        axis.legend(frameon=False, loc='center left', bbox_to_anchor=(1, 0.5))
    shown = {name: values for name in VARIANTS if (values := accuracy(train_size)(kept, name))}
    ordered = sorted(shown, key=lambda name: mean(shown[name]))
    with plot(folder / 'variants.png', 6.4, 0.9 + 0.28 * len(ordered)) as (axis,):
        for position, name in enumerate(ordered):
            values, color = shown[name], 'tab:blue' if 'peg' in name else '0.5'
            axis.plot([min(values), max(values)], [position] * 2, '-', color=color, lw=2)
            axis.plot(values, [position] * len(values), '.', color=color, ms=6)
            axis.plot(mean(values), position, '|', color='k', ms=12)
        axis.set_yticks(range(len(ordered)), [VARIANTS[name].label for name in ordered])
        axis.grid(axis='x', color='0.9')
        axis.set_xlabel(f'top-1 at {train_size} px (%); dots: seeds, stroke: mean')


def draw_transfer(results: pd.DataFrame, folder: Path) -> None:
    """Metric against test size, a panel for each task: dashed from scratch, a colour for each encoding."""
    tasks = results.groupby(['task', 'metric'])
    with plot(folder / 'dense_transfer.png', 4.6 * len(tasks), 3.6, panels=len(tasks)) as axes:
        for axis, ((task, metric), rows) in zip(axes, tasks, strict=True):
            for start in STARTS:
                for index, encoding in enumerate(encodings_of(rows)):
                    style = dict(linestyle='--' if start == 'scratch' else '-', color=f'C{index}')
                    line = rows[(rows['start'] == start) & (rows['encoding'] == encoding)]
                    draw_line(axis, line, 'value', label=f'{encoding}, {start}', **style)
            axis.set(title=task, xlabel='size, relative to the test scale of the config', ylabel=metric)
            axis.set_ylim(bottom=0)
            axis.grid(alpha=0.25)
        axes[0].legend(frameon=False, fontsize=8)


def draw_line(axis: Any, results: pd.DataFrame, column: str, **style: Any) -> None:
    """Mean over seeds against the size, in a band from the lowest to the highest."""
    low, middle, high = (getattr(results.groupby('size')[column], name)() for name in ('min', 'mean', 'max'))
    (line,) = axis.plot(middle, marker='o', ms=4, **style)
    axis.fill_between(middle.index, low, high, color=line.get_color(), alpha=0.15)


@contextmanager
def plot(path: Path, width: float, height: float, panels: int = 1) -> Iterator[Any]:
    """Axes of a figure of width x height inches, written to ``path`` at the end."""
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot as plt

    with plt.rc_context({'axes.spines.top': False, 'axes.spines.right': False}):
        figure, axes = plt.subplots(1, panels, figsize=(width, height), squeeze=False)
    try:
        yield axes[0]
        figure.tight_layout()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
    finally:
        plt.close(figure)

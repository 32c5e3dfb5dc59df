"""Tables and a plot from the results' CSV files alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from positional_encoding.report import markdown, new_figure, run_row, write_csv
from positional_encoding.runs import read_records

from cpvt_backbones.analysis.tables import fill_marked

LABELS = {
    'none': 'no encoding',
    'table': 'table',
    'peg': 'PEG 0-5',
    'rope': 'RoPE',
    'table+peg': 'table + PEG 0-5',
    'peg+rope': 'PEG 0-5 + RoPE',
}
TRAININGS = {'untrained': 'not adapted', 'mixed': 'mixed sizes', 'single': 'one size'}
MEASURES = {
    'neighbours': '5 nearest neighbours, %',
    'probe': 'linear probe, %',
    'cosines': 'cosine to the teacher at 224 px, %',
}
COMPARED = [('table', 'none'), ('peg', 'none'), ('peg', 'table'), ('table+peg', 'table'), ('rope', 'table')]
COMPARED += [('peg', 'rope'), ('peg+rope', 'rope'), ('peg+rope', 'table+peg')]
FILES = 'any_size_vit', 'any_size_vit_runs'


def write_report(work_dir: Path, docs: Path | None = None) -> None:
    """Collect the finished runs in CSV files, and write tables and a plot from these.

    Args:
        work_dir: Folder of the runs. Without finished ones the CSV files that are there are kept.
        docs: Markdown page whose marked part becomes the tables, with CSV files and the plot in a folder of its name;
            ``None`` writes all into ``work_dir``.

    Raises:
        ValueError: There are neither finished runs nor CSV files.
    """
    folder, pictures = (work_dir, '.') if docs is None else (docs.with_suffix(''), docs.stem)
    results, runs = (folder / f'{name}.csv' for name in FILES)
    if records := read_records(work_dir):
        write_csv(({**record['run'], **row} for record in records for row in record['rows']), results)
        write_csv((run_row(record) for record in records), runs)
    if not results.exists():
        raise ValueError(f'work_dir: {work_dir} has no finished run, and {folder} no results')
    table = read_results(results)
    text = report(table, pictures)
    draw(table, folder)
    if docs is None:
        (folder / 'report.md').write_text(text + '\n', encoding='utf-8')
    else:
        fill_marked(docs, 'any-size-vit', text)


def read_results(file: Path) -> pd.DataFrame:
    """Results with one array, a value for each query in percent, in the column of each measure."""
    table = pd.read_csv(file, dtype={'neighbours': str, 'probe': str, 'cosines': str})
    for name in ('neighbours', 'probe'):
        table[name] = [np.array([100.0 * int(digit) for digit in text]) for text in table[name]]
    table['cosines'] = [np.array(text.split(), dtype=float) / 10 for text in table['cosines']]
    return table


def report(table: pd.DataFrame, pictures: str = '.') -> str:
    """The report as Markdown; ``pictures`` is the folder of the plot, relative to it."""
    parts = []
    for measure, title in MEASURES.items():
        parts += [f'**{title}**', summary(table, measure)]
    parts.append(f'![Nearest neighbours and cosine against image size]({pictures}/any_size_vit.png)')
    parts += ['**Differences, mixed sizes, with their 95 % interval over the images**', differences(table)]
    return '\n\n'.join([*parts, '**Cost**', cost(table)])


def students(table: pd.DataFrame) -> list[tuple[str, str]]:
    """(variant, training) of the results, in the order of the report."""
    found = set(zip(table['variant'], table['training'], strict=True))
    return [(variant, training) for training in TRAININGS for variant in LABELS if (variant, training) in found]


def values(table: pd.DataFrame, measure: str, variant: str, training: str) -> dict[int, np.ndarray]:
    """Values of the queries at each size, mean over the seeds."""
    chosen = table[(table['variant'] == variant) & (table['training'] == training)]
    return {size: np.mean(list(rows[measure]), axis=0) for size, rows in chosen.groupby('size')}


def interval(sample: np.ndarray) -> float:
    """Half the width of the 95 % interval of a mean, normal approximation."""
    return 1.96 * float(sample.std(ddof=1)) / len(sample) ** 0.5


def summary(table: pd.DataFrame, measure: str) -> str:
    """Mean and half of its interval, for every student and size."""
    rows = []
    for variant, training in students(table):
        found = values(table, measure, variant, training)
        seeds = table[(table['variant'] == variant) & (table['training'] == training)]['seed'].nunique()
        cells = {f'{size} px': f'{v.mean():.1f} ± {interval(v):.1f}' for size, v in found.items()}
        rows.append(dict(encoding=LABELS[variant], adapted=TRAININGS[training], seeds=seeds) | cells)
    return markdown(pd.DataFrame(rows).fillna(''), 'll')


def differences(table: pd.DataFrame) -> str:
    """Differences between students on the same images."""
    rows = []
    for left, right in COMPARED:
        for measure, title in MEASURES.items():
            one, other = (values(table, measure, variant, 'mixed') for variant in (left, right))
            if not (one and other):
                continue
            gaps = {size: one[size] - other[size] for size in one}
            cells = {f'{size} px': f'{gap.mean():+.1f} ± {interval(gap):.1f}' for size, gap in gaps.items()}
            name = f'{LABELS[left]} minus {LABELS[right]}'
            rows.append(dict(difference=name, measure=title.partition(',')[0].partition(' to')[0]) | cells)
    return markdown(pd.DataFrame(rows), 'll') if rows else 'None yet.'


def cost(table: pd.DataFrame) -> str:
    """Steps, final loss and CPU minutes of each run."""
    runs = table.drop_duplicates(['variant', 'training', 'seed'])
    rows = []
    for variant, training in students(table):
        for run in runs[(runs['variant'] == variant) & (runs['training'] == training)].itertuples():
            loss = '' if pd.isna(run.loss) else f'{run.loss:.4f}'
            minutes: dict[str, Any] = {'adapting, CPU min': f'{run.training_s / 60:.1f}'}
            minutes['testing, CPU min'] = f'{run.testing_s / 60:.1f}'
            names = dict(
                encoding=LABELS[variant], adapted=TRAININGS[training], seed=run.seed, steps=run.steps, loss=loss
            )
            rows.append(names | minutes)
    return markdown(pd.DataFrame(rows), 'll')


def draw(table: pd.DataFrame, folder: Path) -> None:
    """Nearest neighbours and cosine against image size, a line for each student."""
    shown = ('neighbours', 'cosines')
    figure, axes = new_figure(10, 4, panels=2)
    for axis, measure in zip(axes, shown, strict=True):
        for index, (variant, training) in enumerate(students(table)):
            found = values(table, measure, variant, training)
            style = dict(untrained=':', mixed='-', single='--')[training]
            means = [v.mean() for v in found.values()]
            label = f'{LABELS[variant]}, {TRAININGS[training]}'
            axis.plot(list(found), means, style, marker='o', ms=4, color=f'C{index % 10}', label=label)
        sizes = sorted(table['size'].unique())
        axis.set_xscale('log')
        axis.set_xticks(sizes, [str(size) for size in sizes])
        axis.minorticks_off()
        axis.set(xlabel='side of the test images (px)', ylabel=MEASURES[measure])
        axis.grid(alpha=0.25)
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(folder / 'any_size_vit.png', dpi=110)

"""Tables and a plot from the results' CSV files alone."""

from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from positional_encoding.report import collect, collect_rows, markdown, new_figure
from positional_encoding.runs import read_records

from benchmarks import fill_marked

from .reasons import read_reasons
from .segmentation import miou, read_segmentation, resampled, unpack
from .study import OTHER, AdaptRun

LABELS = {
    'none': 'no encoding',
    'table': 'table',
    'peg': 'PEG 0-5',
    'rope': 'RoPE',
    'table+peg': 'table + PEG 0-5',
    'peg+rope': 'PEG 0-5 + RoPE',
}
TRAININGS = {
    'untrained': 'not adapted',
    'mixed': 'mixed sizes',
    'long': 'mixed sizes, longer',
    'single': 'one size',
}
MEASURES = {
    'neighbours': '5 nearest neighbours, %',
    'probe': 'linear probe, %',
    'cosines': 'cosine to the teacher at 224 px, %',
}
COMPARED = [
    ('table', 'none'),
    ('peg', 'none'),
    ('peg', 'table'),
    ('table+peg', 'table'),
    ('rope', 'table'),
]
COMPARED += [('rope', 'none'), ('peg', 'rope'), ('peg+rope', 'rope'), ('peg+rope', 'table+peg')]
PAIRS = [(one, 'mixed', other, 'mixed') for one, other in COMPARED]
PAIRS += [('peg', 'long', other, 'mixed') for other in ('table', 'rope')]
PAIRS += [
    ('peg', 'long', 'table', 'long'),
    ('rope', 'long', 'table', 'long'),
    ('peg', 'long', 'rope', 'long'),
]
PAIRS += [('peg', 'single', 'table', 'single'), ('peg', 'single', 'rope', 'single')]
PAIRS += [(variant, 'mixed', variant, 'single') for variant in ('table', 'peg', 'rope')]
SUFFIXES = {'mixed': '', 'long': ' (longer)', 'single': ' (one size)'}
FILES = 'any_size_vit', 'any_size_vit_runs', 'any_size_vit_reasons', 'any_size_vit_segmentation'
OTHER_FILES = 'any_size_vit_other', 'any_size_vit_other_runs'
SLIDE = 'any_size_vit_reasons.png'
REASONS = {
    'place': 'row and column that a probe, fitted at 224 px, reads from a token, R²',
    'distance': "distance of attention, shares of the image's side",
    'entropy': 'entropy of attention, 1: all patches alike',
}


def write_report(work_dir: Path, docs: Path | None = None) -> None:
    """Collect the finished runs in CSV files, and write tables and a plot from these.

    Args:
        work_dir: Folder of the runs. Runs of the CSV files that are not there are kept.
        docs: Markdown page whose marked part becomes the tables, with CSV files and the plot in a
            folder of its name; ``None`` writes all into ``work_dir``.

    Raises:
        ValueError: There are neither finished runs nor CSV files, or runs in different precisions.
    """
    folder, pictures = (work_dir, '.') if docs is None else (docs.with_suffix(''), docs.stem)
    results, runs, reasons, dense = (folder / f'{name}.csv' for name in FILES)
    if records := read_records(work_dir):
        collect(records, results, runs)
    others, other_runs = (folder / f'{name}.csv' for name in OTHER_FILES)
    if records := read_records(work_dir / OTHER):
        collect(records, others, other_runs)
    if rows := read_reasons(work_dir):
        collect_rows(rows, list(AdaptRun._fields), reasons)
    if rows := read_segmentation(work_dir):
        collect_rows(rows, list(AdaptRun._fields), dense)
    if not results.exists():
        raise ValueError(f'work_dir: {work_dir} has no finished run, and {folder} no results')
    table = read_results(results)
    text = report(table, pictures)
    if others.exists():
        text += '\n\n' + report_other(read_results(others))
    draw(table, folder)
    if dense.exists():
        text += '\n\n' + report_segmentation(pd.read_csv(dense))
    if reasons.exists():
        text += '\n\n' + report_reasons(pd.read_csv(reasons), pictures)
        draw_reasons(table, pd.read_csv(reasons), folder)
    if docs is None:
        (folder / 'report.md').write_text(text + '\n', encoding='utf-8')
    else:
        fill_marked(docs, 'any-size-vit', text)


def read_results(file: Path) -> pd.DataFrame:
    """Results with one array, a value for each query in percent, in the column of each measure."""
    table = pd.read_csv(file, dtype={'neighbours': str, 'probe': str, 'cosines': str})
    if table['precision'].nunique() > 1:
        raise ValueError(f'{file}: runs in different precisions')
    for name in ('neighbours', 'probe'):
        table[name] = [np.array([100.0 * int(digit) for digit in text]) for text in table[name]]
    table['cosines'] = [np.array(text.split(), dtype=float) / 10 for text in table['cosines']]
    return table


def report(table: pd.DataFrame, pictures: str = '.') -> str:
    """The report as Markdown; ``pictures`` is the folder of the plot, relative to it."""
    parts = measured(table)
    parts.append(
        f'![Nearest neighbours and cosine against image size]({pictures}/any_size_vit.png)'
    )
    title = (
        '**Differences on the same images, with their 95 % interval; adapted at mixed sizes if'
        ' nothing else is named**'
    )
    parts += [title, differences(table)]
    return '\n\n'.join([*parts, '**Cost**', cost(table)])


def measured(table: pd.DataFrame) -> list[str]:
    """A title and a table for each measure."""
    return [
        part
        for measure, title in MEASURES.items()
        for part in (f'**{title}**', summary(table, measure))
    ]


def report_other(table: pd.DataFrame) -> str:
    """Results of the other data set."""
    title = f'### On {", ".join(table["data"].unique())}'
    return '\n\n'.join([title, *measured(table), '**Differences**', differences(table)])


def students(table: pd.DataFrame) -> list[tuple[str, str]]:
    """(variant, training) of the results, in the order of the report."""
    found = set(zip(table['variant'], table['training'], strict=True))
    return [
        (variant, training)
        for training in TRAININGS
        for variant in LABELS
        if (variant, training) in found
    ]


def values(table: pd.DataFrame, measure: str, variant: str, training: str) -> dict[int, np.ndarray]:
    """Values of each seed and query (S, Q), at each size."""
    chosen = table[(table['variant'] == variant) & (table['training'] == training)]
    return {size: np.stack(list(rows[measure])) for size, rows in chosen.groupby('size')}


def wilson(sample: np.ndarray) -> tuple[float, float]:
    """95 % interval of a proportion in percent (Wilson), from hits (S, Q) of 0 or 100 of as many
    queries.
    """
    share, count, z = sample.mean() / 100, sample.shape[1], 1.96
    centre = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * (share * (1 - share) / count + z**2 / (4 * count**2)) ** 0.5
    return 100 * (centre - half), 100 * (centre + half)


def interval(sample: np.ndarray, *, pairs: bool = False) -> float:
    """Half the width of the 95 % interval of the mean of (S, Q) values, normal approximation.

    The variance of the mean over the queries and, of several seeds, that over the seeds are added.
    ``pairs``: the values are differences of hits; half an observation is added to each of the four
    outcomes (Agresti and Min, 2005), so that equal results have an interval too.
    """
    queries = sample.mean(axis=0)
    if pairs:
        queries = np.append(queries, [50 * 2**0.5, -50 * 2**0.5])
    variance = queries.var(ddof=1) / len(queries)
    if len(sample) > 1:
        variance += sample.mean(axis=1).var(ddof=1) / len(sample)
    return float(1.96 * variance**0.5)


def summary(table: pd.DataFrame, measure: str) -> str:
    """Mean and interval, for every student and size."""
    rows = []
    for variant, training in students(table):
        found = values(table, measure, variant, training)
        cells = {}
        for size, sample in found.items():
            low, high = wilson(sample)
            error = (
                f'± {interval(sample):.1f}'
                if measure == 'cosines'
                else f'({low:.0f} to {high:.0f})'
            )
            cells[f'{size} px'] = f'{sample.mean():.1f} {error}'
        seeds = max(len(sample) for sample in found.values())
        rows.append(
            dict(encoding=LABELS[variant], adapted=TRAININGS[training], seeds=seeds) | cells
        )
    return markdown(pd.DataFrame(rows).fillna(''), 'll')


def differences(table: pd.DataFrame) -> str:
    """Differences between students on the same images, over the seeds that both have."""
    rows = []
    for left, training, right, other_training in PAIRS:
        for measure, title in MEASURES.items():
            one, other = (
                values(table, measure, left, training),
                values(table, measure, right, other_training),
            )
            if not (one and other):
                continue
            cells = {}
            for size in one:
                seeds = min(len(one[size]), len(other[size]))
                gap = one[size][:seeds] - other[size][:seeds]
                cells[f'{size} px'] = (
                    f'{gap.mean():+.1f} ± {interval(gap, pairs=measure != "cosines"):.1f}'
                )
            name = (
                f'{LABELS[left]}{SUFFIXES[training]} minus'
                f' {LABELS[right]}{SUFFIXES[other_training]}'
            )
            rows.append(
                dict(difference=name, measure=title.partition(',')[0].partition(' to')[0]) | cells
            )
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
                encoding=LABELS[variant],
                adapted=TRAININGS[training],
                seed=run.seed,
                steps=run.steps,
                loss=loss,
            )
            rows.append(names | minutes)
    return markdown(pd.DataFrame(rows), 'll')


def report_segmentation(table: pd.DataFrame) -> str:
    """Mean IoU over the seeds, and its difference to the table that is not adapted."""
    shown, gaps = [], []
    for variant, training in students(table):
        chosen = table[(table['variant'] == variant) & (table['training'] == training)]
        names = dict(encoding=LABELS[variant], adapted=TRAININGS[training])
        cells, lines = dict[str, str](), dict[str, str]()
        for factor, rows in chosen.groupby('size'):
            found = [unpack(text) for text in rows['counts']]
            cells[f'{factor:g} x'] = f'{np.mean([miou(blocks) for blocks in found]):.1f}'
            same = (
                (table['variant'] == 'table')
                & (table['training'] == 'untrained')
                & (table['size'] == factor)
            )
            if training != 'untrained' and same.any():
                other = unpack(table[same]['counts'].iloc[0])
                gap = np.mean([miou(blocks) for blocks in found]) - miou(other)
                low, high = resampled(found, other)
                lines[f'{factor:g} x'] = f'{gap:+.1f} ({low:+.1f} to {high:+.1f})'
        if cells:
            shown.append(names | dict(seeds=chosen['seed'].nunique()) | cells)
        if lines:
            gaps.append(names | lines)
    parts = [
        '**CamVid, linear segmentor on frozen tokens, trained at 1 x: mIoU**',
        markdown(pd.DataFrame(shown).fillna(''), 'll'),
    ]
    if gaps:
        title = (
            '*Minus that of the table that is not adapted, with the 95 % interval over blocks of'
            ' images*'
        )
        parts += [title, markdown(pd.DataFrame(gaps).fillna(''), 'll')]
    return '\n\n'.join(parts)


def report_reasons(table: pd.DataFrame, pictures: str) -> str:
    """Tables of what :mod:`any_size_vit.reasons` measures, and the slide."""
    parts = [
        '**Why**',
        f'![Accuracy, place and distance of attention against image size]({pictures}/{SLIDE})',
    ]
    for measure, title in REASONS.items():
        rows = []
        for variant, training in students(table):
            chosen = table[(table['variant'] == variant) & (table['training'] == training)]
            cells = {
                f'{size} px': f'{found[measure].mean():.2f}'
                for size, found in chosen.groupby('size')
            }
            rows.append(dict(encoding=LABELS[variant], adapted=TRAININGS[training]) | cells)
        parts += [f'*{title[0].upper()}{title[1:]}*', markdown(pd.DataFrame(rows), 'll')]
    return '\n\n'.join(parts)


def draw_reasons(results: pd.DataFrame, reasons: pd.DataFrame, folder: Path) -> None:
    """One figure: cosine to the teacher, place and attention against image size, a line for each
    student.
    """
    figure, axes = new_figure(12, 3.8, panels=3)
    panels = [
        ('cosines', results, MEASURES['cosines']),
        *((k, reasons, REASONS[k]) for k in ('place', 'distance')),
    ]
    for axis, (measure, table, title) in zip(axes, panels, strict=True):
        for variant, training in students(reasons):
            chosen = table[(table['variant'] == variant) & (table['training'] == training)]
            chosen = chosen[chosen['size'].isin(reasons['size'])]
            means = {
                size: np.mean(np.stack(list(found[measure])))
                for size, found in chosen.groupby('size')
            }
            axis.plot(list(means), list(means.values()), **line(variant, training))
        against_size(axis, sorted(reasons['size'].unique()), title)
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(folder / SLIDE, dpi=110)


def line(variant: str, training: str) -> dict[str, Any]:
    """A colour for each encoding, a line style for each training."""
    style = dict(untrained=':', mixed='-', long='-.', single='--')[training]
    label = f'{LABELS[variant]}, {TRAININGS[training]}'
    return dict(
        color=f'C{list(LABELS).index(variant)}',
        linestyle=style,
        marker='o',
        markersize=4,
        label=label,
    )


def against_size(axis: Any, sizes: list[int], title: str) -> None:
    """Label an axis of image sizes; a long title takes two lines."""
    axis.set_xscale('log')
    axis.set_xticks(sizes, [str(size) for size in sizes])
    axis.minorticks_off()
    axis.set(xlabel='side of the test images (px)', ylabel=fill(title, 36))
    axis.grid(alpha=0.25)


def draw(table: pd.DataFrame, folder: Path) -> None:
    """Nearest neighbours and cosine against image size, a line for each student."""
    shown = ('neighbours', 'cosines')
    figure, axes = new_figure(12, 4, panels=2)
    for axis, measure in zip(axes, shown, strict=True):
        for variant, training in students(table):
            found = values(table, measure, variant, training)
            axis.plot(
                list(found), [sample.mean() for sample in found.values()], **line(variant, training)
            )
        against_size(axis, sorted(table['size'].unique()), MEASURES[measure])
    axes[1].legend(frameon=False, fontsize=8, loc='upper left', bbox_to_anchor=(1, 1))
    figure.savefig(folder / 'any_size_vit.png', dpi=110)

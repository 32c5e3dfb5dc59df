"""Tables and a plot from the results' CSV files alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from positional_encoding.report import collect, collect_rows, markdown
from positional_encoding.runs import read_records

from benchmarks import fill_marked, plots

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
    'cosines': 'cosine to the teacher at 224 px, %',
}
"""Measures of the report; the CSV files have a linear probe, too."""

AXES = {
    'neighbours': 'nearest neighbours: accuracy (%)',
    'cosines': 'cosine to the original model (%)',
}
"""Titles of the measures in the plot."""

LARGEST = 448  # px, of the report: the CSV files have 640 px, too, with 25 queries
CURVES = (
    ('table', 'untrained'),
    ('table', 'mixed'),
    ('none', 'mixed'),
    ('peg', 'mixed'),
    ('rope', 'mixed'),
)
"""Students that are drawn."""

PAIRS = (
    ('peg', 'mixed', 'table', 'mixed'),
    ('rope', 'mixed', 'table', 'mixed'),
    ('peg', 'mixed', 'rope', 'mixed'),
    ('table+peg', 'mixed', 'table', 'mixed'),
    ('peg', 'long', 'table', 'long'),
)
"""Students whose difference is reported; both of a pair ran on the same kind of processor."""

SUFFIXES = {'mixed': '', 'long': ' (longer)'}
FILES = 'any_size_vit', 'any_size_vit_runs', 'any_size_vit_reasons', 'any_size_vit_segmentation'
OTHER_FILES = 'any_size_vit_other', 'any_size_vit_other_runs'
SLIDE = 'any_size_vit_reasons.png'
REASONS = {
    'place': 'place read by a probe (R²)',
    'distance': 'attention distance (share of side)',
}


def write_report(work_dir: Path, docs: Path | None = None) -> None:
    """Collect the finished runs in CSV files, and write tables and a plot from these.

    Args:
        work_dir: Folder of the runs. Runs of the CSV files that are not there are kept.
        docs: Folder of CSV files, plots and the page ``clip.md``, whose marked part becomes the
            report; ``None`` writes all into ``work_dir``, with the page ``report.md``.

    Raises:
        ValueError: There are neither finished runs nor CSV files, or runs in different precisions.
    """
    folder = work_dir if docs is None else docs
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
    text = report(table)
    if others.exists():
        text += '\n\n' + report_other(read_results(others))
    draw(table, folder)
    if dense.exists():
        text += '\n\n' + report_segmentation(pd.read_csv(dense))
    if reasons.exists():
        text += '\n\n' + report_reasons(pd.read_csv(reasons))
        draw_reasons(pd.read_csv(reasons), folder)
    if docs is None:
        (folder / 'report.md').write_text(text + '\n', encoding='utf-8')
    else:
        fill_marked(docs / 'clip.md', 'any-size-vit', text)


def read_results(file: Path) -> pd.DataFrame:
    """Results with one array, a value for each query in percent, in the column of each measure."""
    table = pd.read_csv(file, dtype={'neighbours': str, 'probe': str, 'cosines': str})
    if table['precision'].nunique() > 1:
        raise ValueError(f'{file}: runs in different precisions')
    for name in ('neighbours', 'probe'):
        table[name] = [np.array([100.0 * int(digit) for digit in text]) for text in table[name]]
    table['cosines'] = [np.array(text.split(), dtype=float) / 10 for text in table['cosines']]
    return table


def report(table: pd.DataFrame) -> str:
    """The report as Markdown."""
    parts = [
        '![Nearest neighbours and cosine against image size](any_size_vit.png)',
        *measured(table),
        '**Differences on the same images, with their 95 % interval**',
        differences(table),
    ]
    return '\n\n'.join(parts)


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
    parts = [title, *measured(table), '**Differences**', differences(table)]
    return '\n\n'.join(parts)


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
    """Values of each seed and query (S, Q), at each size that is reported."""
    chosen = table[(table['variant'] == variant) & (table['training'] == training)]
    chosen = chosen[chosen['size'] <= LARGEST]
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
            what = title.partition(',')[0].partition(' to')[0]
            rows.append(dict(difference=name, measure=what, seeds=seeds) | cells)
    return markdown(pd.DataFrame(rows), 'll') if rows else 'None yet.'


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


def report_reasons(table: pd.DataFrame) -> str:
    """The plot of what :mod:`any_size_vit.reasons` measures, and a table of the place."""
    rows = []
    for variant, training in students(table):
        chosen = table[(table['variant'] == variant) & (table['training'] == training)]
        cells = {
            f'{size} px': f'{r2:.2f}' for size, r2 in chosen.groupby('size')['place'].mean().items()
        }
        names = dict(encoding=LABELS[variant], adapted=TRAININGS[training])
        rows.append(names | dict(seeds=chosen['seed'].nunique()) | cells)
    parts = [
        '**Why**',
        f'![Place and distance of attention against image size]({SLIDE})',
        '*Row and column of a token, read by a probe that was fitted at 224 px, R²*',
        markdown(pd.DataFrame(rows), 'll'),
    ]
    return '\n\n'.join(parts)


def draw_reasons(reasons: pd.DataFrame, folder: Path) -> None:
    """Draw place and distance of attention against image size, a line for each student."""
    figure, axes = plots.new_figure(5.4, ratios=(1,) * len(REASONS))
    for axis, (measure, title) in zip(axes, REASONS.items(), strict=True):
        for variant, training in drawn(reasons):
            chosen = reasons[(reasons['variant'] == variant) & (reasons['training'] == training)]
            means = chosen.groupby('size')[measure].mean()
            axis.plot(means, **line(variant, training))
        against_size(axis, sorted(reasons['size'].unique()), title)
    axes[0].axhline(0, color=plots.GREY, linewidth=0.8)
    finish(figure, axes, folder / SLIDE)


def drawn(table: pd.DataFrame) -> list[tuple[str, str]]:
    """(variant, training) of the students that are drawn, of those in the results."""
    found = students(table)
    return [one for one in CURVES if one in found]


def line(variant: str, training: str) -> dict[str, Any]:
    """The encoding's colour; dotted if the student was not adapted."""
    return dict(
        color=plots.ENCODINGS[variant],
        linestyle=':' if training == 'untrained' else '-',
        marker='o',
        markersize=4,
        label=LABELS[variant] + (', not adapted' if training == 'untrained' else ''),
    )


def against_size(axis: Any, sizes: list[int], title: str) -> None:
    """Set the ticks of an axis of image sizes, and the title of the measure."""
    axis.set_xscale('log')
    axis.set_xticks(sizes, [str(size) for size in sizes])
    axis.minorticks_off()
    axis.set_ylabel(title)
    plots.add_grid(axis)


def finish(figure: Any, axes: list[Any], path: Path) -> None:
    """Label the axis of sizes, add the legend, and write the plot."""
    axes[-1].set_xlabel('side of the test images (px)')
    plots.add_legend(figure, columns=3)
    plots.save_figure(figure, path)


def draw(table: pd.DataFrame, folder: Path) -> None:
    """Draw nearest neighbours and cosine against image size, a line for each student."""
    figure, axes = plots.new_figure(5.4, ratios=(1,) * len(AXES))
    for axis, (measure, title) in zip(axes, AXES.items(), strict=True):
        for variant, training in drawn(table):
            found = values(table, measure, variant, training)
            means = [sample.mean() for sample in found.values()]
            axis.plot(list(found), means, **line(variant, training))
        against_size(
            axis, sorted(size for size in table['size'].unique() if size <= LARGEST), title
        )
    finish(figure, axes, folder / 'any_size_vit.png')

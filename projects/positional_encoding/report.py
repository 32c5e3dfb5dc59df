"""Tables, verdicts, and plots, from the results' CSV files alone."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import pandas as pd

from benchmarks import fill_marked, plots
from cpvt_backbones.checkpoints import atomic_write

from .claims import (
    LEVEL,
    TOP1,
    UNTESTED,
    Difference,
    Judged,
    Tested,
    accuracy,
    best_rates,
    claims,
    count_tested,
    holm,
    judge,
    rate_trials,
)
from .forest import draw_claims, sort_by_verdict
from .objects import GROUPS, WAYS, read_objects
from .runs import Record, read_records
from .transfer import STARTS
from .variants import CURVES, VARIANTS, encoding_of

TINY = 'tiny_imagenet_'  # of the plots' names
METRICS = {'coco/bbox_mAP': 'box AP (%)', 'mIoU': 'mIoU (%)'}
"""Names of mmdet's and mmseg's metrics for a reader."""

TITLES = {'retinanet': 'RetinaNet on BCCD', 'semantic-fpn': 'Semantic FPN on CamVid'}
LABELS = {'peg': 'PEG', 'learned': 'table', 'scratch': 'random weights', 'pretrained': 'pretrained'}
"""Encodings and starts of the dense transfer for a reader."""


class Stage(NamedTuple):
    """What a stage leaves: CSV files, and the page with its report."""

    folder: str  # of its runs, in the work folder
    table: str  # of its results
    runs: str  # table of the runs' machines
    page: str  # with a marked part of the table's name
    report: Callable[[pd.DataFrame], str]
    draw: Callable[[pd.DataFrame, Path], None]


def write_report(work_dir: Path, docs: Path | None = None) -> None:
    """Collect the finished runs in CSV files, and write tables and plots from these.

    Args:
        work_dir: Folder of the stages' runs. Runs of the CSV files that are not there are kept.
        docs: Folder of CSV files, plots, and a Markdown page a study, whose marked part becomes
            the report; ``None`` writes all into ``work_dir``, with one page, ``report.md``.

    Raises:
        ValueError: There are neither finished runs nor CSV files.
    """
    folder = work_dir if docs is None else docs
    parts = {}
    for stage in STAGES:
        table = folder / f'{stage.table}.csv'
        if records := read_records(work_dir / stage.folder):
            collect(records, table, folder / f'{stage.runs}.csv')
        if table.exists():
            results = pd.read_csv(table)
            parts[stage] = stage.report(results)
            stage.draw(results, folder)
            print(f'report from {table}')
    tiny = STAGES[1]
    objects = folder / 'tiny_imagenet_objects.csv'
    if rows := read_objects(work_dir / tiny.folder):
        collect_rows(rows, ['variant', 'seed', 'rate_factor'], objects)
    if objects.exists() and tiny in parts:
        parts[tiny] += objects_report(
            pd.read_csv(objects), pd.read_csv(folder / f'{tiny.table}.csv')
        )
    if not parts:
        raise ValueError(f'work_dir: {work_dir} has no finished run, and {folder} no results')
    if docs is None:
        (folder / 'report.md').write_text('\n\n'.join(parts.values()) + '\n', encoding='utf-8')
        return
    for stage, text in parts.items():
        fill_marked(docs / stage.page, stage.table.replace('_', '-'), text)
    if all(stage in parts for stage in STAGES[:2]):
        results = [pd.read_csv(docs / f'{stage.table}.csv') for stage in STAGES[:2]]
        fill_marked(docs / 'claims.md', 'claims', verdicts_table(*results))


def run_row(record: Record) -> dict[str, Any]:
    """A run, its commits and its machine."""
    found = record['environment']
    machine = dict(processor=found['processor'], threads=found['threads'])
    versions = dict(python=found['Python'].split()[0], torch=found['PyTorch'])
    length = {name: value for name, value in record['rows'][0].items() if name == 'epochs'}
    return dict(**record['run'], **length, commits=record['commits'], **machine, **versions)


def collect(records: Sequence[Record], results: Path, runs: Path) -> None:
    """Write the results and the environments of finished runs to two CSV files.

    Keep other runs that these have.
    """
    names = list(records[0]['run'])
    collect_rows(
        [{**record['run'], **row} for record in records for row in record['rows']], names, results
    )
    collect_rows(list(map(run_row, records)), names, runs)


def collect_rows(rows: Sequence[dict[str, Any]], names: list[str], path: Path) -> None:
    """Write rows of runs, which the columns ``names`` tell apart, to a CSV file.

    Keep other runs that it has.
    """
    table = pd.DataFrame(rows)
    if path.exists():
        new = set(table[names].astype(str).itertuples(index=False, name=None))
        before = pd.read_csv(path, dtype=str, keep_default_na=False)
        kept = [run not in new for run in before[names].itertuples(index=False, name=None)]
        table = pd.concat([before[kept], table.astype(object)])
        table = table.sort_values(names, key=lambda column: column.astype(str))
    with atomic_write(path) as file:
        table.to_csv(file, index=False)


def classify_report(results: pd.DataFrame, prefix: str = '') -> str:
    """Report on the classifiers as Markdown.

    Args:
        results: The rows of all runs.
        prefix: Of the plots' names; with one, claims that were not tested are left out.
    """
    size, epochs = results['size'].min(), results['epochs'].iloc[0]
    rates = rates_table(results, size)
    parts = [
        (
            f'Top-1 (%), mean ± standard deviation over seeds; trained at {size} px for {epochs}'
            ' epochs.'
        ),
        summary_table(results, size),
        f'![Top-1 against image size]({prefix}sizes.png)',
        '' if prefix else f'![Top-1 of every encoding at {size} px](variants.png)',
        rates and f'The learning rates that were tried, first seed:\n\n{rates}',
        claims_report(results, size, all_claims=not prefix),
    ]
    return '\n\n'.join(filter(None, parts))


def summary_table(results: pd.DataFrame, train_size: int) -> str:
    """Top-1 accuracy of every variant at every size: mean and standard deviation over seeds."""
    variants = best_rates(results, train_size).groupby('variant')
    table = variants.agg(seeds=('seed', 'nunique'))
    for size in sorted(results['size'].unique()):
        table[f'{size} px'] = variants.apply(
            lambda rows, at=size: spread(rows.loc[rows['size'] == at, 'top1'], 1)
        )
    table['shift error'] = variants['shift_error'].agg(lambda errors: spread(errors.dropna(), 3))
    table = table.loc[[name for name in VARIANTS if name in table.index]]
    table.insert(0, 'encoding', [VARIANTS[name].label for name in table.index])
    return markdown(table)


def rates_table(results: pd.DataFrame, train_size: int) -> str:
    """Top-1 accuracy of the first seed at the training size, of the variants that were run at
    several rates.
    """
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


def claims_report(results: pd.DataFrame, train_size: int, all_claims: bool = True) -> str:
    """Summary and table of every claim, or of those with a comparison that was run."""
    judged = judge(claims(train_size), best_rates(results, train_size))
    if not all_claims:
        judged = [one for one in judged if any(map(was_run, one.parts))]
    if not judged:
        return ''
    return f'{claims_summary(judged, all_claims)}\n\n{claims_table(judged)}'


def was_run(part: Tested) -> bool:
    """Whether both variants of a comparison were run."""
    return part.difference.mean is not None


def claims_summary(judged: Sequence[Judged], all_claims: bool) -> str:
    """The number of the paper's claims that are tested, and the correction.

    Of a part, the latter.
    """
    parts = [part for one in judged for part in one.parts if part.comparison.family == TOP1]
    found = [part.difference.p_value for part in parts if part.difference.p_value is not None]
    nominal = sum(p_value < LEVEL for p_value in found)
    kept = sum(part.p_value is not None and part.p_value < LEVEL for part in parts)
    correction = (
        f"Verdicts: Holm's correction over {len(found)} comparisons of top-1, at the 5 % level. "
        f'Before it {nominal} differ from their bound, after it {kept}.'
    )
    if not all_claims:
        return correction
    tested, of_paper = count_tested(judged)
    others = ', '.join(one.claim.letter for one in judged if not one.claim.in_paper)
    return (
        f'{tested} of {of_paper} claims that we drew from the paper are tested; {others} is ours.'
        f' {correction}'
    )


def claims_table(judged: Sequence[Judged]) -> str:
    """Every claim, its comparisons, and its verdict."""
    rows = []
    for claim, parts in judged:
        verdict = Judged(claim, parts).verdict
        rows.append((f'**{claim.letter}**', f'**{claim.text}**', '', '', '', f'**{verdict}**'))
        for part in parts:
            paper = '' if part.comparison.paper is None else f'{part.comparison.paper:+.1f}'
            p_value = p_text(part.p_value)
            difference = part.difference.text()
            rows.append(('', str(part.comparison), difference, p_value, paper, part.verdict))
    head = (
        '',
        'claim, and what it was taken to mean',
        'difference (95 % interval, uncorrected)',
        'p, corrected',
        "the paper's",
        'verdict',
    )
    return markdown(pd.DataFrame(rows, columns=head), 'lllrrl')


def judge_all(results: pd.DataFrame) -> list[Judged]:
    """Every claim, judged by results of any learning rates."""
    train_size = results['size'].min()
    return judge(claims(train_size), best_rates(results, train_size))


def verdicts_table(results: pd.DataFrame, repeated: pd.DataFrame) -> str:
    """Every claim by its verdict, with its weakest comparison.

    Args:
        results: Results that decide.
        repeated: Results of another data set, whose verdicts stand beside.
    """
    elsewhere = {one.claim.letter: one.verdict for one in judge_all(repeated)}
    lines = []
    for one in sort_by_verdict(judge_all(results)):
        line = {'claim': one.claim.name, 'verdict': one.verdict}
        if one.verdict != UNTESTED:
            comparison = one.weakest.comparison
            line |= {
                'difference (95 % interval)': one.weakest.difference.text(),
                "the paper's": '' if comparison.paper is None else f'{comparison.paper:+.1f}',
                'weakest comparison': comparison.label,
            }
        lines.append(line | {'on Tiny ImageNet': elsewhere[one.claim.letter]})
    return markdown(pd.DataFrame(lines).fillna(''), 'llrrll')


def p_text(p_value: float | None) -> str:
    """``'0.012'``; ``''`` if there is none."""
    if p_value is None:
        return ''
    return '< 0.001' if p_value < 0.001 else f'{p_value:.3f}'


def objects_report(objects: pd.DataFrame, results: pd.DataFrame) -> str:
    """Top-1 by the size of the image and of the object, of each variant's runs at its best rate, as
    Markdown.
    """
    runs = ['variant', 'seed', 'rate_factor']
    rows = objects.merge(
        best_rates(results, results['size'].min())[runs].drop_duplicates(), on=runs
    )
    rows = rows[rows['images'] > 0]
    if rows.empty:
        return ''
    every = (
        rows.groupby([*runs, 'way', 'size'], as_index=False)[['correct', 'images']]
        .sum()
        .assign(object='all')
    )
    images = rows.groupby('object')['images'].first()
    rows = pd.concat([every, rows]).assign(top1=lambda rows: 100 * rows['correct'] / rows['images'])
    rows['column'] = rows['size'].map('{} px'.format) + rows['way'].map(
        {WAYS[0]: '', WAYS[1]: ', padded'}
    )
    columns = [
        f'{size} px{text}' for text in ('', ', padded') for size in sorted(rows['size'].unique())
    ]
    lines = []
    for variant, group in product(
        [name for name in VARIANTS if name in set(rows['variant'])], ('all', *GROUPS)
    ):
        found = rows[(rows['variant'] == variant) & (rows['object'] == group)].groupby('column')[
            'top1'
        ]
        cells = {name: spread(found.get_group(name), 1) for name in columns if name in found.groups}
        lines.append({'encoding': VARIANTS[variant].label, 'object': group, **cells})
    counted = ', '.join(f'{images[group]} {group}' for group in GROUPS if group in images)
    about = (
        'Top-1 (%) by the share of the picture that the object has, mean ± standard deviation over'
        f' seeds. Thirds of every third test image: {counted}.'
    )
    return f'\n\n{about}\n\n{markdown(pd.DataFrame(lines), "ll")}'


def transfer_report(results: pd.DataFrame) -> str:
    """Report on the dense transfer as Markdown."""
    parts = [
        'Mean ± standard deviation over seeds; differences with their uncorrected 95 % confidence'
        " interval (Welch). \\*: differs from 0 at the 5 % level also after Holm's correction over"
        ' the sizes of its row.',
        '![Accuracy against test size](dense_transfer.png)',
    ]
    for (task, metric), rows in in_percent(results).groupby(['task', 'metric']):
        parts += [
            f'**{TITLES.get(task, task)}, {METRICS.get(metric, metric)}**',
            transfer_table(rows, digits=1),
        ]
    return '\n\n'.join(parts)


def in_percent(results: pd.DataFrame) -> pd.DataFrame:
    """Results of the dense transfer with box AP in percent: mmdet reports shares of 1."""
    factor = results['metric'].map({'coco/bbox_mAP': 100}).fillna(1)
    return results.assign(value=factor * results['value'])


def transfer_table(results: pd.DataFrame, digits: int) -> str:
    """One task: every start and encoding at every size, then the differences between them."""
    peg, *others = encodings = encodings_of(results)
    starts = [start for start in STARTS if start in set(results['start'])]
    # (start, encoding) to the values of all seeds at each size
    groups = results.groupby(['start', 'encoding'])
    values = {key: rows.groupby('size')['value'].apply(list).tolist() for key, rows in groups}
    rows = [
        (
            LABELS[start],
            LABELS[encoding],
            len(values[start, encoding][0]),
            *(spread(cell, digits) for cell in values[start, encoding]),
        )
        for start, encoding in product(starts, encodings)
    ]
    compared = [
        (f'{LABELS[start]}: {LABELS[peg]} minus {LABELS[other]}', (start, peg), (start, other))
        for start in starts
        for other in others
    ]
    if len(starts) == 2:
        compared += [
            (f'{LABELS[e]}: pretrained minus random weights', ('pretrained', e), ('scratch', e))
            for e in encodings
        ]
    for name, left, right in compared:
        found = list(map(Difference.between, values[left], values[right]))
        rows.append((name, '', '', *marked(found, digits)))
    sizes = [f'{size:g} x' for size in sorted(results['size'].unique())]
    return markdown(pd.DataFrame(rows, columns=['start', 'encoding', 'seeds', *sizes]), 'll')


def marked(differences: Sequence[Difference], digits: int) -> list[str]:
    """Differences as text.

    A star marks one that differs from 0 after Holm's correction over all.
    """
    texts = []
    corrected = holm([difference.p_value for difference in differences])
    for difference, p_value in zip(differences, corrected, strict=True):
        star = ' \\*' if p_value is not None and p_value < LEVEL else ''
        texts.append(difference.text(digits) + star)
    return texts


def encodings_of(results: pd.DataFrame) -> list[str]:
    """Encodings, PEG first, as the others are compared with it."""
    return sorted(results['encoding'].unique(), key=lambda name: (name != 'peg', name))


def spread(values: Iterable[float], digits: int) -> str:
    """Mean and standard deviation: ``'42.0 ± 1.0'``."""
    values = list(values)
    deviation = f' ± {stdev(values):.{digits}f}' if len(values) > 1 else ''
    return f'{mean(values):.{digits}f}{deviation}' if values else ''


def markdown(table: pd.DataFrame, align: str = 'l') -> str:
    """A Markdown table.

    ``align`` has ``l`` or ``r`` for the first columns, the rest is aligned right.
    """
    columns = ['left' if letter == 'l' else 'right' for letter in align.ljust(table.shape[1], 'r')]
    return table.to_markdown(index=False, disable_numparse=True, colalign=columns)


def draw_classify(results: pd.DataFrame, folder: Path, prefix: str = '') -> None:
    """Draw top-1 accuracy against image size; without a prefix also all variants and claims."""
    train_size = results['size'].min()
    kept = best_rates(results, train_size)
    figure, (axis,) = plots.new_figure(3.6)
    for name in CURVES:
        if not (rows := kept[kept['variant'] == name]).empty:
            color = plots.ENCODINGS[encoding_of(name)]
            draw_line(axis, rows, 'top1', label=VARIANTS[name].label, color=color)
    axis.set_xticks(sorted(kept['size'].unique()))
    axis.set(xlabel=f'side of the test images (px); trained at {train_size} px')
    axis.set(ylabel='top-1 accuracy (%)')
    epochs = results['epochs'].iloc[0]
    title = (
        f'Trained from random weights for {epochs} epochs:\nsays nothing about pretrained weights'
    )
    axis.set_title(title, loc='left', color=plots.GREY, fontsize=plots.TEXT)
    plots.add_grid(axis)
    plots.label_lines(axis)
    plots.save_figure(figure, folder / f'{prefix}sizes.png')
    plots.save_narrow(figure, folder / f'{prefix}sizes.png')
    if prefix:
        return
    draw_variants(kept, train_size, folder / 'variants.png')
    draw_claims(judge(claims(train_size), kept), folder / 'claims.png')


def draw_variants(results: pd.DataFrame, train_size: int, path: Path) -> None:
    """Draw top-1 accuracy of all variants at the training size: a dot a seed, a line the mean."""
    shown = {name: values for name in VARIANTS if (values := accuracy(train_size)(results, name))}
    ordered = sorted(shown, key=lambda name: mean(shown[name]))
    figure, (axis,) = plots.new_figure(0.9 + 0.24 * len(ordered))
    for position, name in enumerate(ordered):
        values, color = shown[name], plots.ENCODINGS[encoding_of(name)]
        axis.plot(values, [position] * len(values), '.-', color=color, lw=2, ms=6)
        axis.plot(mean(values), position, '|', color=color, ms=14, mew=2)
    axis.set_yticks(range(len(ordered)), [VARIANTS[name].label for name in ordered])
    axis.set_xlabel(f'top-1 accuracy at {train_size} px (%)')
    plots.add_grid(axis, 'x')
    plots.save_figure(figure, path)


def draw_transfer(results: pd.DataFrame, folder: Path) -> None:
    """Draw the metric against test size, a panel for each task: dashed from random weights, a
    colour for each encoding.
    """
    tasks = in_percent(results).groupby(['task', 'metric'])
    figure, axes = plots.new_figure(0.5 + 2.5 * len(tasks), ratios=(1,) * len(tasks))
    for axis, ((task, metric), rows) in zip(axes, tasks, strict=True):
        for start, encoding in product(STARTS, encodings_of(rows)):
            line = rows[(rows['start'] == start) & (rows['encoding'] == encoding)]
            if line.empty:
                continue
            style = dict(color=plots.ENCODINGS['table' if encoding == 'learned' else encoding])
            style['ls'] = '--' if start == 'scratch' else '-'
            draw_line(axis, line, 'value', label=f'{LABELS[encoding]}, {LABELS[start]}', **style)
        axis.set(ylabel=f'{TITLES.get(task, task)}: {METRICS.get(metric, metric)}')
        axis.set_xticks(sorted(rows['size'].unique()))
        axis.set_ylim(bottom=0)
        plots.add_grid(axis)
        if task == 'retinanet':
            plots.write_note(axis, 'no cells of other sizes in training')
    axes[-1].set_xlabel('test size, relative to the size of the training')
    plots.add_legend(figure)
    plots.save_figure(figure, folder / 'dense_transfer.png')


def draw_line(axis: Any, results: pd.DataFrame, column: str, **style: Any) -> None:
    """Draw the mean over seeds against the size, in a band from the lowest to the highest."""
    lines = results.groupby('size')[column].agg(['min', 'mean', 'max'])
    (line,) = axis.plot(lines['mean'], marker='o', ms=4, **style)
    axis.fill_between(lines.index, lines['min'], lines['max'], color=line.get_color(), alpha=0.2)


STAGES = (
    Stage(
        folder='classify',
        table='positional_encoding',
        runs='runs',
        page='imagenette.md',
        report=classify_report,
        draw=draw_classify,
    ),
    Stage(
        folder='classify-tiny-imagenet',
        table='tiny_imagenet',
        runs='tiny_imagenet_runs',
        page='tiny_imagenet.md',
        report=partial(classify_report, prefix=TINY),
        draw=partial(draw_classify, prefix=TINY),
    ),
    Stage(
        folder='transfer',
        table='dense_transfer',
        runs='dense_transfer_runs',
        page='dense_transfer.md',
        report=transfer_report,
        draw=draw_transfer,
    ),
)
"""In the order of the report."""

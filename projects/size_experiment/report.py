"""Tables, verdicts and the chart, from the two CSV files alone."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from positional_encoding.report import draw_line, markdown, spread

from benchmarks import fill_marked, plots

from .analysis import LABELS, MARGIN, Analysis, analyse
from .protocol import FINAL, ROWS, Plan, Run


def write_report(
    rows: pd.DataFrame, sealed: pd.DataFrame, plan: Plan, page: Path, evidence: Path
) -> str:
    """Fill the marked parts of two pages, and return that of the first.

    Args:
        rows: The finished runs.
        sealed: Accuracies that ``read`` wrote.
        plan: Of the runs.
        page: Markdown with the marks ``size-experiment``, for tables and verdicts.
        evidence: Markdown with the same marks, for the chart and the verdict. The chart lies in
            the folder of the page's name.
    """
    dense = final_values(rows, plan, 'miou', plan['dense_sizes'])
    top1 = sealed.rename(columns=dict(top1='value'))
    shipped = top1[~top1['row'].isin(ROWS)]
    top1 = top1[top1['row'].isin(ROWS)]
    found = analyse(top1, plan['train_size'], plan['seeds'])
    parts = [
        analysis_text(found, 'top-1'),
        'Top-1 (%) of the sealed images, mean ± standard deviation over seeds:',
        sizes_table(top1, ' px'),
        'mIoU (%) on CamVid over the frozen trunks:',
        sizes_table(dense, ' x'),
        analysis_text(analyse(dense, 1.0, plan['seeds']), 'mIoU'),
    ]
    if len(shipped):
        table = shipped.pivot(index='row', columns='size', values='value').reset_index()
        table.columns = ['shipped weights', *(f'{size} px' for size in table.columns[1:])]
        parts += ['Top-1 (%) of the shipped classifiers on the same images:', markdown(table)]
    text = '\n\n'.join(parts)
    fill_marked(page, 'size-experiment', text)
    picture = draw_sizes(top1, plan['train_size'], evidence)
    answer = [
        verdict_text(found),
        power_text(found),
        summary_table(top1, found, plan['train_size']),
        picture,
    ]
    fill_marked(evidence, 'size-experiment', '\n\n'.join(answer))
    return text


def write_interim(rows: pd.DataFrame, plan: Plan, page: Path, evidence: Path) -> str:
    """Fill the same parts from the runs that are finished, without a verdict.

    The accuracies are those of the held-out training images. The sealed images are not read.

    Raises:
        ValueError: No final run of one of the encodings is finished.
    """
    finished = rows[rows['stage'] == FINAL]
    if missing := set(ROWS) - {Run(*entry).row for entry in finished[[*Run._fields]].values}:
        raise ValueError(f'rows: no final run is finished of {sorted(missing)}')
    total = len(plan['seeds']) * len(ROWS)
    held = final_values(rows, plan, 'held', plan['sizes'])
    state = (
        f'**Interim: {len(finished)} of {total} runs are finished.** The test images are read after'
        ' the last run, so there is no verdict yet.'
    )
    seeds = held.groupby('row')['seed'].nunique()
    counts = ', '.join(f'{LABELS[row]} {seeds[row]}' for row in ROWS)
    parts = [
        state,
        f'Seeds: {counts}. Top-1 (%) of the held-out training images, mean ± standard deviation:',
        sizes_table(held, ' px'),
        'mIoU (%) on CamVid over the frozen trunks:',
        sizes_table(final_values(rows, plan, 'miou', plan['dense_sizes']), ' x'),
    ]
    text = '\n\n'.join(parts)
    fill_marked(page, 'size-experiment', text)
    picture = draw_sizes(held, plan['train_size'], evidence)
    table = summary_table(held, None, plan['train_size'])
    means = held.groupby(['size', 'row'])['value'].mean().unstack()
    leads = means['peg'] - means.drop(columns='peg').max(axis=1)
    ahead = f'PEG minus the best other encoding: {leads.min():+.1f} to {leads.max():+.1f} points.'
    fill_marked(evidence, 'size-experiment', '\n\n'.join([state, picture, table, ahead]))
    return text


def draw_sizes(top1: pd.DataFrame, train_size: int, evidence: Path) -> str:
    """Draw top-1 accuracy against image size, a line for each encoding.

    The chart lies in the folder of the page's name.

    Returns:
        Its Markdown.
    """
    path = evidence.with_suffix('') / 'size_experiment.png'
    path.parent.mkdir(exist_ok=True)
    figure, (axis,) = plots.new_figure(3.6)
    for row in ROWS:
        mine = top1[top1['row'] == row]
        draw_line(axis, mine, 'value', label=LABELS[row], color=plots.ENCODINGS[row])
    axis.set_xticks(sorted(top1['size'].unique()))
    axis.set_xlabel(f'side of the test images (px); trained at {train_size} px')
    axis.set_ylabel('top-1 accuracy (%)')
    plots.add_grid(axis)
    plots.label_lines(axis)
    plots.save_figure(figure, path)
    plots.save_narrow(figure, path)
    return f'![Top-1 accuracy against image size]({evidence.stem}/{path.name})'


def final_values(
    rows: pd.DataFrame, plan: Plan, measure: str, sizes: Sequence[float]
) -> pd.DataFrame:
    """Row, seed, size and value of the final runs; ``measure`` begins its columns' names."""
    found = []
    for entry in rows[rows['stage'] == FINAL].to_dict('records'):
        run = Run(*(entry[name] for name in Run._fields))
        for size in sizes:
            values = dict(row=run.row, seed=run.seed, size=size)
            found.append(values | dict(value=float(entry[f'{measure}_{size:g}'])))
    return pd.DataFrame(found)


def sizes_table(results: pd.DataFrame, unit: str) -> str:
    """A row for each encoding, a column for each size."""
    lines = []
    for row in ROWS:
        mine = results[results['row'] == row]
        by_size = {
            f'{size:g}{unit}': spread(mine.loc[mine['size'] == size, 'value'], 1)
            for size in sorted(set(mine['size']))
        }
        lines.append({'encoding': LABELS[row], **by_size})
    return markdown(pd.DataFrame(lines))


def summary_table(results: pd.DataFrame, analysis: Analysis | None, train_size: int) -> str:
    """Accuracy at the training size and elsewhere, and the change, a row for each encoding.

    The change is the outcome with its interval; before the analysis it is that of the means.
    """
    lines = []
    for row in ROWS:
        mine = results[results['row'] == row]
        trained = mine['size'] == train_size
        here, there = (mine.loc[at, 'value'].mean() for at in (trained, ~trained))
        line = {
            'encoding': LABELS[row],
            f'{train_size} px': f'{here:.1f}',
            'other sizes, mean': f'{there:.1f}',
        }
        if analysis is None:
            line |= {'change': f'{there - here:+.1f}', 'seeds': f'{mine["seed"].nunique()}'}
        else:
            outcome = analysis.outcomes.get(row)
            line['change beyond that of no encoding (95 %)'] = outcome.text() if outcome else ''
        lines.append(line)
    return markdown(pd.DataFrame(lines))


def analysis_text(analysis: Analysis, measure: str) -> str:
    """The outcomes, the three contrasts, and the verdict."""
    outcomes = [
        {
            'encoding': LABELS[row],
            f'change of {measure} with size, minus that of no encoding': interval.text(),
        }
        for row, interval in analysis.outcomes.items()
    ]
    contrasts = [
        {
            'contrast': f'{LABELS[one.left]} minus {LABELS[one.right]}',
            'difference (95 % interval, uncorrected)': one.difference.text(),
            'p, corrected': f'{one.p_value:.3f}',
            'verdict': one.verdict,
        }
        for one in analysis.contrasts
    ]
    counts = 'counts as trained' if analysis.table_counts else 'does not count as trained'
    lead = (
        f'At the training size the table is {analysis.lead:+.1f} points from no encoding: it'
        f' {counts} (bound: {MARGIN:g} points).'
    )
    outcome = [_table(outcomes), _table(contrasts), lead]
    return '\n\n'.join([verdict_text(analysis), power_text(analysis), *outcome])


def power_text(analysis: Analysis) -> str:
    """The difference that the experiment finds, beside those that it found."""
    found = {one.right: f'{one.difference.mean:+.1f}' for one in analysis.contrasts}
    return (
        f'Power: a difference of {analysis.detectable:.1f} points would be found in 80 % of such'
        ' experiments (one contrast, three seeds, corrected, spread of these results). Found were'
        f' {found["none"]} (no encoding), {found["table"]} (table) and {found["rope"]} (RoPE).'
    )


def verdict_text(analysis: Analysis) -> str:
    """The claim and its verdict, with the reason where it was not tested."""
    claim = (
        'Claim: PEG keeps more of its accuracy at other sizes than a trained table and than RoPE.'
        f' Verdict: **{analysis.verdict}**.'
    )
    if analysis.table_counts:
        return claim
    return (
        f'{claim} The table counts as trained from {MARGIN:g} points above no encoding, and has'
        f' {analysis.lead:+.1f}.'
    )


def _table(lines: Sequence[dict[str, str]]) -> str:
    return markdown(pd.DataFrame(lines))

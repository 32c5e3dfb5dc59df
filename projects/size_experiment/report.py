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
    top1 = sealed.rename(columns=dict(top1='value'))
    shipped = top1[~top1['row'].isin(ROWS)]
    top1 = top1[top1['row'].isin(ROWS)]
    found = analyse(top1, plan['train_size'], plan['seeds'])
    parts = [
        'Top-1 (%) of the sealed images, mean ± standard deviation over seeds:',
        sizes_table(top1, ' px'),
        analysis_text(found, 'top-1'),
        'mIoU (%) on CamVid over the frozen trunks:',
        sizes_table(dense_values(rows, plan), ' x'),
        analysis_text(analyse(dense_values(rows, plan), 1.0, plan['seeds']), 'mIoU'),
    ]
    if len(shipped):
        table = shipped.pivot(index='row', columns='size', values='value').reset_index()
        table.columns = ['shipped weights', *(f'{size} px' for size in table.columns[1:])]
        parts += ['Top-1 (%) of the shipped classifiers on the same images:', markdown(table)]
    text = '\n\n'.join(parts)
    fill_marked(page, 'size-experiment', text)
    chart = evidence.with_suffix('') / 'size_experiment.png'
    chart.parent.mkdir(exist_ok=True)
    draw_sizes(top1, plan['train_size'], chart)
    picture = f'![Top-1 accuracy against image size]({evidence.stem}/{chart.name})'
    answer = [picture, summary_table(top1, found, plan['train_size']), verdict_text(found)]
    fill_marked(evidence, 'size-experiment', '\n\n'.join(answer))
    return text


def draw_sizes(top1: pd.DataFrame, train_size: int, path: Path) -> None:
    """Draw top-1 accuracy against image size, a line for each encoding."""
    figure, (axis,) = plots.new_figure(3.6)
    for row in ROWS:
        mine = top1[top1['row'] == row]
        draw_line(axis, mine, 'value', label=LABELS[row], color=plots.ENCODINGS[row])
    axis.set_xticks(sorted(top1['size'].unique()))
    axis.set_xlabel(f'side of the test images (px); trained at {train_size} px')
    axis.set_ylabel('top-1 accuracy (%)')
    plots.add_grid(axis)
    plots.add_legend(figure)
    plots.save_figure(figure, path)
    plots.save_narrow(figure, path)


def dense_values(rows: pd.DataFrame, plan: Plan) -> pd.DataFrame:
    """Row, seed, size and mIoU of the final runs."""
    found = []
    for entry in rows[rows['stage'] == FINAL].to_dict('records'):
        run = Run(*(entry[name] for name in Run._fields))
        for size in plan['dense_sizes']:
            values = dict(row=run.row, seed=run.seed, size=size)
            found.append(values | dict(value=float(entry[f'miou_{size:g}'])))
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


def summary_table(results: pd.DataFrame, analysis: Analysis, train_size: int) -> str:
    """Accuracy at the training size and elsewhere, and the outcome, a row for each encoding."""
    lines = []
    for row in ROWS:
        mine = results[results['row'] == row]
        trained = mine['size'] == train_size
        outcome = analysis.outcomes.get(row)
        lines.append(
            {
                'encoding': LABELS[row],
                f'{train_size} px': f'{mine.loc[trained, "value"].mean():.1f}',
                'other sizes, mean': f'{mine.loc[~trained, "value"].mean():.1f}',
                'change beyond that of no encoding (95 %)': outcome.text() if outcome else '',
            }
        )
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
    return '\n\n'.join([lead, _table(outcomes), _table(contrasts), verdict_text(analysis)])


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

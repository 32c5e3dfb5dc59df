"""The tables of models: those that run by name, and recipes with the scores of their papers."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
TABLES = """\
<div class="models" markdown>

{models} names run at once: `cpvt infer NAME photo.jpg`. Type in a field to filter, such as
`detection`; a click on a heading sorts.

{models_table}
<details markdown>
<summary>{recipes} recipes without weights, to train yourself</summary>

{recipes_table}
</details>
</div>
"""
HEAD = """\
| model | score | task, data | by | params, M | GMACs | image, px | licence |
| --- | --- | --- | --- | ---: | ---: | --- | --- |
"""
RECIPES_HEAD = """\
| recipe | published score | task, data | by | params, M | GMACs | image, px |
| --- | --- | --- | --- | ---: | ---: | --- |
"""
# Of each task: words of the table, and its metrics in the order of the READMEs.
TASKS = {
    'Image Classification': ('classification', ('top-1',)),
    'Object Detection': ('detection', ('box AP',)),
    'Instance Segmentation': ('instance segmentation', ('box AP', 'mask AP')),
    'Semantic Segmentation': ('segmentation', ('mIoU', 'multi-scale')),
}


def zoo() -> str:
    """The tables in Markdown. Recipes with a score come first."""
    index = json.loads((ROOT / 'cpvt_backbones/weights/index.json').read_text())
    costs = read_costs()
    shipped = [
        shipped_model(name, entry, costs) for name, entry in index.items() if 'backbone' in entry
    ]
    others = [(name, entry) for name, entry in index.items() if 'backbone' not in entry]
    published = [published_model(*one) for one in sorted(others, key=task_and_score)]
    untrained = sorted(recipes(costs), key=lambda cells: cells[1] == '')
    return TABLES.format(
        models=len(index),
        models_table=HEAD + lines(shipped + published),
        recipes=len(untrained),
        recipes_table=RECIPES_HEAD + lines(untrained),
    )


def lines(rows: list[list[str]]) -> str:
    """Rows of a table in Markdown."""
    return ''.join(f'| {" | ".join(cells)} |\n' for cells in rows)


def task_and_score(named: tuple[str, dict[str, Any]]) -> tuple[int, float]:
    """Order of published models: detection, segmentation, classification; the best first."""
    _, entry = named
    tasks = ('detection', 'segmentation', 'classification')
    return tasks.index(entry['task']), -next(iter(entry['scores'].values()))


def published_model(name: str, entry: dict[str, Any]) -> list[str]:
    """Row of a model whose weights others have published."""
    return [
        f'`{name}`',
        '<br>'.join(f'{value} {metric}' for metric, value in entry['scores'].items()),
        f'{entry["task"]}, {entry["dataset"]}',
        entry['source'].partition(',')[0],
        f'{entry["parameters"] / 1e6:.1f}',
        str(entry.get('gmacs', '')),
        '&nbsp;x&nbsp;'.join(map(str, entry.get('size', ''))),
        entry['license'].replace('apache', 'Apache').replace('cc-by-nc-', 'CC BY-NC '),
    ]


def read_costs() -> dict[tuple[str, bool], dict[str, str]]:
    """Rows of docs/flops.csv by model, and whether they are of a classifier's size."""
    rows = csv.DictReader((ROOT / 'docs/flops.csv').read_text().splitlines())
    return {(row['model'], row['height'] == '224'): row for row in rows}


def cost_cells(name: str, task: str, costs: dict[tuple[str, bool], dict[str, str]]) -> list[str]:
    """Parameters, GMACs and size of the image, in the last columns of a row."""
    row = costs.get((name, task == 'Image Classification'))
    if row is None:
        return ['', '', '']
    return [
        f'{int(row["parameters"]) / 1e6:.1f}',
        f'{float(row["gmacs"]):.1f}',
        f'{row["height"]}&nbsp;x&nbsp;{row["width"]}',
    ]


def shipped_model(
    name: str, entry: dict[str, Any], costs: dict[tuple[str, bool], dict[str, str]]
) -> list[str]:
    """Row of a model whose weights ship, with the best score of its card."""
    text = (ROOT / f'cpvt_backbones/weights/{name}.md').read_text()
    (metric,) = re.findall(r'^\| \S+ \| [\w ,]+ \| (.+), % \|$', text, re.MULTILINE)
    scores = re.findall(r'^\| \S+ \| \d+ x \d+ \| ([\d.]+) \|$', text, re.MULTILINE)
    (data,) = re.findall(r'^\*\*Data\.\*\* (\w+)', text, re.MULTILINE)
    task = next(key for key, (_, metrics) in TASKS.items() if metric == metrics[0])
    return [
        f'`{name}`',
        f'{max(map(float, scores)):.1f} {metric}',
        f'{TASKS[task][0]}, {data}',
        f'[ours](../cpvt_backbones/weights/{name}.md)',
        *cost_cells(Path(entry['config']).stem, task, costs),
        'non-commercial',
    ]


def recipes(costs: dict[tuple[str, bool], dict[str, str]]) -> list[list[str]]:
    """Rows of the recipes in the metafiles, with the published scores of the READMEs."""
    rows = []
    for metafile in yaml.safe_load((ROOT / 'model-index.yml').read_text())['Import']:
        readme = Path(metafile).with_name('README.md')
        published = published_scores((ROOT / readme).read_text())
        for model in yaml.safe_load((ROOT / metafile).read_text())['Models']:
            name, metadata = model['Name'], model['Metadata']
            task = metadata['Tasks'][-1]
            costs_of = cost_cells(name, task, costs)
            costs_of[0] = f'{metadata["Parameters"] / 1e6:.1f}'
            pairs = zip(published.get(name, ()), TASKS[task][1], strict=False)
            score = '<br>'.join(f'{value} {metric}' for value, metric in pairs)
            paper = 'Twins' if model['In Collection'] == 'PyramidCPVT' else 'CPVT'
            rows.append(
                [
                    f'[{name}](../{model["Config"]})',
                    score,
                    f'{TASKS[task][0]}, {metadata["Training Data"]}',
                    f'[{paper if score else "recipe"}](../{readme})',
                    *costs_of,
                ]
            )
    return rows


def published_scores(readme: str) -> dict[str, list[str]]:
    """Scores by recipe, from the last column of a table whose rows begin with links to recipes."""
    rows = re.findall(r'^\| \[(\S+)\]\(\1\.py\) \|.*\| ([^|]+) \|$', readme, re.MULTILINE)
    return {name: re.sub(r' *\(.*\)', '', scores).split(' / ') for name, scores in rows}

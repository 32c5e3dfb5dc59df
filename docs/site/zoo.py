"""Tables of the model zoo: shipped models, and recipes without weights."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
# Tables of the zoo: its task in the metafiles, the column of multiply-adds, and its metrics.
TABLES = (
    ('Image Classification', (224, 224), ('top-1, %',)),
    ('Object Detection', (800, 1344), ('box AP',)),
    ('Instance Segmentation', (800, 1344), ('box AP', 'mask AP')),
    ('Semantic Segmentation', (800, 1344), ('mIoU', 'mIoU, many scales')),
)

RECIPES = """\
## Recipes, without weights

- **published**: the score is that of the linked source; this project did not train the recipe.
- **not trained**: no published score of this recipe is known. To see these rows, choose
  *every status* in the menu.

A click on a heading sorts a table.
"""


def zoo() -> str:
    """A table of shipped models, and one of recipes for each task, of metafiles, READMEs and
    docs/flops.csv.
    """
    costs = read_costs()
    text = '## Models with weights\n\n' + shipped_table(shipped_models(costs))
    text += f'\n{RECIPES}\n'
    models = recipes(costs)
    models.sort(key=order)
    for task, size, metrics in TABLES:
        columns = ('recipe', 'data', 'parameters, M', f'GMACs at {size[0]} x {size[1]}')
        columns += tuple(f'published {metric}' for metric in metrics)
        text += f'### {task}\n\n| {" | ".join((*columns, "status"))} |\n'
        text += '| --- | --- |' + ' ---: |' * (len(columns) - 2) + ' --- |\n'
        for model in models:
            if model['task'] != task:
                continue
            scores = [*model['scores'], *[''] * len(metrics)][: len(metrics)]
            cells = (
                model['name'],
                model['data'],
                model['parameters'],
                model['costs'].get(size, ''),
            )
            text += f'| {" | ".join((*cells, *scores, model["status"]))} |\n'
        text += '\n'
    return text


def order(model: dict[str, Any]) -> tuple[bool, str, float]:
    """Recipes with a score come first, and those that differ in size alone stand by size."""
    kind = re.sub(r'-[tsbl](?=[_-])|_\d+xb\d+', '', model['name'].partition(']')[0])
    return not model['scores'], kind, float(model['parameters'])


def shipped_table(models: list[dict[str, Any]]) -> str:
    """Shipped models of all tasks, each with two scores of its card."""
    metrics = {task: metric for task, _, (metric, *_) in TABLES}
    text = '| model | task | data | parameters, M | metric | at the test scale | best size |\n'
    text += '| --- | --- | --- | ---: | --- | --- | --- |\n'
    for model in models:
        cells = (
            model['name'],
            model['task'].lower(),
            model['data'],
            model['parameters'],
            metrics[model['task']].removesuffix(', %'),
            *model['scores'],
        )
        text += f'| {" | ".join(cells)} |\n'
    return text


def read_costs() -> dict[str, dict[tuple[int, int], dict[str, str]]]:
    """Rows of docs/flops.csv by model and (height, width)."""
    costs: dict[str, dict[tuple[int, int], dict[str, str]]] = {}
    for row in csv.DictReader((ROOT / 'docs/flops.csv').read_text().splitlines()):
        costs.setdefault(row['model'], {})[int(row['height']), int(row['width'])] = row
    return costs


def zoo_entry(name: str, task: str, costs: dict[tuple[int, int], dict[str, str]]) -> dict[str, Any]:
    """What every model of the zoo has; ``costs`` are its rows of docs/flops.csv."""
    return dict(
        name=name,
        task=task,
        costs={size: f'{float(row["gmacs"]):.1f}' for size, row in costs.items()},
        parameters=''.join(
            f'{int(row["parameters"]) / 1e6:.1f}' for row in list(costs.values())[:1]
        ),
        scores=[],
        status='not trained',
    )


def shipped_models(costs: dict[str, dict[tuple[int, int], dict[str, str]]]) -> list[dict[str, Any]]:
    """Models whose weights ship, with two scores of their cards: at the test scale, the best."""
    index = json.loads((ROOT / 'cpvt_backbones/weights/index.json').read_text())
    models = []
    for name, shipped in index.items():
        if 'backbone' not in shipped:  # published by others: configs/published
            continue
        card = f'cpvt_backbones/weights/{name}.md'
        rows = [
            line.strip('| ').split(' | ')
            for line in (ROOT / card).read_text().splitlines()
            if line[:2] == '| '
        ]
        task = {'top-1, %': 0, 'box AP, %': 1, 'mIoU, %': 3}[rows[0][2]]
        (test,) = [cells for cells in rows[2:] if cells[0] == '1']
        best = max(rows[2:], key=lambda cells: float(cells[2]))
        entry = zoo_entry(
            f'[{name}](../{card})', TABLES[task][0], costs[Path(shipped['config']).stem]
        )
        (entry['data'],) = re.findall(r'^\*\*Data\.\*\* (\w+)', (ROOT / card).read_text(), re.M)
        entry['scores'] = [f'{float(score):.1f} ({size} px)' for _, size, score in (test, best)]
        models.append(entry)
    return models


def recipes(costs: dict[str, dict[tuple[int, int], dict[str, str]]]) -> list[dict[str, Any]]:
    """Recipes of the metafiles, with the published scores of the READMEs."""
    models = []
    for metafile in yaml.safe_load((ROOT / 'model-index.yml').read_text())['Import']:
        readme = Path(metafile).with_name('README.md')
        published = published_scores((ROOT / readme).read_text())
        for model in yaml.safe_load((ROOT / metafile).read_text())['Models']:
            name, metadata = model['Name'], model['Metadata']
            tasks = metadata['Tasks']
            entry = zoo_entry(f'[{name}](../{model["Config"]})', tasks[-1], costs.get(name, {}))
            entry['data'] = metadata['Training Data']
            entry['parameters'] = f'{metadata["Parameters"] / 1e6:.1f}'
            if name in published:
                entry['scores'] = published[name]
                entry['status'] = f'[published](../{readme})'
            models.append(entry)
    return models


def published_scores(readme: str) -> dict[str, list[str]]:
    """Scores by recipe, from the last column of a table whose rows begin with links to recipes."""
    rows = re.findall(r'^\| \[(\S+)\]\(\1\.py\) \|.*\| ([^|]+) \|$', readme, re.MULTILINE)
    return {name: re.sub(r' *\(.*\)', '', scores).split(' / ') for name, scores in rows}

"""The table of the model zoo: shipped models, and recipes with the scores of their papers."""

import csv
import json
import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
HEAD = """\
| model | task, data | score | by | parameters, M | GMACs | licence of the weights |
| --- | --- | --- | --- | ---: | ---: | --- |
"""
# Of each task: words of the table, and its metrics in the order of the READMEs.
TASKS = {
    'Image Classification': ('classification', ('top-1',)),
    'Object Detection': ('detection', ('box AP',)),
    'Instance Segmentation': ('instance segmentation', ('box AP', 'mask AP')),
    'Semantic Segmentation': ('segmentation', ('mIoU', 'mIoU at many scales')),
}


def zoo() -> str:
    """The table in Markdown; models with a score come first."""
    costs = read_costs()
    rows = [*shipped_models(costs), *sorted(recipes(costs), key=lambda cells: cells[2] == '')]
    return HEAD + ''.join(f'| {" | ".join(cells)} |\n' for cells in rows)


def read_costs() -> dict[tuple[str, bool], dict[str, str]]:
    """Rows of docs/flops.csv by model, and whether they are of a classifier's size."""
    rows = csv.DictReader((ROOT / 'docs/flops.csv').read_text().splitlines())
    return {(row['model'], row['height'] == '224'): row for row in rows}


def cells(
    link: str, name: str, task: str, data: str, costs: dict[tuple[str, bool], dict[str, str]]
) -> tuple[list[str], list[str]]:
    """The first and the last cells of a row; score and author stand between them."""
    row = costs.get((name, task == 'Image Classification'))
    figures = ['', '']
    if row:
        figures = [f'{int(row["parameters"]) / 1e6:.1f}', f'{float(row["gmacs"]):.1f}']
    return [link, f'{TASKS[task][0]}, {data}'], figures


def shipped_models(costs: dict[tuple[str, bool], dict[str, str]]) -> list[list[str]]:
    """Models whose weights ship, with the best score of their card."""
    index = json.loads((ROOT / 'cpvt_backbones/weights/index.json').read_text())
    rows = []
    for name, shipped in index.items():
        if 'backbone' not in shipped:  # published by others: docs/weights.md
            continue
        text = (ROOT / f'cpvt_backbones/weights/{name}.md').read_text()
        (metric,) = re.findall(r'^\| \S+ \| [\w ,]+ \| (.+), % \|$', text, re.MULTILINE)
        scores = re.findall(r'^\| \S+ \| \d+ x \d+ \| ([\d.]+) \|$', text, re.MULTILINE)
        (data,) = re.findall(r'^\*\*Data\.\*\* (\w+)', text, re.MULTILINE)
        task = next(key for key, (_, metrics) in TASKS.items() if metric == metrics[0])
        link = f'[{name}](../cpvt_backbones/weights/{name}.md)'
        first, last = cells(link, Path(shipped['config']).stem, task, data, costs)
        score = f'{max(map(float, scores)):.1f} {metric}'
        rows.append([*first, score, 'ours', *last, 'non-commercial'])
    return rows


def recipes(costs: dict[tuple[str, bool], dict[str, str]]) -> list[list[str]]:
    """Recipes of the metafiles, with the published scores of the READMEs."""
    rows = []
    for metafile in yaml.safe_load((ROOT / 'model-index.yml').read_text())['Import']:
        readme = Path(metafile).with_name('README.md')
        published = published_scores((ROOT / readme).read_text())
        for model in yaml.safe_load((ROOT / metafile).read_text())['Models']:
            name, metadata = model['Name'], model['Metadata']
            task = metadata['Tasks'][-1]
            link = f'[{name}](../{model["Config"]})'
            first, last = cells(link, name, task, metadata['Training Data'], costs)
            last[0] = f'{metadata["Parameters"] / 1e6:.1f}'
            pairs = zip(published.get(name, ()), TASKS[task][1], strict=False)
            score = ', '.join(f'{value} {metric}' for value, metric in pairs)
            paper = 'Twins' if model['In Collection'] == 'PyramidCPVT' else 'CPVT'
            author = f'{paper}, published' if score else 'recipe'
            author = f'[{author}](../{readme})'
            rows.append([*first, score, author, *last, ''])
    return rows


def published_scores(readme: str) -> dict[str, list[str]]:
    """Scores by recipe, from the last column of a table whose rows begin with links to recipes."""
    rows = re.findall(r'^\| \[(\S+)\]\(\1\.py\) \|.*\| ([^|]+) \|$', readme, re.MULTILINE)
    return {name: re.sub(r' *\(.*\)', '', scores).split(' / ') for name, scores in rows}

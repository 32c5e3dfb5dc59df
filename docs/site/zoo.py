"""The tables of docs/models.md and configs/README.md: models that run by name, peers, recipes.

python docs/site/zoo.py --docs docs/models.md --recipes configs/README.md

Scores are published. Times and memory are those of docs/benchmarks.
"""

import csv
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # for `benchmarks`, where this file runs as a script

from benchmarks import fill_marked  # noqa: E402
from cpvt import command_line as cli  # noqa: E402

DATA = ROOT / 'docs/benchmarks'
TABLES = """\
<div class="models" markdown>

{published}
### Models that ship

These models need no network. Their scores are [development
scores](#cards-of-the-models-that-ship) on small data sets.

{shipped}
</div>
"""
# By part of the page, in its order: what to take, and the size of the images.
ADVICE = {
    'COCO': """\
**Take `retinanet_pvtv2_b2-coco`**. If you train on a CPU, take the smaller
`retinanet_pvtv2_b0-coco`.

The scores of Swin-T, ResNet-50 and PyramidCPVT-S are from the Twins paper. For ResNet-50, mmdet
reports 36.5, or 39.0 with newer ImageNet weights (*ResNet strikes back*). The images have
800 x 1344 px.""",
    'COCO masks': """\
**Take `eomt_large-coco_instance`**. Its images have 640 px, as in its authors' tests.
The images of ViTDet have 800 x 1344 px.""",
    'COCO panoptic': """\
**Take `eomt_small-coco_panoptic`**, or `eomt_large-coco_panoptic` if PQ matters more to you than
time. The images have 640 px, or 1280 px if the name says so.""",
    'ADE20K': """\
**Take `segmenter_vit_small-ade20k`**, or `eomt_large-ade20k` if mIoU matters more to you than
time. If you want to keep your UPerNet or Semantic FPN, take the model of this kind with
`twins_pcpvt_small`, which is PyramidCPVT-S.

<picture>
<source media="(max-width: 44.9em) and (prefers-color-scheme: dark)"
srcset="figures/ade20k_narrow_dark.webp">
<source media="(max-width: 44.9em)" srcset="figures/ade20k_narrow.webp">
<source media="(prefers-color-scheme: dark)" srcset="figures/ade20k_dark.webp">
<img src="figures/ade20k.webp" alt="mIoU on ADE20K by time">
</picture>

- **Times.** The UPerNets took turns in [one run](benchmarks/upernet.csv), and the Semantic FPNs in
  [another run](benchmarks/semantic_fpn.csv). This holds for the peers and for `twins_pcpvt_small`.
- **Scores.** EoMT's scores are from its authors. Peers with Semantic FPN have the scores of the
  Twins paper. All other scores are from mmseg. For PyramidCPVT-S, the Twins paper reports 44.3
  with Semantic FPN and 46.2 with UPerNet.
- **Training.** UPerNet was trained on 32 [crops](how_it_works.md#terms) per step with
  `twins_pcpvt_small`, and on 16 crops per step with ResNet-50 and Swin-T.

The images have 512 x 512 px. mmseg's tests use 512 px on the shorter side.""",
    'ADE20K panoptic': 'The images have 640 px.',
    'Cityscapes': 'The images have 1024 px.',
    'ImageNet-1k': """\
**Take `twins_svt_small-imagenet`**, or `dinov2_large-imagenet` if accuracy matters more to you
than time. The images have 224 px, or 384 px if the name says so.""",
}
# Score and millions of parameters of other backbones in mmpretrain: configs/resnet/metafile.yml and
# configs/swin_transformer/metafile.yml.
CLASSIFIERS = {'ResNet-50': ('76.55', '25.6'), 'Swin-T': ('81.18', '28.3')}
# mIoU on ADE20K of mmseg's trainings of 160,000 steps, in its metafiles of configs/upernet and
# configs/swin.
UPERNET = {'ResNet-50': '42.05', 'Swin-T': '44.41'}
# Measurements in turns with the peers, by the name of the model with PyramidCPVT-S.
IN_TURNS = {
    'upernet_twins_pcpvt_small-ade20k': 'upernet',
    'semantic_fpn_twins_pcpvt_small-ade20k': 'semantic_fpn',
}
SHIPPED_HEAD = """\
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
    'Panoptic Segmentation': ('panoptic segmentation', ('PQ',)),
}


def zoo() -> str:
    """The tables of models that run by name, in Markdown."""
    index = read_index()
    costs = read_costs()
    shipped = [
        shipped_model(name, entry, costs) for name, entry in index.items() if 'backbone' in entry
    ]
    published = {name: entry for name, entry in index.items() if 'backbone' not in entry}
    return TABLES.format(
        published=''.join(published_table(part, published) for part in parts_of(published)),
        shipped=SHIPPED_HEAD + lines(shipped),
    )


def read_index() -> dict[str, dict[str, Any]]:
    """All models by name."""
    index: dict[str, dict[str, Any]] = json.loads(
        (ROOT / 'cpvt_backbones/weights/index.json').read_text()
    )
    return index


def recipe_table() -> str:
    """The table of recipes in Markdown. Those with a score come first."""
    rows = sorted(recipes(read_costs()), key=lambda cells: cells[1] == '')
    return RECIPES_HEAD + lines(rows)


def part_of(entry: dict[str, Any]) -> str:
    """Part of the page that a model belongs to: its data set, and what it finds beside boxes."""
    if 'PQ' in entry['scores']:
        return f'{entry["dataset"]} panoptic'
    return f'{entry["dataset"]} masks' if 'mask AP' in entry['scores'] else entry['dataset']


def parts_of(published: dict[str, dict[str, Any]]) -> list[str]:
    """Parts of the page, those of ``ADVICE`` first."""
    return list(dict.fromkeys([*ADVICE, *map(part_of, published.values())]))


def lines(rows: list[list[str]]) -> str:
    """Rows of a table in Markdown."""
    return ''.join(f'| {" | ".join(cells)} |\n' for cells in rows)


def read_rows(name: str, key: str) -> dict[str, dict[str, str]]:
    """Rows of a file of measurements, by a column."""
    with (DATA / f'{name}.csv').open(encoding='utf-8', newline='') as file:
        return {row[key]: row for row in csv.DictReader(file)}


def published_table(part: str, published: dict[str, dict[str, Any]]) -> str:
    """The models of a part and their peers, the best first."""
    entries = {name: entry for name, entry in published.items() if part_of(entry) == part}
    metrics = list(dict.fromkeys(one for entry in entries.values() for one in entry['scores']))
    metrics.sort(key='mask AP'.__ne__)  # what the part is for comes first
    head = ['model', *metrics, 'ms', 'memory, MiB', 'params, M', 'licence']
    rule = ['---', *['---:'] * (len(metrics) + 3), '---']
    advice = f'{ADVICE.get(part, "")} {measured_on(entries)}'.rstrip()
    return f'### {part}\n\n{advice}\n\n{lines([head, rule, *rows_of(part, entries, metrics)])}\n'


def rows_of(
    part: str, entries: dict[str, dict[str, Any]], metrics: Sequence[str]
) -> list[list[str]]:
    """Rows of the models of a part and of their peers, the best first."""
    rows = [published_model(name, entry, metrics) for name, entry in entries.items()]
    rows += [
        [name, *cells, *[''] * (len(metrics) - 1), *costs] for name, cells, costs in peers(part)
    ]
    return sorted(rows, key=lambda cells: -float(cells[1] or 0))


def measured_on(entries: dict[str, dict[str, Any]]) -> str:
    """Sentence that names the threads and the one processor of a part's times, or ``''``."""
    prices = [price(name, entry['about']) for name, entry in entries.items()]
    where = {(row['threads'], processor(row['machine'])) for row in prices if row}
    if not where:
        return ''
    if len(where) > 1:
        raise ValueError(f'times of one table are from several processors: {sorted(where)}')
    ((threads, name),) = where
    return f'We measured the times on {threads} threads of an {name}.'


def processor(machine: str) -> str:
    """Processor of a row, such as ``'AMD EPYC'`` or ``'Intel Xeon'``."""
    return machine.partition(',')[0].replace('(R)', '').removesuffix(' Processor')


def published_model(name: str, entry: dict[str, Any], metrics: Sequence[str]) -> list[str]:
    """Row of a model whose weights others have published."""
    scores = [str(entry['scores'].get(metric, '')) for metric in metrics]
    licence = (
        entry['license']
        .replace('apache', 'Apache')
        .replace('cc-by-nc-', 'CC BY-NC ')
        .replace('mit', 'MIT')
    )
    row = price(name, entry['about']) or dict(ms='', mib='')
    return [
        f'`{name}`',
        *scores,
        row['ms'],
        row['mib'],
        f'{entry["parameters"] / 1e6:.1f}',
        licence,
    ]


def price(name: str, about: str) -> dict[str, str] | None:
    """Measured row of a model that runs by name; ``None`` if it was not measured."""
    if name in IN_TURNS:
        return read_rows(IN_TURNS[name], 'backbone')['PyramidCPVT-S']
    backbone = about.removeprefix('RetinaNet with ').removesuffix(' on COCO')
    detector = read_rows('detectors', 'backbone').get(backbone)
    return detector or read_rows('published', 'name').get(name)


def peers(part: str) -> list[tuple[str, list[str], list[str]]]:
    """Names, scores and costs of what people have, and of this package's recipe to train."""
    if part == 'ImageNet-1k':
        return [
            (f'*peer: {name}, mmpretrain*', [score], ['', '', parameters, 'Apache-2.0'])
            for name, (score, parameters) in CLASSIFIERS.items()
        ]
    tables = read_rows('twins_tables', 'backbone')
    fpn = {name: row['miou'] for name, row in tables.items() if name != 'PyramidCPVT-S'}
    boxes = {name: row['box_ap'] for name, row in tables.items() if name != 'PVT-S'}
    shown = {
        'COCO': [('RetinaNet', 'detectors', boxes)],
        'ADE20K': [('Semantic FPN', 'semantic_fpn', fpn), ('UPerNet', 'upernet', UPERNET)],
    }
    rows = []
    for model, file, scores in shown.get(part, []):
        measured = read_rows(file, 'backbone')
        for name, score in scores.items():
            role = 'to train' if name == 'PyramidCPVT-S' else 'peer'
            costs = measured[name]
            cells = [costs['ms'], costs['mib'], f'{int(costs["parameters"]) / 1e6:.1f}', '']
            rows.append((f'*{role}: {model}, {name}*', [score], cells))
    return rows


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
                    f'[{name}]({Path(model["Config"]).relative_to("configs")})',
                    score,
                    f'{TASKS[task][0]}, {metadata["Training Data"]}',
                    f'[{paper if score else "recipe"}]({readme.relative_to("configs")})',
                    *costs_of,
                ]
            )
    return rows


def published_scores(readme: str) -> dict[str, list[str]]:
    """Scores by recipe, from the last column of a table whose rows begin with links to recipes."""
    rows = re.findall(r'^\| \[(\S+)\]\(\1\.py\) \|.*\| ([^|]+) \|$', readme, re.MULTILINE)
    return {name: re.sub(r' *\(.*\)', '', scores).split(' / ') for name, scores in rows}


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    marked = dict(models=('--docs', zoo), recipes=('--recipes', recipe_table))
    for option, _ in marked.values():
        parser.add_argument(option, type=Path, required=True, help='page with two marks')
    args = vars(parser.parse_args(argv))
    for name, (option, table) in marked.items():
        page: Path = args[option.strip('-')]
        if not page.is_file():
            raise FileNotFoundError(f"{option.strip('-')}: there is no file '{page}'")
        fill_marked(page, name, f'\n{table()}\n')


if __name__ == '__main__':
    cli.run(main)

"""docs/models.md: each model that runs by name, with the figures of the files."""

import csv
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import yaml
from pages import ROOT

from cpvt_backbones.weights import named_models, published_weights

TEXT = (ROOT / 'docs/models.md').read_text(encoding='utf-8')
# Files of the models that took turns with their peers.
IN_TURNS = {
    'upernet_twins_pcpvt_small-ade20k': 'upernet',
    'semantic_fpn_twins_pcpvt_small-ade20k': 'semantic_fpn',
}


def table(part):
    """Rows of the table below a heading, as dicts by column."""
    lines = TEXT.partition(f'\n### {part}\n')[2].partition('\n### ')[0].splitlines()
    cells = [line.strip('|').split('|') for line in lines if line.startswith('| ')]
    cells = [[cell.strip() for cell in row] for row in cells]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def csv_rows(name, key):
    with (ROOT / f'docs/benchmarks/{name}.csv').open() as file:
        return {row[key]: row for row in csv.DictReader(file)}


def test_each_name_is_in_one_table():
    parts = re.findall('^### (.*)$', TEXT.partition('<!-- models: begin -->')[2], re.MULTILINE)
    parts = parts[: parts.index('Models that ship') + 1]
    models = [row['model'].strip('`') for part in parts for row in table(part)]
    assert sorted(one for one in models if not one.startswith('*')) == sorted(named_models())


def test_scores_and_costs_are_those_of_the_files():
    published = csv_rows('published', 'name')
    detectors = csv_rows('detectors', 'backbone')
    parts = ('COCO', 'COCO masks', 'COCO panoptic', 'ADE20K', 'ADE20K panoptic', 'ImageNet-1k')
    for data in parts:
        above = TEXT.partition(f'\n### {data}\n')[2].partition('\n| ')[0].replace('\n', ' ')
        for row in table(data):
            if (name := row['model'].strip('`')) not in published:
                continue
            entry = published_weights()[name]
            for metric, score in entry.scores.items():
                assert row[metric] == str(score)
            assert row['params, M'] == f'{entry.parameters / 1e6:.1f}'
            measured = published[name]
            if name in IN_TURNS:
                measured = csv_rows(IN_TURNS[name], 'backbone')['PyramidCPVT-S']
            elif data == 'COCO':
                _, _, backbone = entry.about.removesuffix(' on COCO').partition('RetinaNet with ')
                measured = detectors.get(backbone) or measured
            assert row['ms'] == measured['ms']
            if row['ms']:
                brand = 'an AMD EPYC' if 'EPYC' in measured['machine'] else 'an Intel Xeon'
                times = f'We measured the times on {measured["threads"]} threads of {brand}. '
                assert above.endswith(times)
            assert row['memory, MiB'] == measured['mib'] != ''


def test_peers_and_the_recipe_have_the_published_scores():
    scores, costs = csv_rows('twins_tables', 'backbone'), csv_rows('detectors', 'backbone')
    coco = {row['model'].strip('*'): row for row in table('COCO')}
    for name in ('ResNet-50', 'Swin-T', 'PyramidCPVT-S'):
        role = 'to train' if name == 'PyramidCPVT-S' else 'peer'
        row = coco[f'{role}: RetinaNet, {name}']
        assert row['box AP'] == scores[name]['box_ap']
        assert (row['ms'], row['memory, MiB']) == (costs[name]['ms'], costs[name]['mib'])


def test_peers_of_the_segmentors_have_published_scores_and_one_run(monkeypatch):
    spec = find_spec('mmseg') or pytest.skip('needs mmseg')
    monkeypatch.syspath_prepend(ROOT / 'benchmarks')
    import detector_price

    twins, rows = csv_rows('twins_tables', 'backbone'), table('ADE20K')
    shown = {name.removeprefix('peer: '): row for row in rows if (name := row['model'].strip('*`'))}
    for key, file in IN_TURNS.items():
        measured = csv_rows(file, 'backbone')
        assert measured.keys() == detector_price.CONFIGS[file].keys()
        (machine,) = {(row['machine'], row['mib_machine']) for row in measured.values()}
        assert all('AMD EPYC' in one for one in machine)
        for name, row in measured.items():
            ours = name == 'PyramidCPVT-S'
            model = dict(upernet='UPerNet', semantic_fpn='Semantic FPN')[file]
            costs = shown[key if ours else f'{model}, {name}']
            assert (costs['ms'], costs['memory, MiB']) == (row['ms'], row['mib'])
            assert costs['params, M'] == f'{int(row["parameters"]) / 1e6:.1f}'
            if ours:
                continue
            if file == 'semantic_fpn':
                assert costs['mIoU'] == twins[name]['miou']
                continue
            config = detector_price.CONFIGS[file][name].removeprefix('mmseg::')
            path = Path(spec.origin).parent / '.mim/configs' / config
            known = yaml.safe_load(path.with_name('metafile.yaml').read_text())['Models']
            (found,) = (one for one in known if one['Name'] == path.stem)
            assert costs['mIoU'] == str(found['Results']['Metrics']['mIoU'])


def test_scores_that_a_paper_and_a_toolbox_publish():
    """Above the tables, where the row has the other."""
    text = ' '.join(TEXT.split())
    said = r'the Twins paper reports ([\d.]+) with Semantic FPN and ([\d.]+) with UPerNet'
    ((fpn, upernet),) = re.findall(said, text)
    assert fpn == csv_rows('twins_tables', 'backbone')['PyramidCPVT-S']['miou']
    recipes = (ROOT / 'configs/upernet/README.md').read_text(encoding='utf-8')
    assert f'**The batch of S.** The published {upernet} belongs to `8xb4`' in recipes
    spec = find_spec('mmdet') or pytest.skip('needs mmdet')
    metafile = Path(spec.origin).parent / '.mim/configs/retinanet/metafile.yml'
    models = {one['Name']: one for one in yaml.safe_load(metafile.read_text())['Models']}
    (result,) = models['retinanet_r50_fpn_1x_coco']['Results']
    scores = [result['Metrics']['box AP']]
    metafile = Path(spec.origin).parent / '.mim/configs/resnet_strikes_back/metafile.yml'
    models = {one['Name']: one for one in yaml.safe_load(metafile.read_text())['Models']}
    scores.append(models['retinanet_r50-rsb-pre_fpn_1x_coco']['Results'][0]['Metrics']['box AP'])
    said = f'For ResNet-50, mmdet reports {scores[0]}, or {scores[1]} with newer ImageNet weights'
    assert said in text


def test_each_advised_model_is_named():
    """And no other model of the table beats it in score and time at once."""
    for data, metric in (('COCO', 'box AP'), ('ADE20K', 'mIoU'), ('ImageNet-1k', 'top-1')):
        (name,) = re.findall(rf'### {data}\n\n\*\*Take `([\w-]+)`', TEXT)
        rows = {row['model'].strip('`'): row for row in table(data) if row['model'][0] == '`'}
        same_run = {
            key: (float(row[metric]), int(row['ms']))
            for key, row in rows.items()
            if row['ms'].isdigit()
        }
        score, ms = same_run.pop(name)
        assert not [key for key, (one, time) in same_run.items() if one >= score and time <= ms]


def test_each_folder_of_recipes_is_in_the_index():
    index = (ROOT / 'configs/README.md').read_text(encoding='utf-8')
    folders = {path.parent.name for path in (ROOT / 'configs').glob('*/README.md')}
    assert set(re.findall(r'^\| \[`(\w+)`\]\(\1/README\.md\)', index, re.M)) == folders


def test_the_plot_of_ade20k_has_the_points_of_its_table(monkeypatch):
    """And a label for each name that it labels."""
    monkeypatch.syspath_prepend(ROOT / 'docs/site')
    pytest.importorskip('matplotlib')
    import ade20k

    points = ade20k.read_points()
    rows = {row['model'].strip('`'): row for row in table('ADE20K')}
    assert {*points.index} == {*rows} and {*ade20k.LABELS} < {*rows}
    for name, row in points.iterrows():
        shown = rows[name]['mIoU'], rows[name]['ms']
        assert (row.miou, row.ms) == (float(shown[0]), shown[1])
    axis = ade20k.draw('light').axes[0]
    drawn = np.concatenate([group.get_offsets() for group in axis.collections])
    wanted = points[['seconds', 'miou']].to_numpy()
    assert np.allclose(np.sort(drawn, axis=0), np.sort(wanted, axis=0))
    assert {text.get_text() for text in axis.texts} >= {'EoMT-L', 'Segmenter-S', 'ResNet-50'}

"""Tables of docs/speed.md and docs/benchmarks/details.md that are written by hand have the figures
of the CSV files.
"""

import re
from pathlib import Path

import pandas as pd
import pytest

from benchmarks import report
from benchmarks.cases import read_bars, read_suite

DOCS = Path(__file__).resolve().parents[2] / 'docs'
PAGE = (DOCS / 'speed.md').read_text(encoding='utf-8')
DETAILS = (DOCS / 'benchmarks/details.md').read_text(encoding='utf-8')

BACKBONES = {'PyramidCPVT-S': 'pyramid_cpvt_small', 'CPVT-S': 'cpvt_small'}
PEERS = {
    "timm's Twins-PCPVT-S": 'timm_twins_pcpvt_small',
    "mmpretrain's": 'mmpretrain_pcpvt_small',
    "mmseg's": 'mmseg_pcpvt_small',
    "timm's DeiT-S": 'timm_deit_small',
}
WHOLE_MODELS = {'RetinaNet': 'retinanet', 'Semantic FPN': 'semantic_fpn'}
ROW_ON_A_CPU = r'(.+?)(, training step)?, (\d+ x \d+|\d+)(?: px, batch (\d))?'
RUNTIMES = ('', '_onnxruntime', '_openvino_bf16')  # columns of the table of whole models


def measured(name):
    """Rows of a CSV of ``benchmarks/speed.py``."""
    return report.read_rows(DOCS / f'benchmarks/{name}.csv')


def tables(heading, page=PAGE):
    """Tables of a section: lists of rows, each a list of cells, without the header."""
    section = page.partition(f'\n## {heading}\n')[2].partition('\n## ')[0]
    found = []
    for block in re.findall(r'(?:^\|.*\n)+', section, re.MULTILINE):
        lines = block.splitlines()[2:]
        found.append([[cell.strip() for cell in line.strip('|').split('|')] for line in lines])
    return found


def case_of(rows, size, batch, *models, mode='forward'):
    """Rows of the case in fp32 that has all of some models: every model and round."""
    height, width = map(int, size.split(' x '))
    setting = dict(height=height, width=width, batch=int(batch), dtype='fp32', mode=mode)
    for column, value in setting.items():
        rows = rows[rows[column] == value]
    (case,) = (case for _, case in rows.groupby('comparison') if {*models} <= {*case['model']})
    return case


@pytest.mark.parametrize('row', tables('On a CPU')[0], ids=' '.join)
def test_backbones(row):
    what, peer, ratio, milliseconds, peer_milliseconds = row
    name, step, size, batch = re.fullmatch(ROW_ON_A_CPU, what).groups()
    size = size if ' x ' in size else f'{size} x {size}'
    model, other, mode = BACKBONES[name], PEERS[peer], 'train' if step else 'forward'
    rows = case_of(measured('cpu'), size, batch or 1, model, other, mode=mode)
    medians = 1e3 * rows.groupby('model')['seconds'].median()
    assert milliseconds == f'{medians[model]:.0f}'
    assert peer_milliseconds == f'{medians[other]:.0f}'
    seconds = rows.pivot(index='round', columns='model', values='seconds')
    assert ratio == f'{(seconds[other] / seconds[model]).median():.2f}'
    (bars,) = (
        group
        for group in read_bars('cpu')
        if {model, other} <= {*group.models} and group.case.mode == mode
        if f'{group.case.height} x {group.case.width}' == size
    )
    assert name in bars.what, 'the plot below the table shows it'


def test_the_example_of_a_median_has_the_ratios_of_the_rounds():
    model, other = 'cpvt_small', 'timm_deit_small'
    rows = case_of(measured('cpu'), '800 x 1344', 1, model, other)
    seconds = rows.pivot(index='round', columns='model', values='seconds')
    low, middle, high = sorted(f'{one:.2f}' for one in seconds[other] / seconds[model])
    text = ' '.join(PAGE.split())
    assert f'the rounds have {low}, {middle} and {high}: the median is {middle},' in text
    times = 1e3 * seconds.median()
    quotient = times[other] / times[model]
    assert f'and {times[other]:.0f} / {times[model]:.0f} is {quotient:.2f}.' in text


def test_table_and_plot_have_the_same_times():
    compared = {tuple(what.split(', ')) for what, *_ in tables('On a CPU')[0]}
    plotted = {
        tuple(bars.what.replace(' (Twins-PCPVT-S)', '').removesuffix(' px').split(', '))
        for bars in read_bars('cpu')
    }
    assert compared == plotted
    bars = sum(len(bars.models) for bars in read_bars('cpu'))
    assert len(tables('On a CPU')[0]) == bars - len(plotted), 'a row for each bar of a peer'


@pytest.mark.parametrize('row', tables('Images per second')[0], ids=' '.join)
def test_whole_models(row):
    what, *rates = row
    name, size = what.split(', ')
    model = WHOLE_MODELS[name]
    rows = case_of(measured('export'), size, 1, model)
    medians = rows.groupby('model')['images_per_second'].median()
    assert rates == [f'{medians[model + runtime]:.1f}' for runtime in RUNTIMES]


def test_missed_goals_are_counted():
    """The first lines on goals have the counts of the suites."""
    counts = {}
    for suite in ('cpu', 'bf16', 'train'):
        csv, ratios = measured(suite), read_suite(suite)[1]
        verdicts = [ratio.reached(ratio.values(csv).median()) for ratio in ratios]
        counts[suite] = (verdicts.count(False), len(verdicts))
    text = ' '.join(DETAILS.split())
    missed, goals = counts['cpu']
    assert f'{goals} goals for the CPU. It misses {missed},' in text
    sentence = r'In bfloat16 it misses (\d) of (\d), and in training steps (\d) of (\d)'
    told = re.search(sentence, text)
    assert tuple(map(int, told.groups())) == counts['bf16'] + counts['train']


def gpu_rows():
    """Rows of both tables on a GPU: whether it is a training step, then the cells."""
    forward, training, _ = tables('On a GPU')
    return [('forward', *row) for row in forward] + [('train', *row) for row in training]


@pytest.mark.parametrize('row', gpu_rows(), ids=' '.join)
def test_backbones_on_a_gpu(row):
    mode, what, peer, ratio, milliseconds, peer_milliseconds = row
    name, size, batch = re.fullmatch(r'(.+?), (\d+ x \d+|\d+)(?: px)?, (\d+)', what).groups()
    height, width = size.split(' x ') if ' x ' in size else (size, size)
    model, other = BACKBONES[name], PEERS[peer]
    rows = measured('gpu')
    rows = rows[(rows['height'] == int(height)) & (rows['width'] == int(width))]
    rows = rows[(rows['batch'] == int(batch)) & (rows['mode'] == mode)]
    rows = rows[rows['comparison'] != 'graphs']
    seconds = 1e3 * rows.pivot(index='round', columns='model', values='seconds')
    assert ratio == f'{(seconds[other] / seconds[model]).median():.2f}'
    assert milliseconds == f'{seconds[model].median():.1f}'
    assert peer_milliseconds == f'{seconds[other].median():.1f}'
    section = PAGE.partition('## On a GPU\n')[2].partition('\n## ')[0]
    assert 'medians of two rounds' in section and len(seconds) == 2


def test_cuda_graphs_and_a_model_without_class_token():
    text = ' '.join(PAGE.partition('## On a GPU\n')[2].partition('\n## ')[0].split())
    rows = measured('gpu')
    graphs = rows[rows['comparison'] == 'graphs']
    seconds = 1e3 * graphs.pivot(index=['batch', 'round'], columns='model', values='seconds')
    told = tables('On a GPU')[2]
    assert [int(images) for images, *_ in told] == [1, 64]
    for images, with_graphs, plain, ratio in told:
        rounds = seconds.loc[int(images)]
        assert with_graphs == ' and '.join(f'{one:.1f}' for one in rounds['cpvt_small_graphs'])
        assert plain == ' and '.join(f'{one:.1f}' for one in rounds['cpvt_small'])
        speeds = rounds['cpvt_small'] / rounds['cpvt_small_graphs']
        assert ratio == f'{speeds.min():.1f} to {speeds.max():.1f}'
    details = ' '.join(DETAILS.split())
    assert f'adds CUDA graphs: {told[0][3]} times as fast for one image' in details
    first, second = seconds.loc[1]['cpvt_small']
    assert f'took {first:.1f} ms in one round and {second:.1f} ms in the other' in text
    alone = rows[(rows['batch'] == 1) & (rows['comparison'] == 'columns')]
    first, second = 1e3 * alone[alone['model'] == 'cpvt_small'].sort_values('round')['seconds']
    assert f'in the first table it took {first:.1f} and {second:.1f} ms' in text
    ratios = {ratio.what: ratio.values(rows).median() for ratio in read_suite('gpu')[1]}
    (both,) = (value for what, value in ratios.items() if 'both with CUDA graphs' in what)
    assert f'With CUDA graphs in both, CPVT-S is {both:.2f} times as fast as DeiT-S (64' in text
    many = rows[rows['batch'] == 512].groupby('model')['images_per_second'].median()
    gap = many['cpvt_small_gap'] / many['timm_deit_small']
    assert f'CPVT-S-GAP is {gap:.2f} times as fast as DeiT-S (512 images)' in text
    rounds = rows[(rows['batch'] == 64) & (rows['comparison'] == 'columns')]
    seconds = 1e3 * rounds.pivot(index='round', columns='model', values='seconds')
    first, second = seconds['timm_deit_small']
    assert f'DeiT-S took {first:.1f} and {second:.1f} ms in the two rounds' in text
    first, second = seconds['cpvt_small']
    assert f'CPVT-S {first:.1f} and {second:.1f} ms' in text
    first, second = seconds['timm_deit_small'] / seconds['cpvt_small']
    assert f'ratios of {first:.2f} and {second:.2f}' in text


def test_figures_of_a_gpu_outside_their_section():
    """The first lines, the README and the site's first page name the better and the worse rows."""
    root, rows = DOCS.parent, {tuple(row[:3]): row[3] for row in gpu_rows()}
    pyramid = [
        rows['forward', 'PyramidCPVT-S, 800 x 1344, 8', peer]
        for peer in ("timm's Twins-PCPVT-S", "mmseg's")
    ]
    column = {
        px: rows['forward', f'CPVT-S, {px}', "timm's DeiT-S"]
        for px in ('224 px, 512', '224 px, 64', '224 px, 1', '800 x 1344, 4')
    }
    first = PAGE.partition('\n## ')[0]
    assert f'**{column["224 px, 512"]} times**' in first
    assert f'**{column["224 px, 64"]} times**' in first
    readme = (root / 'README.md').read_text(encoding='utf-8')
    alone = rows['forward', 'PyramidCPVT-S, 800 x 1344, 1', "timm's Twins-PCPVT-S"]
    with_eight = f"{pyramid[0]} times as fast as timm's with eight such images"
    assert f'{with_eight}, and {alone} times with one' in first
    assert f'{pyramid[0]} x with 8 images a call, {alone} x with one' in readme
    assert f"{pyramid[1]} x against mmseg's port with 8" in readme
    many, fewer = (column[f'224 px, {count}'] for count in (512, 64))
    assert f'{many} x with 512 images a call, {fewer} x with 64' in readme
    site = ' '.join((root / 'docs/site/index.md').read_text(encoding='utf-8').split())
    low, high = min(column.values()), max(column.values())
    assert f"CPVT-S beside timm's DeiT-S, H100 GPU | {low} to {high} x its speed |" in site
    calls = '8 images a call, or one'
    assert f"H100 GPU, {calls} | {pyramid[0]} x or {alone} x timm's speed |" in site
    verdicts = [
        ratio.reached(ratio.values(measured('gpu')).median()) for ratio in read_suite('gpu')[1]
    ]
    told = f'It misses {verdicts.count(False)} of [{len(verdicts)} goals](gpu.md)'
    assert told in ' '.join(DETAILS.split())


def spread(values):
    """``'1.3 to 1.6 times'``, or one figure if both are equal."""
    low, high = (f'{value:.1f}' for value in (min(values), max(values)))
    return f'{low} times' if low == high else f'{low} to {high} times'


def ratios_of(suite, part):
    """Medians of the ratios of a suite whose name has a part."""
    rows = measured(suite)
    return [one.values(rows).median() for one in read_suite(suite)[1] if part in one.what]


def gains(route):
    """How many times as fast as float32 in ONNX Runtime a route is, for each shipped model."""
    times = pd.read_csv(DOCS / 'benchmarks/precision.csv').pivot(
        index='model', columns='route', values='time'
    )
    return times['ONNX Runtime, fp32'] / times[route]


def test_what_makes_it_faster():
    told = {task: (action, gain) for task, action, gain in tables('Make it faster')[0]}
    cpu = 'prediction, processor with bfloat16'
    windows = '2 of 12 blocks global'
    found = {
        'prediction': ratios_of('export', 'in ONNX Runtime against eager'),
        cpu: gains('OpenVINO, bf16'),
        f'{cpu}, images at hand': gains('OpenVINO, int8 and bf16'),
        'prediction, any processor': gains('ONNX Runtime, int8'),
        'attention at large sizes': ratios_of('cpu', windows),
        'training': ratios_of('train', 'bf16 (autocast) against fp32'),
    }
    for task, values in found.items():
        assert told[task][1].startswith(spread(values)), task
    assert windows in told['attention at large sizes'][0]
    assert [task for task, (_, gain) in told.items() if gain and task not in found] == []


def test_bfloat16():
    (rows,) = tables('bfloat16 on a CPU', DETAILS)
    csv = measured('bf16')
    ratios = read_suite('bf16')[1]
    for (_, told, goal), ratio in zip(rows, ratios, strict=True):
        values = ratio.values(csv)
        assert told == f'{values.median():.2f} ({values.min():.2f}-{values.max():.2f})', ratio.what
        assert float(goal) == ratio.bound
    missed = sum(not one.reached(one.values(csv).median()) for one in ratios)
    assert (missed, len(ratios)) == (3, 4) and 'Three of four goals are missed' in DETAILS


def test_small_images():
    *_, rows = tables('Compared with timm, mmseg and mmpretrain', DETAILS)
    csv = measured('small')
    for setting, *told in rows:
        batch, dtype = re.fullmatch(r'(\d+), (\w+)', setting).groups()
        case = csv[(csv['batch'] == int(batch)) & (csv['dtype'] == dtype)]
        speeds = report.relative_speeds(case)
        for text, model in zip(told, ('cpvt_small', 'cpvt_small_gap_fused'), strict=True):
            values = speeds[model]
            assert text == f'{values.median():.2f} ({values.min():.2f}-{values.max():.2f})'


def test_prediction():
    def milliseconds(name):
        rows = pd.read_csv(DOCS / f'benchmarks/{name}.csv').query('route == "tool, pictures"')
        return f'{rows.loc[rows["dtype"] == "float32", "ms"].median():.0f} ms'

    text = ' '.join(DETAILS.split())
    assert f'{milliseconds("pipeline")} an image with the shipped segmentor' in text
    assert f'With the detector on BCCD it takes {milliseconds("pipeline_bccd")}' in text


def test_exported_files():
    """Lowest and highest median of the ratios of both models at each size."""
    parts = {
        'ONNX Runtime, float32': 'in ONNX Runtime against eager',
        'OpenVINO, float32': 'in OpenVINO against eager',
        'OpenVINO, bfloat16': 'in OpenVINO, bf16 against eager',
        'AOTInductor, float32': 'as AOTInductor against eager',
        'PyTorch with bfloat16 weights': 'in bf16 against eager',
    }
    page = (DOCS / 'export.md').read_text(encoding='utf-8')
    (rows,) = tables('Speed', page)
    assert [route for route, _ in rows] == [*parts]
    for route, told in rows:
        values = ratios_of('export', parts[route])
        assert len(values) == 6
        assert told == f'{min(values):.2f} to {max(values):.2f}'

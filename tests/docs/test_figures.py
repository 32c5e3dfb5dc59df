"""Figures in the sentences of README and docs are those of their CSV files."""

import re
from pathlib import Path

import pandas as pd
import pytest
import torch

from benchmarks import detector_price
from benchmarks import exported as exported_models
from benchmarks.cases import SETTING
from cpvt_backbones.analysis.memory import peak_memory

ROOT = Path(__file__).resolve().parents[2]
PYRAMID, TIMM, MMSEG = 'pyramid_cpvt_small', 'timm_twins_pcpvt_small', 'mmseg_pcpvt_small'
COLUMN, DEIT = 'cpvt_small', 'timm_deit_small'
LARGE = dict(height=800, width=1344, mode='forward')


def rows_of(file, **setting):
    rows = pd.read_csv(ROOT / f'docs/benchmarks/{file}.csv')
    for key, value in setting.items():
        rows = rows[rows[key] == value]
    return rows


def speeds(file, model, other, **setting):
    """Times as fast as another model, of each case that has both: median of the rounds' ratios."""
    found = []
    for _, case in rows_of(file, **setting).groupby(SETTING):
        seconds = case.pivot(index='round', columns='model', values='seconds')
        if {model, other} <= {*seconds}:
            found.append((seconds[other] / seconds[model]).median())
    return found


def large(file, model, other, batch=1):
    """Times as fast as another model at 800 x 1344 px."""
    (speed,) = speeds(file, model, other, **LARGE, batch=batch)
    return speed


def memory(file, model, other):
    """Memory of a call at 800 x 1344 px, by that of another model."""
    peak = rows_of(file, **LARGE, batch=1).groupby('model')['peak_mib'].median()
    return peak[model] / peak[other]


def exported(file, runtime):
    """Lowest and highest times as fast as PyTorch, over models and sizes."""
    return span(
        speed
        for model in ('retinanet', 'semantic_fpn')
        for speed in speeds(file, f'{model}_{runtime}', model)
    )


def on_epyc(runtime):
    """The same for models of the package and for larger ones."""
    ratios = rows_of('exported', runtime=runtime.replace('bf16', 'bfloat16').replace('_', '-'))
    return span([*exported('export_epyc', runtime), *ratios.ratio])


def span(values):
    values = list(values)
    return [min(values), max(values)]


def shares(file, *routes):
    """Rate of each route of prediction, by that of the forward call."""
    share = rows_of(file, dtype='float32').groupby('route')['share'].median()
    return [share[route] for route in routes]


def on_cpus(other):
    return span(large(file, PYRAMID, other) for file in ('cpu', 'cpu_epyc'))


def by_resnet(column):
    """The price of a training step with PyramidCPVT-S."""
    price = rows_of('detectors_train').set_index('backbone')[column]
    return price['PyramidCPVT-S'] / price['ResNet-50']


# Page, a pattern with N for each figure, and what the figures are.
FIGURES = [
    (
        'docs/speed.md',
        "| timm's Twins-PCPVT-S | N | N | N | N | | mmseg's Twins-PCPVT-S | N | N | N | N |",
        lambda: [
            large(file, PYRAMID, other, batch)
            for other in (TIMM, MMSEG)
            for file, batch in (('cpu', 1), ('cpu_epyc', 1), ('gpu', 8), ('gpu', 1))
        ],
    ),
    (
        'docs/speed.md',
        'CPVT-S with five [PEGs](how_it_works.md#peg-in-one-picture) and a class token runs at N'
        ' to N times the speed of DeiT-S',
        lambda: span(speeds('gpu', COLUMN, DEIT)),
    ),
    (
        'docs/speed.md',
        '| PyramidCPVT-S in bfloat16 | its float32 | N | 2.2 to 3.1 |'
        " | PyramidCPVT-S in bfloat16 | timm's, in bfloat16 | N | 1.3 to 1.9 |"
        ' | CPVT-S in bfloat16 | its float32 | N | 2.5 to 3.4 |'
        " | CPVT-S in bfloat16 | timm's DeiT-S, in bfloat16 | N | 1.2 to 2.0 |",
        lambda: [
            large('bf16_amx', f'{PYRAMID}_bf16', PYRAMID),
            large('bf16_amx', f'{PYRAMID}_bf16', f'{TIMM}_bf16'),
            large('bf16_amx', f'{COLUMN}_bf16', COLUMN),
            large('bf16_amx', f'{COLUMN}_bf16', f'{DEIT}_bf16'),
        ],
    ),
    (
        'docs/speed.md',
        "PyramidCPVT-S needs N times the memory of timm's Twins-PCPVT-S. CPVT-S needs N times the"
        ' memory of DeiT-S',
        lambda: [memory('cpu', PYRAMID, TIMM), memory('cpu', COLUMN, DEIT)],
    ),
    (
        'docs/speed.md',
        "PyramidCPVT-S is N times as fast as timm's at 800 x 1344 px, and N times as fast as"
        " mmseg's",
        lambda: [large('allocator', PYRAMID, other) for other in (TIMM, MMSEG)],
    ),
    (
        'docs/speed.md',
        'takes N times as long with PyramidCPVT-S as with ResNet-50, and needs N times the memory',
        lambda: [by_resnet('ms'), by_resnet('mib')],
    ),
    (
        'docs/speed.md',
        '| `cpvt infer` on a folder, with pictures | N | N |'
        ' | `cpvt infer` on a folder, without pictures | N | N |'
        ' | prediction from arrays in memory | | N |'
        " | mmdet's own prediction, with decoding and NMS | | N |",
        lambda: [
            *shares('pipeline', 'tool, pictures'),
            *shares('pipeline_bccd', 'tool, pictures'),
            *shares('pipeline', 'tool, no pictures'),
            *shares('pipeline_bccd', 'tool, no pictures', 'predict, arrays', 'bare predict'),
        ],
    ),
    (
        'README.md',
        "[N to N times as fast](docs/speed.md) as timm's Twins",
        lambda: on_cpus(TIMM),
    ),
    (
        'README.md',
        'takes N times as long and needs N times the memory',
        lambda: [by_resnet('ms'), by_resnet('mib')],
    ),
    ('README.md', "N to N times as mmseg's", lambda: on_cpus(MMSEG)),
]
RUNTIMES = {
    'ONNX Runtime, float32': 'onnxruntime',
    'OpenVINO, float32': 'openvino',
    'OpenVINO, bfloat16': 'openvino_bf16',
    'PyTorch with bfloat16 weights': 'bf16',
}
FIGURES += [
    (
        'docs/export.md',
        f'| {label} | N to N | N to N |',
        lambda runtime=runtime: [*on_epyc(runtime), *exported('export', runtime)],
    )
    for label, runtime in RUNTIMES.items()
]
FIGURES += [
    (
        'docs/export.md',
        '| AOTInductor, float32 | N to N |',
        lambda: exported('export_epyc', 'aoti'),
    ),
    (
        'docs/export.md',
        'PyTorch in bfloat16 gains N to N itself',
        lambda: exported('export_epyc', 'bf16'),
    ),
    (
        'docs/export.md',
        '`--format onnx` | `--runtime openvino-bfloat16` | N to N times PyTorch in float32 |',
        lambda: on_epyc('openvino_bf16'),
    ),
    (
        'docs/speed.md',
        '**An exported file** runs at N to N times the speed',
        lambda: on_epyc('openvino_bf16'),
    ),
]


@pytest.mark.parametrize(('page', 'phrase', 'compute'), FIGURES)
def test_a_figure_is_that_of_its_file(page, phrase, compute):
    text = ' '.join((ROOT / page).read_text(encoding='utf-8').split())
    pattern = re.sub(r'\bN\b', r'([0-9]+[.][0-9]+)', re.escape(phrase))
    (said,) = re.findall(pattern, text)  # a sentence that is written anew is named here anew
    decimals = [len(figure.partition('.')[2]) for figure in said]
    computed = zip(compute(), decimals, strict=True)
    assert said == tuple(f'{value:.{places}f}' for value, places in computed)


def table_below(page, begin):
    """Rows of the table whose head begins so, as lists of cells."""
    lines = (ROOT / page).read_text(encoding='utf-8').partition(f'\n{begin}')[2].splitlines()
    cells = [line.strip('|').split('|') for line in lines[2:] if line.startswith('|')]
    return [[cell.strip() for cell in row] for row in cells]


NAMES = {'RetinaNet': 'retinanet', 'Semantic FPN': 'semantic_fpn', 'UPerNet': 'upernet'}


def test_speeds_of_exported_whole_models():
    rows = rows_of('exported')
    timed = rows[rows.runtime != 'PyTorch'].groupby(['model', 'backbone'], sort=False)
    shown = table_below('docs/export.md', '| model | image, px | ONNX')[: len(timed)]
    for (label, _, *cells), (key, found) in zip(shown, timed, strict=True):
        name, backbone = label.split(', ')
        assert (NAMES[name], backbone) == key
        assert [*found.runtime] == [*exported_models.RUNTIMES]
        assert [*map(float, cells)] == [*found.ratio]


def test_costs_of_a_training_step():
    """Of each backbone, all in one run on one processor."""
    tables = [rows_of(f'{name}_train') for name in ('detectors', 'semantic_fpn', 'upernet')]
    assert all(
        'AMD EPYC' in one for table in tables for one in (*table.machine, *table.mib_machine)
    )
    shown = table_below('docs/speed.md', '| backbone | RetinaNet, ms |')[:5]
    assert len(shown) == 5
    for name, *cells in shown:
        wanted = []
        for table in tables:
            row = table[table.backbone == name]
            wanted += [str(value) for key in ('ms', 'mib') for value in row[key]] or ['', '']
        assert cells == wanted


def test_scores_of_ignored_objects():
    page = ' '.join((ROOT / 'docs/mmdet.md').read_text('utf-8').split())
    shown = re.search(r'score ([\d.]+) .*? and ([\d.]+) if they .*? also reaches ([\d.]+),', page)
    rows = rows_of('ignored', scene='apart')
    for handling, score in zip(
        ('no loss', 'background', 'ignore_iof_thr'), shown.groups(), strict=True
    ):
        seeds = rows[rows.handling == handling]
        assert len(seeds) == 3 and f'{seeds["median"].median():.2f}' == score


def test_eomt_beside_its_peers():
    page = ' '.join((ROOT / 'docs/speed.md').read_text('utf-8').split())
    rows = rows_of('eomt')
    peers = rows[rows.of != 'ours'].times
    shown = re.search(r'eomt.csv\)\.\*\* Both take ([\d.]+) to ([\d.]+) times', page)
    assert shown.groups() == (f'{peers.min():.2f}', f'{peers.max():.2f}')
    shown = re.search(r'eomt_bf16.csv\)\.\*\* Both take ([\d.]+) to ([\d.]+) times', page)
    half = rows_of('eomt_bf16')
    peers = half[half.of != 'ours'].times
    assert shown.groups() == (f'{peers.min():.2f}', f'{peers.max():.2f}')
    memory = rows[rows.batch == 1].set_index('of').mib
    said = r'needs (\d+) MiB in this package, (\d+) MiB in transformers and (\d+) MiB in'
    shown = re.search(said, page)
    assert [*map(int, shown.groups())] == [
        memory[key] for key in ('ours', 'transformers', 'authors')
    ]


@pytest.mark.full
def test_retinanets_with_pvt_need_the_memory_of_their_head():
    """In prediction: the maps of the neck, and what the head computes from them."""
    pytest.importorskip('mmdet')
    rows = rows_of('detectors').set_index('backbone').mib
    (mib,) = {rows[name] for name in rows.index if 'PVT' in name}
    assert f'[the same {mib} MiB]' in (ROOT / 'docs/speed.md').read_text('utf-8')
    model = detector_price.build('retinanet', 'PyramidCPVT-S').eval()
    sizes = [(100, 168), (50, 84), (25, 42), (13, 21), (7, 11)]  # 800 x 1344 px, stride 8 to 128
    with torch.inference_mode():
        levels = [torch.rand(1, 256, *size) for size in sizes]
        head = peak_memory(lambda: model.bbox_head(levels), 'cpu')
        backbone = peak_memory(lambda: model.backbone(torch.rand(1, 3, 800, 1344)), 'cpu')
    head += sum(level.nbytes for level in levels) / 2**20
    assert backbone < head == pytest.approx(mib, abs=1)


@pytest.mark.full
def test_what_a_backbone_keeps_for_its_gradients():
    pytest.importorskip('mmdet')
    page = ' '.join((ROOT / 'docs/speed.md').read_text('utf-8').split())
    pattern = r'keeps (\d+) MiB and ResNet-50 keeps (\d+) MiB\. .*? keep (\d+) MiB'
    said = re.search(pattern, page).groups()
    frozen, trained = (detector_price.build('retinanet', 'ResNet-50').backbone for _ in range(2))
    trained.frozen_stages = -1
    trained.requires_grad_(True)
    ours = detector_price.build('retinanet', 'PyramidCPVT-S').backbone
    kept = [saved_for_gradients(one) for one in (ours, frozen, trained)]
    assert [*map(int, said)] == pytest.approx(kept, abs=1)


def saved_for_gradients(backbone):
    """MiB of the activations that a forward call keeps for two images of 512 x 512 px."""
    weights = {one.untyped_storage().data_ptr() for one in backbone.state_dict().values()}
    backbone.train()
    sizes = {}

    def pack(value):
        storage = value.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        maps = backbone(detector_price.BATCH)
    assert maps[-1].requires_grad
    return sum(size for place, size in sizes.items() if place not in weights) / 2**20

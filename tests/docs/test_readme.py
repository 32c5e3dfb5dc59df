"""README: its code, its results and what it says of its peers."""

import csv
import re
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.hub import get_config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS
from pages import SMALL, blocks
from PIL import Image
from torch.optim import AdamW

from cpvt_backbones import PyramidCPVT
from cpvt_backbones.backbones import announce_sizes
from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.weights import published_weights

README = Path(__file__).parents[2] / 'README.md'
TEXT = README.read_text(encoding='utf-8')
BLOCKS = re.findall(r'^```python\n(.+?)^```', TEXT, re.DOTALL | re.MULTILINE)


def test_the_config_builds_the_model_with_pretrained_weights(tmp_path):
    """And has the classes of its base, so that it trains on COCO as it stands."""
    pytest.importorskip('mmdet')
    block, _ = BLOCKS
    (tmp_path / 'mine.py').write_text(block)
    cfg = read_config(tmp_path / 'mine.py')
    assert cfg.model.backbone.init_cfg == 'timm://twins_pcpvt_small.in1k'
    model = MODELS.build(dict(cfg.model, _scope_='mmdet'))
    assert isinstance(model.backbone, PyramidCPVT)
    assert list(model.backbone.out_channels) == model.neck.in_channels
    assert model.bbox_head.num_classes == 80
    assert cfg.default_hooks.checkpoint.type == 'DurableCheckpointHook'
    # A ViT learns little by the SGD of many base configs; PEG's weights do not decay.
    options = dict(cfg.optim_wrapper, type='OptimWrapper')  # one of them is of a GPU
    optimizer = build_optim_wrapper(model, options).optimizer
    assert isinstance(optimizer, AdamW)
    decay = {
        id(parameter): group['weight_decay']
        for group in optimizer.param_groups
        for parameter in group['params']
    }
    pegs = [value for name, value in model.backbone.named_parameters() if 'pos_block' in name]
    assert {decay[id(value)] for value in pegs} == {0}
    assert max(decay.values()) > 0


def test_it_is_read_in_minutes():
    assert len(TEXT.split()) <= 700


def test_the_lines_are_those_of_the_complete_configs():
    """Of the pages of the toolboxes, whose blocks are trained by test_own_config.py."""
    pages = dict(mmdet='RetinaNet', mmseg='UPerNet')
    for block, (page, title) in zip(BLOCKS, pages.items(), strict=True):
        ((_, complete),) = blocks(f'docs/{page}.md', title)
        assert code_of(complete) == code_of(block)
        own_classes = blocks(f'docs/{page}.md', 'Your classes and files')[0][1]
        assert checkpoints_of(block) == checkpoints_of(own_classes)


@pytest.mark.full
def test_the_lines_of_mmseg_train_in_ade20ks_layout(call, tmp_path, monkeypatch):
    """Two steps on small images."""
    pytest.importorskip('mmseg')
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'mine.py').write_text(BLOCKS[1])
    hook = read_config(tmp_path / 'mine.py').default_hooks.checkpoint
    assert (hook.type, hook.interval, hook.by_epoch) == ('DurableCheckpointHook', 2000, False)
    data, rng = tmp_path / 'data/ade/ADEChallengeData2016', np.random.default_rng(0)
    for kind, suffix, shape in (('images', 'jpg', (64, 96, 3)), ('annotations', 'png', (64, 96))):
        for part in ('training', 'validation'):
            (data / kind / part).mkdir(parents=True)
            for i in range(2):
                pixels = rng.integers(0, 151, shape, np.uint8)
                Image.fromarray(pixels).save(data / kind / part / f'{i}.{suffix}')
    pipeline = 'train_dataloader.dataset.pipeline'
    small = [f'{pipeline}.2.scale=(96,64)', f'{pipeline}.3.crop_size=(64,64)']
    small += ['model.data_preprocessor.size=(64,64)', 'val_dataloader.dataset.pipeline.1.scale=64']
    random_weights = 'model.backbone.init_cfg=None'  # README's are not fetched in a test
    options = [*small, *SMALL, random_weights, 'train_cfg.max_iters=2', 'train_cfg.val_interval=2']
    call('train', 'mine.py', '--auto-scale-lr', '--cfg-options', *options)
    trained = torch.load('work_dirs/mine/iter_2.pth', weights_only=False)
    assert [one['end'] for one in trained['param_schedulers']] == [1500, 160000]
    (options,) = {
        (one['initial_lr'], one['weight_decay'])
        for one in trained['optimizer']['param_groups']
        if one['weight_decay']
    }
    assert options == (6e-5 * 4 / 32, 0.01)
    states = trained['optimizer']['state'].values()
    assert all(one['step'] == 2 and one['exp_avg'].isfinite().all() for one in states)


@pytest.mark.full
def test_the_lines_of_mmseg_pad_an_image_to_whole_cells(tmp_path):
    """Otherwise mmseg squeezes the last maps by 3 %: 683 px have 22 cells of 32 px."""
    structures = pytest.importorskip('mmseg.structures')
    (tmp_path / 'mine.py').write_text(BLOCKS[1])
    cfg = read_config(tmp_path / 'mine.py')
    preprocessor = MODELS.build(dict(cfg.model.data_preprocessor, _scope_='mmseg'))
    batch = dict(inputs=[torch.zeros(3, 512, 683)], data_samples=[structures.SegDataSample()])
    assert preprocessor(batch)['inputs'].shape[-2:] == (512, 704)


def test_the_oldest_torch_is_that_of_the_package():
    root = README.parent
    (oldest,) = re.findall(r"'torch>=([\d.]+)'", (root / 'setup.py').read_text(encoding='utf-8'))
    assert f'PyTorch {oldest}-' in TEXT
    page = (root / 'docs/install.md').read_text(encoding='utf-8')
    assert f'\n## PyTorch older than {oldest}\n' in page


def code_of(text):
    """Lines of code, without indents and comments; a hook is a part of its own."""
    text = text.replace('default_hooks = dict(', '\n')
    return {line for one in text.splitlines() if (line := one.partition('#')[0].strip())}


def checkpoints_of(text):
    """Runner and hooks of a config."""
    values = {}
    exec(text, values)
    return values['runner_type'], values['default_hooks']


def shown_results():
    """Cells of the table by backbone."""
    lines = TEXT.partition('\n## Results\n')[2].splitlines()
    head, _, *table = [line.split('|') for line in lines if '|' in line]
    columns = 'RetinaNet, box AP|ms|MiB|Semantic FPN, mIoU|ms|MiB'
    assert head[1:] == columns.split('|')
    names = [re.sub(r'\[(.+)\]\(.+\)', r'\1', cells[0]).strip('*') for cells in table]
    return dict(zip(names, (cells[1:] for cells in table), strict=True))


def csv_rows(name):
    lines = (README.parent / f'docs/benchmarks/{name}.csv').read_text().splitlines()
    return {row['backbone']: row for row in csv.DictReader(lines)}


def test_the_results_are_the_published_and_measured_ones():
    """An empty cell is of a model that has no such config."""
    detectors, segmentors = map(csv_rows, ('detectors', 'semantic_fpn'))
    published, shown = csv_rows('twins_tables'), shown_results()
    known = published_weights()
    assert shown.keys() == {*published, 'PVTv2-B2'}
    assert shown.pop('PVTv2-B2') == [
        str(known['retinanet_pvtv2_b2-coco'].scores['box AP']),
        *(detectors['PVTv2-B2'][key] for key in ('ms', 'mib')),
        *[''] * 3,
    ]
    for name, cells in shown.items():
        wanted = [published[name]['box_ap'], detectors[name]['ms'], detectors[name]['mib']]
        costs = segmentors[name]
        assert cells == [*wanted, published[name]['miou'], costs['ms'], costs['mib']]
    own = known['semantic_fpn_twins_pcpvt_small-ade20k'].scores['mIoU']
    assert f"mmseg's weights for Semantic FPN have {own}" in TEXT


def test_the_first_paragraphs_say_what_the_table_has():
    shown, known = shown_results(), published_weights()
    base, ours = shown['ResNet-50'], shown['PyramidCPVT-S']
    ap, miou = (Decimal(ours[column]) - Decimal(base[column]) for column in (0, 3))
    assert f'gains {ap} box AP over ResNet-50 in RetinaNet on COCO (' in TEXT
    assert f'), and {miou} mIoU in Semantic FPN on ADE20K' in TEXT
    page = (README.parent / 'docs/models.md').read_text(encoding='utf-8')
    (newer,) = re.findall(r'mmdet\s+reports 36.5, or ([\d.]+) with newer ImageNet weights', page)
    assert f'COCO ({Decimal(ours[0]) - Decimal(newer)} over [mmdet' in TEXT
    training = [csv_rows('detectors_train')[name] for name in ('PyramidCPVT-S', 'ResNet-50')]
    ratios = [int(ours[column]) / int(base[column]) for column in (1, 2)]
    ratios += [int(training[0][key]) / int(training[1][key]) for key in ('ms', 'mib')]
    pattern = (
        'RetinaNet takes N times as long as with ResNet-50 and needs N times the memory.'
        r' .+ takes N times as long and needs N times the memory\.'
    )
    (said,) = re.findall(re.sub(r'\bN\b', r'([\\d.]+)', pattern), TEXT)
    assert said == tuple(f'{ratio:.1f}' for ratio in ratios)
    upernet = csv_rows('upernet')
    ratio = int(upernet['PyramidCPVT-S']['ms']) / int(upernet['ResNet-50']['ms'])
    assert 'UPerNet takes the same time.' in TEXT and abs(ratio - 1) < 0.03
    assert f'COCO weights ({shown["PVTv2-B2"][0]} AP) download by name' in TEXT
    assert not any('peg' in one.about.lower() for one in known.values())


def test_the_first_picture_has_the_points_of_the_table(monkeypatch):
    monkeypatch.syspath_prepend(README.parent / 'docs/site')
    pytest.importorskip('matplotlib')
    import hero

    measured, published = csv_rows('detectors'), csv_rows('twins_tables')
    points = hero.read_points()
    assert {*points.index} == {*measured} and len(points) == 10 and not points.ap.isna().any()
    for name, row in points.iterrows():
        assert [str(row.ms), str(row.mib)] == [measured[name]['ms'], measured[name]['mib']]
        if name in published:
            assert row.ap == float(published[name]['box_ap'])
    figure = hero.draw('light')
    labels = {text.get_text() for text in figure.axes[0].texts}
    shown = {'PyramidCPVT-S 43.0', 'Swin-T 41.5', 'ResNet-50 36.3', 'PVTv2-B2 44.6'}
    assert shown <= labels and '+6.7 AP' in labels
    # The counts are those of docs/own_data.md.
    lines = {text.get_text() for text in figure.texts}
    assert '20 others: 441 of 482 found, 49 false (score ≥ 0.5).' in lines
    page = (README.parent / 'docs/own_data.md').read_text(encoding='utf-8')
    (red, white) = re.findall(r'^\| after it \| (\d+) \| (\d+) \|$', page, re.M)[0]
    assert int(red) + int(white) == 441


def test_the_session_in_the_terminal_has_the_score_of_the_page(monkeypatch):
    monkeypatch.syspath_prepend(README.parent / 'docs/site')
    pytest.importorskip('rich')
    import terminal

    (red, white) = (
        re.findall(r'[\d.]+', line)
        for line in terminal.shown_lines()
        if re.match(r'\| (red|white) cell', line)
    )
    page = (README.parent / 'docs/own_data.md').read_text(encoding='utf-8')
    (said,) = re.findall(r'reached a box AP of ([\d.]+) on', ' '.join(page.split()))
    assert float(said) == pytest.approx(50 * (float(red[0]) + float(white[0])), abs=0.06)
    (ap,) = re.findall(r'coco/bbox_mAP: ([\d.]+)', '\n'.join(terminal.shown_lines()))
    assert float(said) == pytest.approx(100 * float(ap), abs=0.06)
    for name in terminal.WIDTHS:
        shown = (README.parent / f'docs/figures/{name}.svg').read_text(encoding='utf-8')
        assert red[0] in shown and white[0] in shown


@pytest.mark.full
def test_what_it_says_of_its_peers():
    """The table of docs/bridges.md on timm, mmseg and mmpretrain, as they are installed."""
    timm = pytest.importorskip('timm')
    pytest.importorskip('mmseg')
    pytest.importorskip('mmpretrain')
    from mmpretrain.models.backbones import PCPVT as PretrainPCPVT
    from mmpretrain.models.backbones import VisionTransformer
    from mmseg.models.backbones import PCPVT

    vit = timm.create_model('vit_tiny_patch16_224', features_only=True)
    assert set(vit.feature_info.reduction()) == {16}

    twins = timm.create_model('twins_pcpvt_small', features_only=True, out_indices=(0,))
    cfg = get_config('mmseg::twins/twins_pcpvt-s_fpn_fpnhead_8xb4-80k_ade20k-512x512.py')
    backbone = {key: cfg.model.backbone[key] for key in cfg.model.backbone}
    del backbone['type'], backbone['init_cfg']
    ports = [PCPVT(**backbone), PretrainPCPVT(arch='small', out_indices=(0,), drop_path_rate=0.2)]
    ours = PyramidCPVT(arch='small', out_indices=(0,), drop_path_rate=0.2)
    images = torch.zeros(1, 3, 333, 517)
    sizes = [tuple(model.eval()(images)[0].shape[-2:]) for model in (twins, *ports, ours)]
    assert sizes == [(83, 129), (84, 130), (84, 130), (84, 130)]
    assert 4 * 83 < 333 and 4 * 129 < 517

    plain = VisionTransformer('deit-tiny', out_type='featmap', out_indices=(3, 11))
    assert {tuple(one.shape[-2:]) for one in plain(images)} == {(21, 33)}

    image = torch.randn(1, 3, 64, 96)
    padded = torch.nn.functional.pad(image, (0, 64, 0, 32))
    announce_sizes(padded, [(64, 96)])
    for model, keeps in ((twins, False), (ports[0], False), (ports[1], False), (ours, True)):
        with torch.no_grad():
            beside, alone = model(padded)[0][..., :16, :24], model(image)[0]
        assert torch.allclose(alone, beside, atol=1e-4) == keeps

    for port in ports:  # the rate is that of the block and that of its branches
        block = next(m for m in reversed([*port.modules()]) if hasattr(m, 'drop_path'))
        rates = [m.drop_prob for m in block.modules() if type(m).__name__ == 'DropPath']
        assert len(rates) == 3 and min(rates) > 0
    assert 'paramwise_cfg' not in cfg.optim_wrapper
    assert cfg.optim_wrapper.optimizer.weight_decay > 0
    whole = timm.create_model('twins_pcpvt_small')
    pegs = {name for name, _ in whole.named_parameters() if 'pos_block' in name}
    assert pegs and pegs <= whole.no_weight_decay()

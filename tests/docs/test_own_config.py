"""docs/own_config.md and the pages of the toolboxes: their configs build and train, and their
tables are those of the code.
"""

import re
import runpy
import subprocess
import sys
from ast import literal_eval
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.dataset import pseudo_collate
from mmengine.hooks import ParamSchedulerHook
from mmengine.hub import get_config
from mmengine.model import revert_sync_batchnorm
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, RUNNERS, init_default_scope
from mmengine.structures import PixelData
from mmengine.utils import is_installed
from pages import ROOT, SMALL, blocks
from PIL import Image
from tiny import only

import cpvt_backbones
from cpvt_backbones.checkpoints.reading import finding
from cpvt_backbones.engine.resuming import PROGRESS
from cpvt_backbones.errors import InputTypeError
from cpvt_backbones.toolboxes import check_neck, read_config
from cpvt_backbones.weights import published_weights

PAGE = 'docs/own_config.md'
TOOLBOXES = {name: f'docs/{name}.md' for name in ('mmdet', 'mmseg', 'mmpretrain')}
MEAN = [123.675, 116.28, 103.53]  # of the images of Twins' weights
CODE = [
    text
    for page in (PAGE, *TOOLBOXES.values())
    for language, text in blocks(page)
    if language == 'python'
]
DETECTORS = ['my_detector', 'my_faster_rcnn']
SEGMENTORS = ['my_upernet', 'my_segmentor']
CONFIGS = dict.fromkeys(DETECTORS, 'mmdet') | dict.fromkeys(SEGMENTORS, 'mmseg')


def write_config(folder, name, *, more=''):
    (block,) = (text for text in CODE if text.startswith(f'# {name}.py\n'))
    path = folder / f'{name}.py'
    path.write_text(block + more)
    return path


# By page and heading in "Change these lines": further values of the block, by the text that they
# replace, as the sentence above the block says.
DIFFS = {
    ('mmdet', 'RetinaNet'): {},
    ('mmdet', 'Faster and Mask R-CNN'): {'mask_rcnn/mask-rcnn': 'faster_rcnn/faster-rcnn'},
    ('mmseg', 'UPerNet'): {},
    ('mmseg', 'Semantic FPN'): {},
    ('mmdet', 'DINO, DETR'): {
        'dino/dino-4scale_r50_8xb2-12e': 'detr/detr_r50_8xb2-150e',
        '(1, 2, 3)': '(3,)',
        '[128, 320, 512]': '[512]',
    },
    ('mmpretrain', 'Change these lines'): {},
}


def variant(toolbox, title, values):
    """The block below a heading with other values."""
    ((_, text),) = blocks(TOOLBOXES[toolbox], title)
    for old, new in values.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


def on_another_base(row):
    """A block with a base of the table, and with what the table changes in ``model``."""
    base, block, change = row.strip('| ').split(' | ')
    toolbox, name = base.strip('`').partition('::')[0], re.findall(r'^\[(.+)\]', block)[0]
    (key,) = (key for key in DIFFS if key[0] == toolbox and key[1].endswith(name))
    text, count = re.subn('^_base_ = .+', f"_base_ = '{base.strip('`')}'", variant(*key, {}))
    assert count == 1
    if change == 'add the lines below':
        text += next(lines for lines in CODE if lines.startswith('# FCOS\n'))
    for code in re.findall('`(.+?)`', change):
        left_out = change.startswith('leave out')
        text += f"del model['{code}']\n" if left_out else f'model.update({code})\n'
    return text


CASES = [variant(*key, {}) for key in DIFFS]
CASES += [variant(*key, values) for key, values in DIFFS.items() if values]
CASES += [
    on_another_base(row)
    for page in TOOLBOXES.values()
    for row in (ROOT / page).read_text().splitlines()
    if re.match(r'\| `mm\w+::', row)
]


def train_data(scope, height, width):
    """A batch of two images with labels, as the toolbox's data loader gives it."""
    if scope == 'mmdet':
        from mmdet.testing import demo_mm_inputs

        shapes = [(3, height, width)] * 2
        return demo_mm_inputs(2, shapes, num_items=[2, 1], num_classes=80, with_mask=True)
    images = [torch.randint(0, 255, (3, height, width), dtype=torch.uint8) for _ in range(2)]
    if scope == 'mmpretrain':
        from mmpretrain.structures import DataSample

        return dict(inputs=images, data_samples=[DataSample().set_gt_label(i) for i in range(2)])
    from mmseg.structures import SegDataSample

    labels = torch.randint(0, 150, (1, height, width))
    shape = dict(img_shape=(height, width), ori_shape=(height, width))
    samples = [SegDataSample(gt_sem_seg=PixelData(data=labels), metainfo=shape) for _ in images]
    return dict(inputs=images, data_samples=samples)


@pytest.mark.parametrize(
    'text',
    only(CASES[0], of=CASES),
    ids=lambda text: text.partition("'")[2].partition("'")[0],
)
def test_changed_lines_train(text, tmp_path):
    """A step of the toolbox's own model trains PEG; the rate falls to the end of the schedule."""
    (scope,) = re.findall(r"^_base_ = '(\w+)::", text)
    pytest.importorskip(scope)
    (tmp_path / 'mine.py').write_text(text)
    cfg = read_config(tmp_path / 'mine.py')
    assert cfg.model.backbone.init_cfg == 'timm://twins_pcpvt_small.in1k'
    cfg.model.backbone.update(arch='tiny', init_cfg=None)
    init_default_scope(scope)
    model = revert_sync_batchnorm(MODELS.build(cfg.model))
    if scope == 'mmseg':
        assert model.data_preprocessor.test_cfg == dict(size_divisor=32)
    if scope != 'mmpretrain':
        assert model.data_preprocessor.mean.flatten().tolist() == pytest.approx(MEAN)
    model.init_weights()  # DINO's level_embed is uninitialised memory before
    check_neck(model, cfg.model)
    assert pegs_and_others(model, cfg)[0] == {0}
    optim_wrapper = build_optim_wrapper(model, dict(cfg.optim_wrapper, type='OptimWrapper'))
    assert isinstance(optim_wrapper.optimizer, torch.optim.AdamW)
    pegs = [one for name, one in model.backbone.named_parameters() if 'pos_block' in name]
    model.train()
    # DINO takes 900 tokens of an image.
    size = (256, 352) if 'num_queries' in cfg.model else (64, 96)
    losses = model.train_step(train_data(scope, *size), optim_wrapper)
    assert all(torch.isfinite(torch.as_tensor(value)).all() for value in losses.values())
    # Not the values: AdamW divides by |gradient| + 1e-8, and a clipped gradient can be far below.
    averages = [optim_wrapper.optimizer.state[one]['exp_avg'] for one in pegs]
    assert averages and all(one.isfinite().all() and one.any() for one in averages)
    schedule = cfg.param_scheduler if isinstance(cfg.param_scheduler, list) else []
    ends = [one.eta_min for one in schedule if one.type == 'PolyLR']
    assert all(end < 0.1 * cfg.optim_wrapper.optimizer.lr for end in ends)
    assert bool(ends) == (scope == 'mmseg')


def test_pvtv2_is_that_of_the_published_detector():
    (text,) = (text for text in CODE if "arch='pvtv2_b2'" in text)
    values = {}
    exec(text, values)
    published = read_config(
        published_weights()['retinanet_pvtv2_b2-coco'].config_file
    ).model.backbone
    assert values['backbone'].pop('_delete_') and values['backbone'] == published


def test_the_pretrained_of_a_base_is_answered_by_what_to_write(tmp_path):
    """Each of mmseg's bases with ResNet sets it."""
    pytest.importorskip('mmseg')
    text = variant('mmseg', 'UPerNet', {})
    line = "    pretrained=None,  # the base's weights are ResNet's\n"
    assert text.count(line) == 1
    (tmp_path / 'mine.py').write_text(text.replace(line, ''))
    cfg = read_config(tmp_path / 'mine.py')
    init_default_scope('mmseg')
    wrapped = dict(type='WithPEG', backbone=deepcopy(cfg.model.backbone), after=['blocks.0.0'])
    advice = re.escape("has no argument 'pretrained'; write model = dict(pretrained=None, ...)")
    with pytest.raises(InputTypeError, match=f'PyramidCPVT {advice}'):
        MODELS.build(cfg.model)
    cfg.model.backbone = wrapped
    with pytest.raises(InputTypeError, match=advice):
        MODELS.build(cfg.model)


@pytest.mark.parametrize('own', [False, True], ids=['lines', 'own classes'])
def test_upernet_has_the_rates_of_mmsegs_twins(own, tmp_path):
    """AdamW, no decay of PEG and norms, and the schedule up to its length."""
    pytest.importorskip('mmseg')
    (tmp_path / 'mine.py').write_text(variant('mmseg', 'UPerNet', {}))
    cfg = read_config(write_config(tmp_path, 'my_upernet') if own else tmp_path / 'mine.py')
    page = (ROOT / TOOLBOXES['mmseg']).read_text()
    (name,) = re.findall(r'`(twins_pcpvt-s_uperhead_\S+)\.py`', page)
    twins = get_config(f'mmseg::twins/{name}.py')
    length = cfg.train_cfg.max_iters
    assert length == (40000 if own else twins.train_cfg.max_iters)
    twins.param_scheduler[-1].end = length
    assert cfg.param_scheduler == twins.param_scheduler
    assert twins.optim_wrapper.optimizer.pop('betas') == (0.9, 0.999)  # torch's default
    assert cfg.optim_wrapper.optimizer == twins.optim_wrapper.optimizer
    assert cfg.optim_wrapper.paramwise_cfg == twins.optim_wrapper.paramwise_cfg
    assert cfg.model.backbone.drop_path_rate == twins.model.backbone.drop_path_rate
    assert cfg.train_dataloader.batch_size == twins.train_dataloader.batch_size == 4
    gpus = int(re.findall(r'_(\d)xb4', name)[0])
    assert cfg.auto_scale_lr.base_batch_size == 4 * gpus


def test_semantic_fpn_has_the_optimizer_of_mmsegs_twins(tmp_path):
    """Whose norms have weight decay."""
    pytest.importorskip('mmseg')
    (tmp_path / 'mine.py').write_text(variant('mmseg', 'Semantic FPN', {}))
    cfg = read_config(tmp_path / 'mine.py')
    page = (ROOT / TOOLBOXES['mmseg']).read_text()
    (name,) = re.findall(r'`(twins_pcpvt-s_fpn_\S+)\.py`', page)
    twins = get_config(f'mmseg::twins/{name}.py')
    assert cfg.optim_wrapper.optimizer == twins.optim_wrapper.optimizer
    assert 'paramwise_cfg' not in twins.optim_wrapper
    assert cfg.optim_wrapper.paramwise_cfg == dict(custom_keys=dict(pos_block=dict(decay_mult=0)))


def test_warm_up_fits_a_short_training(tmp_path):
    path = write_config(tmp_path, 'my_upernet')
    path.write_text(path.read_text().replace('iterations = 40000', 'iterations = 4000'))
    cfg = read_config(path)
    warm, rest = cfg.param_scheduler
    assert (warm.end, rest.begin, rest.end) == (400, 400, 4000)
    assert (cfg.train_cfg.max_iters, cfg.train_cfg.val_interval) == (4000, 800)


def rows(heading):
    """Cells of the table below a heading, without its head."""
    text = (ROOT / PAGE).read_text().partition(f'\n## {heading}\n')[2].partition('\n## ')[0]
    lines = [line for line in text.splitlines() if line.startswith('| ')]
    return [[cell.strip().strip('`') for cell in line.strip('|').split('|')] for line in lines[2:]]


@pytest.mark.parametrize('name', CONFIGS)
def test_config_builds(name, tmp_path):
    toolbox = CONFIGS[name]
    pytest.importorskip(toolbox)
    cfg = read_config(write_config(tmp_path, name))
    assert cfg.model.backbone.init_cfg == 'timm://twins_pcpvt_small.in1k'
    model = MODELS.build(dict(cfg.model, _scope_=toolbox))
    check_neck(model, cfg.model)
    assert type(model.data_preprocessor).__name__.startswith('ValidSizes')
    head = 'bbox_head' if toolbox == 'mmdet' else 'decode_head'
    heads = [getattr(getattr(model, 'roi_head', model), head)]
    if getattr(model, 'with_auxiliary_head', False):
        heads.append(model.auxiliary_head)
    assert len(heads) == 1 + (name == 'my_upernet')
    classes = cfg.val_dataloader.dataset.metainfo.classes
    assert {head.num_classes for head in heads} == {len(classes)}
    assert pegs_and_others(model, cfg)[0] == {0}
    assert cfg.runner_type == 'ResumableRunner'


def test_detectors_differ_in_their_base_and_heads():
    """As the page says, and they keep checkpoints alike."""
    retinanet, faster = (
        {*text.splitlines()[1:]}
        for name in DETECTORS
        for text in CODE
        if text.startswith(f'# {name}.py\n')
    )
    other = sorted(line.strip() for line in retinanet ^ faster)
    head = 'bbox_head=dict(num_classes=len(classes))'
    assert other == [
        "_base_ = 'mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py'",
        "_base_ = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'",
        f'{head})',
        f'roi_head=dict({head}))',
    ]


def test_segmentors_differ_in_their_model_and_rates(tmp_path):
    """As the page says, and they keep checkpoints alike."""
    pytest.importorskip('mmseg')
    upernet, fpn = (read_config(write_config(tmp_path, name)) for name in SEGMENTORS)
    rates = {'optim_wrapper', 'optimizer', 'param_scheduler', 'auto_scale_lr', 'warmup'}
    own = dict.fromkeys(rates | {'model', 'work_dir'})
    assert {**fpn, **own} == {**upernet, **own}
    assert fpn.model.data_preprocessor == upernet.model.data_preprocessor
    assert fpn.model.backbone == upernet.model.backbone
    for cfg, title in ((upernet, 'UPerNet'), (fpn, 'Semantic FPN')):
        (tmp_path / 'block.py').write_text(variant('mmseg', title, {}))
        block = read_config(tmp_path / 'block.py')
        assert cfg.optim_wrapper == block.optim_wrapper
        assert cfg.auto_scale_lr == block.auto_scale_lr


def test_recipe_with_own_classes(tmp_path):
    pytest.importorskip('mmdet')
    (block,) = (text for text in CODE if text.startswith('# three_classes.py'))
    (tmp_path / 'mine.py').write_text(block)
    cfg = read_config(tmp_path / 'mine.py')
    assert cfg.model.bbox_head.num_classes == 3
    assert cfg.model.backbone.init_cfg.checkpoint == 'timm://twins_pcpvt_small.in1k'
    for part in ('train', 'val'):
        dataset = cfg[f'{part}_dataloader'].dataset
        assert dataset.metainfo.classes == ('car', 'person', 'tree')
        assert dataset.data_root + dataset.ann_file == f'data/mine/{part}.json'
        assert dataset.data_prefix.img == f'{part}/'
    assert cfg.test_evaluator.ann_file == cfg.val_evaluator.ann_file == 'data/mine/val.json'


STARTS = {  # config: published weights, layers of the classes
    'my_detector': ('retinanet_pvtv2_b2-coco', {'bbox_head.retina_cls'}),
    'my_upernet': (
        'upernet_twins_pcpvt_small-ade20k',
        {'decode_head.conv_seg', 'auxiliary_head.conv_seg'},
    ),
    'my_segmentor': ('semantic_fpn_twins_pcpvt_small-ade20k', {'decode_head.conv_seg'}),
}


def config_from_published(folder, name):
    """A complete config with the lines of its page that start it from a whole model."""
    weights, _ = STARTS[name]
    line = f"load_from = '{weights}'\n"
    page = (ROOT / TOOLBOXES[CONFIGS[name]]).read_text()
    assert line in page or f'the name is `{weights}`' in page
    assert 'set `init_cfg=None`' in page
    more = "model['backbone']['init_cfg'] = None\n"
    if name == 'my_detector':
        (backbone,) = (text for text in CODE if text.startswith('backbone = dict'))
        more = f'{backbone}model.update(backbone=backbone)\n{more}'
    return write_config(folder, name, more=more + line)


@pytest.mark.parametrize('name', STARTS)
def test_config_fits_the_weights_of_a_whole_model(name, tmp_path):
    """But for the layers of the classes."""
    scope = CONFIGS[name]
    pytest.importorskip(scope)
    weights, layers = STARTS[name]
    files = config_from_published(tmp_path, name), published_weights()[weights].config_file
    with torch.device('meta'):
        ours, theirs = (
            MODELS.build(dict(read_config(file).model, _scope_=scope)).state_dict()
            for file in files
        )
    assert ours.keys() == theirs.keys()
    other = {key for key, value in ours.items() if value.shape != theirs[key].shape}
    assert other == {f'{layer}.{part}' for layer in layers for part in ('weight', 'bias')}


@pytest.mark.slow
@pytest.mark.parametrize('name', STARTS)
def test_a_toolboxs_own_script_starts_from_a_whole_model(name, tmp_path, monkeypatch):
    """By name. With a rate of 0, all parameters but those of the classes stay the file's."""
    scope = CONFIGS[name]
    script = Path(pytest.importorskip(scope).__file__).parent / '.mim/tools/train.py'
    monkeypatch.chdir(tmp_path)
    Path('demo').symlink_to(ROOT / 'demo')
    path = config_from_published(tmp_path, name)
    weights, layers = STARTS[name]
    with torch.device('meta'):
        cfg = read_config(published_weights()[weights].config_file)
        whole = revert_sync_batchnorm(MODELS.build(dict(cfg.model, _scope_=scope)))
    rng = torch.Generator().manual_seed(0)
    state = {
        key: torch.rand(value.shape, generator=rng).to(value.dtype)
        for key, value in whole.state_dict().items()
    }
    torch.save(dict(state_dict=state, meta={}), 'whole.pth')
    monkeypatch.setattr(finding, 'fetch', lambda address: tmp_path / 'whole.pth')
    options = [*SMALL, *SHORT[scope], 'val_dataloader.dataset.pipeline.1.scale=(96,64)']
    options.append('optim_wrapper.optimizer.lr=0')
    monkeypatch.setattr(sys, 'argv', [str(script), str(path), '--cfg-options', *options])
    runpy.run_path(str(script), run_name='__main__')
    (file,) = Path('work_dirs', path.stem).glob('[ei]*_1.pth')
    trained = torch.load(file, weights_only=False)['state_dict']
    parameters = {key for key, _ in whole.named_parameters()}
    other = {key for key in parameters if not torch.equal(trained[key], state[key])}
    assert {key.rpartition('.')[0] for key in other} == layers


@pytest.mark.full
def test_mask_rcnn_builds(tmp_path):
    """With the two changes of Faster R-CNN that the page names."""
    pytest.importorskip('mmdet')
    page = ' '.join((ROOT / TOOLBOXES['mmdet']).read_text().split())
    (base, mask_head) = re.findall(
        r'For Mask R-CNN, .+? `(mmdet::.+?)`.+? `(mask_head=.+?)`', page
    )[0]
    path = write_config(tmp_path, 'my_faster_rcnn')
    text = path.read_text()
    for old, new in {
        'mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py': base,
        'roi_head=dict(': f'roi_head=dict({mask_head}, ',
    }.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    path.write_text(text)
    cfg = read_config(path)
    model = MODELS.build(dict(cfg.model, _scope_='mmdet'))
    check_neck(model, cfg.model)
    heads = model.roi_head.bbox_head, model.roi_head.mask_head
    assert [head.num_classes for head in heads] == [2, 2]


def pegs_and_others(model, cfg):
    """Weight decay of PEGs and of other parameters."""
    options = dict(cfg.optim_wrapper, type='OptimWrapper')  # one of them is of a GPU
    groups = build_optim_wrapper(model, options).optimizer.param_groups
    decay = {id(one): group['weight_decay'] for group in groups for one in group['params']}
    named = dict(model.backbone.named_parameters())
    pegs = {decay.pop(id(value)) for name, value in named.items() if 'pos_block' in name}
    return pegs, {*decay.values()}


def test_layer_decay(tmp_path):
    """The rate falls by one factor from block to block, and PEG has no weight decay."""
    pytest.importorskip('mmdet')
    (block,) = (text for text in CODE if text.startswith('optim_wrapper'))
    cfg = read_config(write_config(tmp_path, 'my_detector', more=block))
    model = MODELS.build(dict(cfg.model, _scope_='mmdet'))
    assert pegs_and_others(model, cfg) == ({0}, {0, 0.05})
    groups = build_optim_wrapper(model, dict(cfg.optim_wrapper)).optimizer.param_groups
    rate = {group['param_name']: group['lr'] for group in groups}
    first, second = (rate[f'backbone.blocks.0.{i}.attn.q.weight'] for i in range(2))
    assert first == pytest.approx(0.75 * second) and rate['bbox_head.retina_cls.weight'] == 1e-4


@pytest.mark.full
def test_channels_of_the_necks():
    archs = cpvt_backbones.list_archs()
    listed = []
    for name, arch, channels in rows('Neck (FPN)'):
        name, _, source = name.partition('`, `')
        options = dict([source.replace("'", '').split('=')]) if source else {}
        first, _, last = arch.partition('` to `')
        names = archs[name]
        for one in names[names.index(first) : names.index(last or first) + 1]:
            with torch.device('meta'):
                backbone = getattr(cpvt_backbones, name)(arch=one, **options)
            assert list(backbone.out_channels) == literal_eval(re.search(r'\[.+?\]', channels)[0])
            listed.append((name, one, source))
    for name in ('PyramidCPVT', 'MultiScaleCPVT'):
        found = [arch for one, arch, source in listed if one == name and not source]
        assert found == [*archs[name]]


def test_what_frozen_stages_freezes():
    pyramid = cpvt_backbones.PyramidCPVT(arch='tiny', frozen_stages=4)
    assert not [name for name, one in pyramid.named_parameters() if one.requires_grad]
    with pytest.raises(ValueError, match='frozen_stages'):
        cpvt_backbones.PyramidCPVT(arch='tiny', frozen_stages=12)
    column = cpvt_backbones.MultiScaleCPVT(arch='tiny', frozen_stages=12)
    trained = [name for name, one in column.named_parameters() if one.requires_grad]
    assert trained and all(name.startswith('pyramid.') for name in trained)


def write_data():
    """Three small images of each split, with a rectangle of one of the classes."""
    rng = np.random.default_rng(0)
    for part in ('train', 'val'):
        images, masks = (Path('demo', kind, part) for kind in ('cells', 'cell_masks'))
        for folder in (images, masks):
            folder.mkdir(parents=True)
        for i in range(3):
            pixels = rng.integers(0, 255, (64, 96, 3), np.uint8)
            mask = np.zeros((64, 96), np.uint8)
            mask[10:30, 20:50] = i
            Image.fromarray(pixels).save(images / f'{i}.jpg')
            Image.fromarray(mask).save(masks / f'{i}.png')


LINES = re.split(r'^(?=# \()', next(x for x in CODE if x.startswith('# (1)')), flags=re.M)[1:]


@pytest.mark.full
@pytest.mark.parametrize(
    'name, lines, crop, tested',
    [
        ('my_upernet', '', (512, 512), [(512, 768), (512, 910)]),
        ('my_segmentor', '', (512, 512), [(512, 768), (512, 910)]),
        ('my_upernet', LINES[0], (768, 768), [(768, 1152), (768, 1365)]),
        ('my_upernet', LINES[1], (512, 512), [(64, 96), (900, 1600)]),
        ('my_segmentor', LINES[2], (512, 512), [(512, 768), (512, 910)]),
    ],
    ids=['UPerNet', 'Semantic FPN', 'more pixels', 'own scale', 'windows'],
)
def test_segmentor_takes_images_of_two_sizes(name, lines, crop, tested, tmp_path, monkeypatch):
    """Batches of crops, and a test of each image, with the lines for other sizes."""
    datasets = pytest.importorskip('mmseg.registry').DATASETS
    monkeypatch.chdir(tmp_path)
    write_data()
    for part in ('train', 'val'):
        Image.new('RGB', (1600, 900)).save(f'demo/cells/{part}/1.jpg')
        Image.new('L', (1600, 900), 2).save(f'demo/cell_masks/{part}/1.png')
    cfg = read_config(write_config(tmp_path, name, more=lines))
    train, val = (
        datasets.build(loader.dataset) for loader in (cfg.train_dataloader, cfg.val_dataloader)
    )
    assert len(val.metainfo['palette']) == len(val.metainfo['classes']) == 3
    cfg.model.backbone.update(arch='tiny', init_cfg=None)
    model = revert_sync_batchnorm(MODELS.build(dict(cfg.model, _scope_='mmseg'))).eval()
    batch = model.data_preprocessor(pseudo_collate([train[0], train[1]]), training=True)
    assert batch['inputs'].shape == (2, 3, *crop)
    windows = model.test_cfg.mode == 'slide'
    assert windows == lines.startswith('# (3)')
    for place, size in enumerate(tested):
        item = val[place]
        assert item['inputs'].shape[1:] == size
        if windows and place:
            (found,) = model.test_step(pseudo_collate([item]))
            assert found.pred_sem_seg.shape == found.gt_sem_seg.shape == (900, 1600)


@pytest.mark.full
@pytest.mark.parametrize('name', SEGMENTORS)
def test_void_of_another_number(name, tmp_path, monkeypatch):
    """In masks and in the padding of images that are smaller than the crop."""
    datasets = pytest.importorskip('mmseg.registry').DATASETS
    monkeypatch.chdir(tmp_path)
    write_data()
    mask = np.full((64, 96), 11, np.uint8)
    mask[:8] = 2
    Image.fromarray(mask).save('demo/cell_masks/train/1.png')
    path = write_config(tmp_path, name)
    text = path.read_text()
    assert text.count('void = 255') == 1
    path.write_text(text.replace('void = 255', 'void = 11'))
    cfg = read_config(path)
    assert {cfg.val_evaluator.ignore_index, cfg.test_evaluator.ignore_index} == {11}
    pipeline = cfg.train_dataloader.dataset.pipeline
    pipeline[2].update(scale=(96, 64), ratio_range=(0.5, 0.5))
    assert pipeline[3].ignore_index == 11
    pipeline[3].crop_size = (64, 64)
    cfg.model.data_preprocessor.size = (64, 64)
    cfg.model.backbone.update(arch='tiny', init_cfg=None)
    model = revert_sync_batchnorm(MODELS.build(dict(cfg.model, _scope_='mmseg')))
    data = datasets.build(cfg.train_dataloader.dataset)
    batch = model.data_preprocessor(pseudo_collate([data[1], data[2]]), training=True)
    labels = torch.stack([one.gt_sem_seg.data for one in batch['data_samples']])
    assert labels.shape[-2:] == (64, 64) and {*labels.unique().tolist()} == {0, 2, 11}
    losses = model(**batch, mode='loss')
    assert all(torch.as_tensor(value).isfinite().all() for value in losses.values())
    model.data_preprocessor.seg_pad_val = 255
    batch = model.data_preprocessor(pseudo_collate([data[1], data[2]]), training=True)
    with pytest.raises(IndexError, match='255 is out of bounds'):
        model(**batch, mode='loss')


@pytest.mark.full
def test_few_images_train_at_the_rate_of_the_detector(tmp_path, monkeypatch):
    """On the photographs of the repository, by the schedules that the runner builds."""
    pytest.importorskip('mmdet')
    monkeypatch.chdir(tmp_path)
    Path('demo').symlink_to(ROOT / 'demo')
    cfg = read_config(write_config(tmp_path, 'my_detector'), work_dir=tmp_path / 'work')
    cfg.model.backbone.update(arch='tiny', init_cfg=None)
    cfg.train_dataloader.update(num_workers=0, persistent_workers=False)
    runner = RUNNERS.build(cfg)
    loop = runner.build_train_loop(cfg.train_cfg)
    wrapper = runner.optim_wrapper = runner.build_optim_wrapper(cfg.optim_wrapper)
    runner.param_schedulers = runner.build_param_scheduler(cfg.param_scheduler)
    hook, rates = ParamSchedulerHook(), []
    for _ in range(loop.max_epochs):
        for step in range(len(loop.dataloader)):
            rates.append(wrapper.optimizer.param_groups[0]['lr'])
            hook.after_train_iter(runner, step)
        hook.after_train_epoch(runner)
    assert len(rates) == 40 * 36
    full = [step for step, rate in enumerate(rates) if rate == pytest.approx(1e-4)]
    assert max(rates) == pytest.approx(1e-4)
    assert full[0] < len(rates) / 10 and full[-1] >= len(rates) / 2
    assert rates[-1] == pytest.approx(1e-6)


# Short trainings on random weights and small images.
SHORT = {
    'mmdet': (
        'train_cfg.max_epochs=1',
        'train_dataloader.dataset.pipeline.2.scale=(96,64)',
    ),
    'mmseg': (
        'train_cfg.max_iters=1',
        'train_cfg.val_interval=1',
        'train_dataloader.dataset.pipeline.2.scale=(96,64)',
        'train_dataloader.dataset.pipeline.3.crop_size=(64,64)',
        'model.data_preprocessor.size=(64,64)',
    ),
}


RATES = {**dict.fromkeys(DETECTORS, 1e-4), 'my_upernet': 6e-5, 'my_segmentor': 1e-4}


@pytest.mark.slow
@pytest.mark.parametrize('name', CONFIGS)
def test_config_trains(name, call, tmp_path, monkeypatch):
    """With the commands of the page; the model then predicts."""
    toolbox = CONFIGS[name]
    pytest.importorskip(toolbox)
    monkeypatch.chdir(tmp_path)
    Path('demo').symlink_to(ROOT / 'demo')
    config = write_config(tmp_path, name)
    options = ['model.backbone.init_cfg=None', *SMALL, *SHORT[toolbox]]
    options += [f'{part}_dataloader.dataset.pipeline.1.scale=(96,64)' for part in ('val', 'test')]
    call('train', config, '--cfg-options', *options)
    (weights,) = (tmp_path / f'work_dirs/{config.stem}').glob('[ei]*_1.pth')
    groups = torch.load(weights, weights_only=False)['optimizer']['param_groups']
    (rate,) = {one['initial_lr'] for one in groups}
    assert rate == pytest.approx(RATES[name])
    if toolbox == 'mmseg':
        call('test', config, weights, '--cfg-options', *options)
    images = Path('demo/cells/val')
    call('infer', config, weights, images, '--scale', 'native', '--out-dir', 'out')
    assert len([*Path('out/vis').iterdir()]) == len([*images.iterdir()])


@pytest.mark.slow
def test_mmsegs_own_script_trains(tmp_path, monkeypatch):
    """Through this package; without it, the fork is not found, as docs/install.md says."""
    script = Path(pytest.importorskip('mmseg').__file__).parent / '.mim/tools/train.py'
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('PYTHONPATH', str(ROOT))
    write_data()
    words = [script, write_config(tmp_path, 'my_segmentor'), '--cfg-options']
    words += ['model.backbone.init_cfg=None', *SMALL, *SHORT['mmseg']]
    words += ['auto_scale_lr.enable=True']
    text = (ROOT / 'docs/install.md').read_text()
    error = 'mmsegmentation is not installed, please install mmsegmentation manually'
    assert f'\nModuleNotFoundError: {error}\n' in text
    if not is_installed('mmsegmentation'):
        plain = subprocess.run([sys.executable, *words], capture_output=True, text=True)
        assert plain.returncode and plain.stderr.endswith(f'ModuleNotFoundError: {error}\n')
    run = [sys.executable, '-m', 'cpvt_backbones.run', *words]
    done = subprocess.run(run, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    saved = torch.load('work_dirs/my_segmentor/iter_1.pth', weights_only=False)
    assert PROGRESS in saved['message_hub']['runtime_info']  # of ResumableRunner
    assert saved['optimizer']['param_groups'][0]['initial_lr'] == RATES['my_segmentor'] * 4 / 16

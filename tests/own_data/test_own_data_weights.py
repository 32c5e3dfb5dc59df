"""``make_config.py --weights``: the config has the model of the weights, whatever they are."""

import itertools
import re
import socket

import pytest
import shape_data
import torch
from mmengine.optim import build_optim_wrapper
from PIL import Image
from tiny import assert_no_neighbour_matters, only, randomise

import cpvt_backbones
from cpvt_backbones import CPVT, MultiScaleCPVT, PyramidCPVT
from cpvt_backbones.analysis.complexity import build_model
from cpvt_backbones.checkpoints import export_state_dict, load_checkpoint, public_backbone
from cpvt_backbones.toolboxes import dicts_of, read_config

NARROW = dict(embed_dims=192, depth=2, num_heads=3, mlp_ratio=0.5)
STAGES = dict(
    depths=(1, 2, 1, 1),
    embed_dims=(64, 128, 320, 512),
    num_heads=(1, 2, 5, 8),
    mlp_ratios=(0.5, 0.5, 0.5, 0.25),
    sr_ratios=(4, 2, 2, 1),
)
TABLE, PEG = dict(type='Learned'), dict(type='PEG', after_blocks='0-5')
DINOV3 = dict(
    position=dict(type='RoPE', mode='dinov3'),
    num_registers=4,
    qkv_bias=False,
    layer_scale_init=1.0,
    norm_eps=1e-5,
)
TASKS = {
    'detector': 'mmdet',
    'instance segmentor': 'mmdet',
    'segmentor': 'mmseg',
    'classifier': 'mmpretrain',
}


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Function that writes small data of a task; returns the arguments of make_config.py."""
    monkeypatch.chdir(tmp_path)
    scenes = shape_data.make_split(0, 'train', 6, objects=2)

    def data(task):
        if task == 'classifier':
            for index, scene in enumerate(scenes):
                path = tmp_path / f'photos/{"ab"[index % 2]}/{index}.png'
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(scene.image).save(path)
            return ['folders', 'photos']
        shape_data.write_images(tmp_path / 'images', scenes)
        if task == 'segmentor':
            shape_data.class_maps(tmp_path / 'masks', scenes)
            return ['masks', 'images', 'masks']
        shape_data.coco_json(tmp_path / 'all.json', scenes, masks=True)
        return ['coco' if task == 'detector' else 'instances', 'all.json', 'images']

    return data


def deit(**arguments):
    return CPVT(**{'arch': NARROW, 'position': TABLE, 'img_size': 64, **arguments})


def pyramid(**arguments):
    return PyramidCPVT(**{'arch': STAGES, 'img_size': 64, 'final_norm': True, **arguments})


def save_as_timm(model, path):
    torch.save(export_state_dict(model.state_dict(), model, to='timm')[0], path)


def save_as_folder(model, path):
    model.save_pretrained(path)


def save_as_detector(model, path):
    weights = {f'backbone.{key}': value for key, value in model.state_dict().items()}
    torch.save(dict(state_dict=weights | {'bbox_head.w': torch.ones(1)}), path)


WEIGHTS = {
    'deit': (deit, save_as_timm),
    'distilled': (lambda: deit(with_dist_token=True), save_as_timm),
    'dinov3': (lambda: deit(**DINOV3), save_as_folder),
    'twins': (pyramid, save_as_timm),
    'pvt': (
        lambda: pyramid(
            position=dict(type='Learned', interpolation='bilinear', antialias=False),
            with_cls_token=True,
            embed_norm_eps=1e-6,
        ),
        save_as_detector,
    ),
    'own detector': (lambda: MultiScaleCPVT(arch={**NARROW, 'depth': 5}), save_as_detector),
    'own pyramid': (lambda: pyramid(final_norm=False), save_as_detector),
}


@pytest.mark.parametrize('task', [task for task in TASKS if task != 'classifier'])
def test_the_batch_of_a_test_changes_no_prediction(call, data, task):
    pytest.importorskip(TASKS[task])
    call('make_config', *data(task), '--weights', 'none', '--out', 'config.py')
    cfg = read_config('config.py')
    for part in dicts_of(cfg.model.test_cfg):
        if 'score_thr' in part:
            part['score_thr'] = 0.0  # a random model is not sure
    assert_no_neighbour_matters(cfg, build_model(cfg))


# What no output of a task needs, or its backbone cannot have.
MAY_BE_DROPPED = r'(backbone\.)?(dist_token|pyramid\.)|bbox_head'


@pytest.mark.parametrize(
    ('kind', 'task'),
    only(*zip(WEIGHTS, itertools.cycle(TASKS)), of=itertools.product(WEIGHTS, TASKS)),
)
def test_the_config_has_the_model_of_the_weights(call, data, tmp_path, kind, task):
    pytest.importorskip(TASKS[task])
    make, save = WEIGHTS[kind]
    source = randomise(make())
    save(source, tmp_path / 'mine')
    call('make_config', *data(task), '--weights', 'mine', '--out', 'config.py')
    cfg = read_config(tmp_path / 'config.py')
    backbone = build_model(cfg).backbone
    report = load_checkpoint(backbone, cfg.model.backbone.init_cfg)
    norm = '' if task == 'classifier' else r'|(backbone\.)?norm\.'  # of a pyramid's maps
    assert all(re.match(MAY_BE_DROPPED + norm, key) for key in report.dropped), report
    assert all(key.startswith('pyramid.') for key in report.missing), report
    assert all(key.startswith('pos_block.') for key in report.added), report
    found = backbone.state_dict()
    for key, value in source.state_dict().items():
        is_table = key.startswith('pos_embed') and kind == 'distilled'
        if not re.match(r'norm\.|dist_token|pyramid\.', key) and not is_table:
            assert torch.equal(found[key], value), key
    encodings = [type(one).__name__ for one in backbone.position_encodings]
    theirs = [type(one).__name__ for one in source.position_encodings]
    assert encodings == theirs + ['PEGPosition'] * ('PEGPosition' not in theirs)


@pytest.mark.parametrize(
    ('kind', 'task'),
    only(
        ('deit', 'segmentor'),
        ('twins', 'detector'),
        of=itertools.product(['deit', 'twins'], TASKS),
    ),
)
def test_neck_and_head_take_the_maps(call, data, tmp_path, kind, task):
    pytest.importorskip(TASKS[task])
    make, save = WEIGHTS[kind]
    save(make(), tmp_path / 'mine.pth')
    call('make_config', *data(task), '--weights', 'mine.pth', '--out', 'config.py')
    cfg = read_config(tmp_path / 'config.py')
    model = build_model(cfg)
    images = torch.rand(1, 3, 70, 90)
    with torch.no_grad():
        if task == 'classifier':
            assert model(images, mode='tensor').shape == (1, 2)
        else:
            sizes = [tuple(one.shape[2:]) for one in model.extract_feat(images)]
            assert (9, 12) in sizes and (5, 6) in sizes  # strides 8 and 16
    groups = build_optim_wrapper(model, cfg.optim_wrapper).optimizer.param_groups
    rates = {group['param_name']: group['lr'] for group in groups if 'param_name' in group}
    if kind == 'deit':  # the rate of the recipe, for its width
        names = [f'backbone.blocks.{i}.attn.qkv.weight' for i in (0, 1)]
        assert [rates[name] for name in names] == pytest.approx([0.75**2 * 1e-3, 0.75e-3])
        assert max(rates.values()) == pytest.approx(1e-3)
    else:
        assert max(group['lr'] for group in groups) == pytest.approx(1e-3 * 192 / 512, rel=0.02)


HEADS = dict(NARROW, num_heads=6)
SOURCE = f"""_base_ = 'other.py'
model = dict(
    type='RetinaNet',
    backbone=dict(
        type='mmdet.MultiScaleCPVT',
        arch={HEADS},
        position=[dict(type='RoPE', temperature=50.0), {PEG}],
        norm_eps=1e-5,
        out_indices=(1, 2),
        init_cfg=dict(type='Pretrained', checkpoint='none.pth'),
    ),
)
"""


@pytest.mark.parametrize(
    ('source', 'is_read'),
    [
        (SOURCE, True),
        (SOURCE + "open('written', 'w')\n", True),  # is not run
        (SOURCE.replace('1e-5', "eval('1e-5')"), False),
        (SOURCE.replace('RetinaNet', "' + open('written', 'w').name + '"), False),
        ('model = dict(backbone=' + 'dict(a=' * 5000, False),
        (SOURCE.replace("mmdet.MultiScaleCPVT'", "VisionTransformer'"), False),
        (None, False),
    ],
)
def test_a_training_of_ones_own_goes_on_with_its_architecture(
    source, is_read, call, refused, data, tmp_path
):
    """No weight shows heads, epsilon and encodings; the config in the checkpoint does."""
    pytest.importorskip('mmdet')
    rope = dict(type='RoPE', temperature=50.0)
    model = MultiScaleCPVT(arch=HEADS, position=[rope, PEG], norm_eps=1e-5)
    weights = {f'backbone.{key}': value for key, value in randomise(model).state_dict().items()}
    meta = {} if source is None else dict(cfg=source)
    torch.save(dict(state_dict=weights, meta=meta), tmp_path / 'own.pth')
    command = ['make_config', *data('detector'), '--weights', 'own.pth', '--out', 'config.py']
    if is_read:
        call(*command)
        backbone = read_config(tmp_path / 'config.py').model.backbone
        assert backbone.type == 'MultiScaleCPVT'
        assert (backbone.arch, backbone.norm_eps) == (HEADS, 1e-5)
        assert backbone.position == [rope, PEG]
        assert backbone.out_indices == [1, 2, 3]
    else:
        assert 'its weights do not show position' in refused(*command)
    assert not (tmp_path / 'written').exists()


@pytest.mark.parametrize(
    ('task', 'neck'),
    only(
        ('detector', 'same'), ('segmentor', 'other'), of=itertools.product(TASKS, ['same', 'other'])
    ),
)
def test_a_training_goes_on_with_its_whole_model(task, neck, call, data, tmp_path, capsys):
    """The anchors stay, whatever the new data suggest: the layers have learned them."""
    pytest.importorskip(TASKS[task])
    if neck == 'other' and task == 'classifier':
        pytest.skip('a classifier has none')
    labels = data(task)
    call('make_config', *labels, '--weights', 'none', '--out', 'first.py')
    first = read_config(tmp_path / 'first.py')
    weights = build_model(first).state_dict()
    if neck == 'other':
        first.model.neck.out_channels = 32
    anchors = {}
    if task == 'detector':
        anchors = dict(octave_base_scale=1.5, ratios=[0.25, 3.0])
        first.model.bbox_head.anchor_generator.update(anchors)
    elif task == 'instance segmentor':
        anchors = dict(scales=[3.5])
        first.model.rpn_head.anchor_generator.update(anchors)
    torch.save(dict(state_dict=weights, meta=dict(cfg=first.pretty_text)), tmp_path / 'own.pth')
    capsys.readouterr()
    options = ['--weights', 'own.pth', '--side', '700', '--out', 'second.py']
    call('make_config', *labels, *options)
    second = read_config(tmp_path / 'second.py')
    goes_on = 'classes of the same name keep what they learned' in capsys.readouterr().out
    assert goes_on == (neck == 'same')
    assert second.load_from == (str(tmp_path / 'own.pth') if goes_on else None)
    if anchors:
        head = second.model.bbox_head if task == 'detector' else second.model.rpn_head
        kept = {key: head.anchor_generator[key] for key in anchors}
        assert (kept == anchors) == goes_on
    shapes = {key: value.shape for key, value in build_model(second).state_dict().items()}
    if goes_on:
        assert shapes == {key: value.shape for key, value in weights.items()}


@pytest.mark.parametrize('name', ['none', 'retinanet_pvt_tiny-coco'])
@pytest.mark.full
def test_a_model_that_a_training_would_refuse_is_not_gone_on_with(
    name, call, data, tmp_path, capsys
):
    """The stored config is that of the whole model, but the weights lack a layer of the neck."""
    pytest.importorskip('mmdet')
    labels = data('detector')
    call('make_config', *labels, '--weights', name, '--out', 'first.py')
    first = read_config(tmp_path / 'first.py')
    weights = build_model(first).state_dict()
    lost = [key for key in weights if key.startswith('neck.fpn_convs.0.')]
    for key in lost:
        del weights[key]
    content = dict(state_dict=weights, meta=dict(cfg=first.pretty_text))
    torch.save(content, tmp_path / 'own.pth')
    capsys.readouterr()
    call('make_config', *labels, '--weights', 'own.pth', '--out', 'second.py')
    printed = capsys.readouterr().out
    assert 'goes on' not in printed and 'not loaded from the weights: bbox_head, neck (' in printed
    if name == 'none':
        assert f'it lacks {len(lost)} of ' in printed and lost[0] in printed
    second = read_config(tmp_path / 'second.py')
    assert second.load_from is None
    assert second.model.backbone.init_cfg == str(tmp_path / 'own.pth')


@pytest.mark.full
def test_averaged_weights_alone_and_a_detector_of_a_toolbox(call, data, tmp_path, capsys):
    """The first are taken; of the second the backbone, and one line says so."""
    pytest.importorskip('mmdet')
    labels = data('detector')
    model = PyramidCPVT(arch=STAGES, position=TABLE)
    torch.save(dict(state_dict_ema=model.state_dict()), 'averaged.pth')
    call('make_config', *labels, '--weights', 'averaged.pth', '--out', 'first.py')
    assert 'not taken' not in capsys.readouterr().out
    loaded = PyramidCPVT.from_pretrained('averaged.pth')
    assert torch.equal(loaded.patch_embeds[0].proj.weight, model.patch_embeds[0].proj.weight)
    whole = {f'backbone.{key}': value for key, value in model.state_dict().items()}
    whole |= {'neck.a.weight': torch.ones(1), 'bbox_head.b.weight': torch.ones(1)}
    torch.save(dict(state_dict=whole), 'renamed.pth')
    call('make_config', *labels, '--weights', 'renamed.pth', '--out', 'second.py')
    line = 'not loaded from the weights: bbox_head, neck (the config has another model)\n'
    assert line in capsys.readouterr().out


@pytest.mark.parametrize(
    ('task', 'name', 'neck'),
    only(
        ('detector', 'retinanet_pvt_tiny-coco', 'same'),
        ('segmentor', 'semantic_fpn_twins_pcpvt_small-ade20k', 'other'),
        of=[
            ('detector', 'retinanet_pvt_tiny-coco', 'same'),
            ('instance segmentor', 'eomt_small-coco_panoptic', 'same'),
            ('segmentor', 'semantic_fpn_twins_pcpvt_small-ade20k', 'same'),
            ('segmentor', 'semantic_fpn_twins_pcpvt_small-ade20k', 'other'),
            ('classifier', 'deit_tiny-imagenet', 'same'),
            ('classifier', 'deit_tiny-imagenet', 'other'),
        ],
    ),
)
def test_a_training_from_a_published_model_goes_on(task, name, neck, call, data, tmp_path, capsys):
    """Its checkpoint brings the whole model to the next data, if the model is still that one."""
    pytest.importorskip(TASKS[task])
    labels = data(task)
    call('make_config', *labels, '--weights', name, '--out', 'first.py')
    first = read_config(tmp_path / 'first.py')
    weights = build_model(first).state_dict()
    anchors = dict(octave_base_scale=1.5, ratios=[0.25, 3.0, 1.0])
    if task == 'detector':
        first.model.bbox_head.anchor_generator.update(anchors)
    if neck == 'other' and task == 'classifier':
        first.model.backbone.norm_eps = 1e-5
    elif neck == 'other':
        first.model.neck.out_channels = 32
    checkpoint = tmp_path / 'own.pth'
    torch.save(dict(state_dict=weights, meta=dict(cfg=first.pretty_text)), checkpoint)
    capsys.readouterr()
    call('make_config', *labels, '--weights', 'own.pth', '--out', 'second.py')
    second = read_config(tmp_path / 'second.py')
    goes_on = 'classes of the same name keep what they learned' in capsys.readouterr().out
    assert goes_on == (neck == 'same')
    assert second.load_from == (str(checkpoint) if goes_on else None)
    if task == 'detector':
        head = second.model.bbox_head
        assert {key: head.anchor_generator[key] for key in anchors} == anchors
    if goes_on:
        assert second.published_model == name
        shapes = {key: value.shape for key, value in build_model(second).state_dict().items()}
        assert shapes == {key: value.shape for key, value in weights.items()}


def test_a_config_from_eomt(call, data, tmp_path, capsys):
    """Queries, mask head and trunk go on, without masked attention; so do rows of known classes."""
    pytest.importorskip('mmseg')
    call('make_config', *data('segmentor'), '--weights', 'eomt_large-ade20k', '--out', 'first.py')
    cfg = read_config(tmp_path / 'first.py')
    head, classes = cfg.model.decode_head, cfg.val_dataloader.dataset.metainfo.classes
    assert (cfg.model.type, head.type) == ('EoMTSegmentor', 'EoMTSegHead')
    assert head.num_classes == len(classes) and head.ignore_index == 255
    assert cfg.load_from == cfg.published_model == 'eomt_large-ade20k'
    assert not any('MaskAnnealing' in hook['type'] for hook in cfg.get('custom_hooks', ()))
    printed = capsys.readouterr().out
    start = '\nstarts from the whole model eomt_large-ade20k; classes of the same name keep'
    assert start in printed
    licences = 'is mit; that of the weights from which it was trained is apache-2.0\n'
    assert f'\nnote: the licence of eomt_large-ade20k {licences}' in printed


@pytest.fixture
def backbone_of(monkeypatch):
    """Function that reads the backbone of a name, which must not open a connection."""
    from cpvt_backbones.own_data.decide.weights import read_backbone

    def connect(*_):
        raise AssertionError('a connection is opened')

    monkeypatch.setattr(socket.socket, 'connect', connect)
    return read_backbone


NAMES = [
    'timm://deit_tiny_patch16_224.fb_in1k',
    'timm://deit_small_patch16_224.fb_in1k',
    'timm://vit_small_patch16_dinov3.lvd1689m',
    'timm://vit_small_patch14_dinov2.lvd142m',
    'timm://vit_base_patch32_clip_quickgelu_224.openai',
    'timm://twins_pcpvt_small.in1k',
    'https://github.com/whai362/PVT/releases/download/v2/pvt_tiny.pth',
    'timm://samvit_base_patch16.sa1b',
    'timm://vit_so400m_patch14_siglip_gap_224.pali_mix',
    'timm://vit_pe_core_tiny_patch16_384.fb',
    'timm://vit_large_patch14_clip_336.openai',
    'timm://eva02_tiny_patch14_336.mim_in22k_ft_in1k',
    'timm://vit_small_patch16_rope_mixed_ape_224.naver_in1k',
    'mmpretrain://deit-small-distilled_3rdparty_in1k',
]


@pytest.mark.parametrize(
    ('name', 'task'),
    only(
        *itertools.product(NAMES, ['detector']),
        of=itertools.product(NAMES, TASKS),
    ),
)
def test_a_backbone_of_each_public_name(backbone_of, name, task):
    """It has the arguments of the name; of those that are the default, the config has none."""
    found = backbone_of(task, name)
    options = dict(found.arguments)
    assert options.pop('init_cfg') == name
    with torch.device('meta'):
        model = getattr(cpvt_backbones, options.pop('type'))(**options)
    public = public_backbone(name)
    assert model.out_strides in ((8, 16, 32), (4, 8, 16, 32)) or task == 'classifier'
    assert model.out_channels == found.out_channels
    for key, value in public.items():
        fitted = key in ('patch_size', 'img_size') and public.get('patch_size') == 14
        if key not in ('type', 'position', 'with_dist_token') and not fitted:
            assert getattr(model, key) == value, key
    theirs = public.get('position', [])
    for one in theirs if isinstance(theirs, list) else [theirs]:
        assert one in model.position
    assert type(model.position_encodings[-1]).__name__ == 'PEGPosition'


@pytest.mark.parametrize(
    ('name', 'expected'),
    {
        'retinanet_pvt_small-coco': dict(type='PyramidCPVT', arch='small'),
        'semantic_fpn_twins_svt_base-ade20k': dict(type='PyramidCPVT', arch='svt_base'),
        'deit_small_384-imagenet': None,
        'deit_base_384-imagenet': dict(type='CPVT', arch='base', img_size=384),
    }.items(),
)
def test_the_backbone_of_a_published_model(backbone_of, name, expected):
    """Of the name only the config is read; the weights are loaded when the training starts."""
    task = 'classifier' if 'imagenet' in name else 'segmentor'
    if expected is None:
        with pytest.raises(FileNotFoundError, match="did you mean 'deit_"):
            backbone_of(task, name)
        return
    found = backbone_of(task, name)
    assert {key: found.arguments.get(key) for key in expected} == expected
    assert found.arguments['init_cfg'] == name


def test_bands_and_weights(backbone_of, tmp_path):
    weights = tmp_path / 'mine.pth'
    torch.save(deit().state_dict(), weights)
    assert backbone_of('detector', str(weights), in_channels=5).arguments['in_channels'] == 5
    torch.save(deit(in_channels=4).state_dict(), weights)
    assert backbone_of('detector', str(weights), in_channels=4).arguments['in_channels'] == 4
    with pytest.raises(ValueError, match=r'patch_embed.proj.weight is \(192, 4, 16, 16\)'):
        backbone_of('detector', str(weights))


def test_patches_of_a_file_fit_the_strides(backbone_of, tmp_path):
    torch.save(deit(patch_size=14, img_size=(56, 84)).state_dict(), tmp_path / 'mine.pth')
    found = backbone_of('segmentor', str(tmp_path / 'mine.pth'))
    assert found.arguments['img_size'] == (64, 96) and found.out_channels == (48, 96, 192, 192)
    assert 'its patches of 14 px are fitted to 16 px' in found.remark
    found = backbone_of('classifier', str(tmp_path / 'mine.pth'))
    assert (found.arguments['patch_size'], found.arguments['img_size']) == (14, (56, 84))


REFUSED = {
    'timm://resnet50.a1_in1k': 'no public weights of this name are known',
    'timm://deit_tiny_patch16_224.fb_in1K': 'no public weights of this name are known',
    'timm://twins_pcpvt_smal.in1k': "did you mean 'timm://twins_pcpvt_small'",
    'retinanet_pvt_smal-coco': "did you mean 'retinanet_pvt_small-coco'",
    'https://example.com/best.pth': 'nothing is downloaded here',
    'user/repository': "there is no file or folder 'user/repository'",
    'resnet.pth': 'the checkpoint is none of those recognised',
    'narrow.pth': 'do not show arch',
    'damaged.pth': 'damaged.pth',
    'nan.pth': 'NaN or infinite',
}


@pytest.mark.parametrize('name', REFUSED)
def test_other_weights_are_refused_before_the_data_are_read(refused, data, tmp_path, name):
    if name.startswith('timm'):
        pytest.importorskip('timm')
    arguments = data('detector')
    (tmp_path / 'all.json').write_text('{}')  # refused, too, but later
    torch.save({'layer1.0.conv1.weight': torch.ones(2, 2, 1, 1)}, 'resnet.pth')
    arch = dict(embed_dims=48, depth=1, num_heads=4, mlp_ratio=1.0)
    torch.save(deit(arch=arch).state_dict(), 'narrow.pth')
    (tmp_path / 'damaged.pth').write_bytes(b'PK\x03\x04 no archive')
    bad = deit()
    torch.nn.init.constant_(bad.norm.weight, torch.nan)
    torch.save(bad.state_dict(), 'nan.pth')
    line = refused('make_config', *arguments, '--weights', name, '--out', 'config.py')
    assert line.startswith('error: --weights: ') and name in line and REFUSED[name] in line
    assert (
        name in ('user/repository', 'retinanet_pvt_smal-coco')
        or 'accepted are names of docs/weights.md' in line
    )
    assert not (tmp_path / 'config.py').exists()


@pytest.mark.parametrize('weights', ['cpvt_tiny_gap-imagenette', 'none'])
@pytest.mark.parametrize('task', TASKS)
def test_shipped_weights_keep_the_recipe(call, data, tmp_path, task, weights):
    pytest.importorskip(TASKS[task])
    call('make_config', *data(task), '--weights', weights, '--out', 'config.py')
    cfg = read_config(tmp_path / 'config.py')
    backbone = cfg.model.backbone
    assert backbone.arch == 'tiny' and backbone.position.type == 'PEG'
    whole = task == 'classifier' and weights != 'none'
    assert cfg.load_from == (weights if whole else None)
    if weights == 'none':
        assert backbone.init_cfg is None
    elif not whole:
        assert backbone.init_cfg == weights
    assert cfg.optim_wrapper.optimizer.lr == 1e-3
    text = (tmp_path / 'config.py').read_text()
    assert '_delete_' not in text and 'optim_wrapper' not in text


@pytest.mark.parametrize('task', TASKS)
def test_the_backbone_is_loaded_once(call, data, task):
    """Weights that those of the whole model replace would be reported as loaded."""
    pytest.importorskip(TASKS[task])
    call('make_config', *data(task), '--out', 'config.py')
    cfg = read_config('config.py')
    assert (cfg.load_from is None) != (cfg.model.backbone.init_cfg is None)


@pytest.mark.parametrize(
    ('task', 'name'),
    [('classifier', 'cpvt_tiny_gap-imagenette'), ('detector', 'retinanet_cpvt_tiny_gap-bccd')],
)
def test_the_shipped_default_is_named_with_its_terms(task, name, data, table):
    pytest.importorskip(TASKS[task])
    labels = data(task)
    printed = table(*labels)
    assert f'\nstarts from {name}; others: --weights' in printed
    assert '\nnote: these weights, and models trained from them, are for non-commercial' in printed
    assert 'starts from' not in table(*labels, '--weights', 'none')

"""Every config: its numbers fit together, it trains a step, it predicts, and its learning rates are
as documented.
"""

import json
from functools import cache

import numpy as np
import pytest
import torch
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, TRANSFORMS, init_default_scope
from shrink import CONFIGS, ROOT, Scene, batch, build, name, read, read_small
from tiny import assert_no_neighbour_matters, only

from cpvt_backbones.checkpoints import public_backbone
from cpvt_backbones.engine import launch
from cpvt_backbones.toolboxes import dicts_of

OURS = ('CPVT', 'MultiScaleCPVT', 'PyramidCPVT')

# A config of each kind of model: these train a step in `make test`, the others in `make test-all`.
ONE_OF_A_KIND = """
bccd/retinanet_cpvt-tiny-gap_bccd.py
bccd/retinanet_pvt-t_bccd.py
bccd/retinanet_pyramid-cpvt-t_bccd.py
camvid/semantic-fpn_cpvt-tiny-gap-p8_camvid-trainval.py
camvid/semantic-fpn_mmseg-pcpvt-t_camvid.py
camvid/semantic-fpn_pyramid-cpvt-t_camvid.py
detr/detr_r50_8xb2-50e_coco.py
detr/detr_r50_peg_8xb2-50e_coco.py
dino/dino-4scale_multiscale-cpvt-s-dinov3_8xb2-12e_coco.py
dino/dino-4scale_pyramid-cpvt-s_8xb2-12e_coco.py
eomt/eomt_cpvt-l-dinov2_8xb2-12e_coco-instance-640x640.py
eomt/eomt_cpvt-s-peg_8xb2-31e_ade20k-512x512.py
imagenet/cpvt-t_8xb256_in1k.py
imagenet/cpvt-t-gap_peg0-5_distilled_8xb256_in1k.py
imagenet/pyramid-cpvt-t_8xb128_in1k.py
imagenet/swin-t-peg_8xb128_in1k.py
imagenet/swin-t_8xb128_in1k.py
mask2former/mask2former_pyramid-cpvt-s_8xb2-160k_ade20k-512x512.py
mask2former/mask2former_pyramid-cpvt-s_8xb2-lsj-50e_coco.py
mask_rcnn/mask-rcnn_multiscale-cpvt-s-windowed_fpn_1x_coco.py
mask_rcnn/mask-rcnn_pyramid-cpvt-t_fpn_1x_coco.py
retinanet/retinanet_swin-t-peg_fpn_1x_coco.py
retinanet/retinanet_swin-t_fpn_1x_coco.py
semantic_fpn/semantic-fpn_swin-t-peg_8xb4-40k_ade20k-512x512.py
semantic_fpn/semantic-fpn_swin-t_8xb4-40k_ade20k-512x512.py
upernet/upernet_multiscale-cpvt-b_8xb2-160k_ade20k-512x512.py
upernet/upernet_pyramid-cpvt-t_8xb2-160k_ade20k-512x512.py
vitdet/cascade-mask-rcnn_multiscale-cpvt-b_8xb8-lsj-100e_coco.py
vitdet/mask-rcnn_multiscale-cpvt-b_8xb8-lsj-100e_coco.py
""".split()
STEPS = [
    pytest.param(path, marks=[] if name(path) in ONE_OF_A_KIND else pytest.mark.full)
    for path in CONFIGS
]


def kind(path):
    """Toolbox, and types of model, backbone, neck and heads."""
    cfg = read(path)
    backbone = cfg.model.backbone
    parts = [backbone, backbone.get('backbone', {}), cfg.model.get('neck') or {}]
    heads = ('head', 'bbox_head', 'decode_head', 'roi_head')
    parts += [cfg.model.get(head, {}) for head in heads]
    return (cfg.default_scope, cfg.model.type, *(str(part.get('type')) for part in parts))


def test_every_kind_of_model_trains_a_step_in_make_test():
    chosen = {kind(ROOT / 'configs' / path) for path in ONE_OF_A_KIND}
    missing = {kind(path): name(path) for path in CONFIGS if kind(path) not in chosen}
    assert not missing, f'add to ONE_OF_A_KIND one config of each kind: {missing}'
    assert len(chosen) == len(ONE_OF_A_KIND)


@pytest.fixture(scope='module')
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp('pictures')
    return [Scene(folder, 120, 160), Scene(folder, 97, 131)]


@pytest.fixture(scope='module')
def teacher(tmp_path_factory):
    """A small timm model with weights on disk, in place of the one that would be downloaded."""
    timm = pytest.importorskip('timm')
    path = tmp_path_factory.mktemp('teacher') / 'resnet10t.pth'
    torch.save(timm.create_model('resnet10t').state_dict(), path)
    return dict(type='TimmClassifier', model_name='resnet10t', checkpoint_path=str(path))


def model_of(cfg, teacher):
    if 'teacher' in cfg.model:
        cfg.model.teacher = teacher
    torch.manual_seed(0)
    model = build(cfg)
    model.init_weights()
    return model


def without_decay(parameter_name, module):
    """True for parameters that are exempt from weight decay."""
    positions = 'pos_block pos_embed rel_pos rope cls_token dist_token reg_token'.split()
    norms = (torch.nn.LayerNorm, torch.nn.GroupNorm, torch.nn.modules.batchnorm._BatchNorm)
    if isinstance(module, norms) or parameter_name.endswith('.bias'):
        return True
    return any(part in parameter_name for part in (*positions, 'position_encodings'))


@pytest.mark.parametrize('path', STEPS, ids=name)
def test_trains_a_step_and_predicts_at_two_sizes(path, scenes, teacher):
    cfg = read_small(path)
    model = model_of(cfg, teacher)
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    check_rates(cfg, model, wrapper)
    check_step(model, batch(cfg, 'train', scenes), wrapper)
    model.eval()
    for scene in scenes:
        check_prediction(cfg, model, scene)


# Each base and each leaf that names the hooks of a test; `make test-all` takes all.
WITH_HOOK = """
bccd/retinanet_cpvt-tiny-gap_bccd.py
camvid/semantic-fpn_cpvt-tiny-gap_camvid.py
detr/detr_r50_peg_8xb2-50e_coco.py
dino/dino-4scale_pyramid-cpvt-s_8xb2-12e_coco.py
mask2former/mask2former_pyramid-cpvt-s_8xb2-lsj-50e_coco.py
vitdet/mask-rcnn_multiscale-cpvt-b_8xb8-lsj-100e_coco.py
""".split()
OF_CLASSIFIERS = ('ablations', 'classify', 'imagenet', 'imagenette', 'transfer')
DENSE = [path for path in CONFIGS if path.parent.name not in OF_CLASSIFIERS]


@pytest.mark.parametrize(
    'path', only(*(ROOT / 'configs' / path for path in WITH_HOOK), of=DENSE), ids=name
)
def test_the_batch_of_a_test_changes_no_prediction(path, teacher):
    cfg = read_small(path)
    for part in dicts_of(cfg.model.get('test_cfg')):
        if 'score_thr' in part:
            part['score_thr'] = 0.0  # a random model is not sure
    assert_no_neighbour_matters(cfg, model_of(cfg, teacher))


@pytest.mark.parametrize(
    'path', [path for path in CONFIGS if path.parent.name == 'vitdet'], ids=name
)
def test_trains_on_a_strip(path, teacher, tmp_path):
    """Large-scale jitter shrinks an image to a tenth: fewer rows than the smallest anchor has."""
    cfg = read_small(path)
    model = model_of(cfg, teacher)
    strips = [Scene(tmp_path, 20, 160), Scene(tmp_path, 160, 20)]
    check_step(model, batch(cfg, 'train', strips), build_optim_wrapper(model, cfg.optim_wrapper))


def check_rates(cfg, model, wrapper):
    """Decay and rate of each parameter are the recipe's."""
    owners = {id(p): module for module in model.modules() for p in module.parameters(recurse=False)}
    names = {id(p): n for n, p in model.named_parameters()}
    base = cfg.optim_wrapper.optimizer
    paramwise = cfg.optim_wrapper.get('paramwise_cfg', {})
    rate = paramwise.get('layer_decay_rate', 1.0)
    foreign = type(model.backbone).__name__ not in OURS
    seen = set()
    for group in wrapper.optimizer.param_groups:
        for parameter in group['params']:
            seen.add(id(parameter))
            name = names[id(parameter)]
            in_backbone = name.startswith('backbone.')
            if foreign and in_backbone and 'pos_block' not in name:
                continue  # a backbone of a toolbox has its own rules
            if 'bias_decay_mult' not in paramwise:  # the rules of a toolbox's recipe
                assert 'pos_block' not in name or group['weight_decay'] == 0.0
                continue
            exempt = without_decay(name, owners[id(parameter)])
            assert group['weight_decay'] == pytest.approx(0.0 if exempt else base.weight_decay), (
                name
            )
            scale = 1.0
            if rate != 1.0 and in_backbone:
                depth, layers = model.backbone.get_layer_depth(name, 'backbone.')
                scale = rate ** (layers - 1 - depth)
            assert group['lr'] == pytest.approx(base.lr * scale), name
    assert seen == {id(p) for p in model.parameters() if p.requires_grad}


def check_step(model, images, wrapper):
    """A step has finite losses, reaches every parameter of our backbones, and changes weights."""
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    reached = set()
    for n, p in model.named_parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(lambda _, n=n: reached.add(n))
    model.train()
    losses = model.train_step(images, wrapper)
    assert losses and all(torch.isfinite(value).all() for value in losses.values())
    if type(model.backbone).__name__ in OURS:
        assert {n for n, p in model.named_parameters() if p.requires_grad} == reached
    assert any(not torch.equal(before[n], p) for n, p in model.named_parameters())


def check_prediction(cfg, model, scene):
    with torch.no_grad():
        (result,) = model.test_step(batch(cfg, 'test', [scene]))
    if cfg.default_scope == 'mmseg':
        assert result.pred_sem_seg.data.shape[1:] == (scene.height, scene.width)
    elif 'pred_panoptic_seg' in result:
        assert result.pred_panoptic_seg.sem_seg.shape[1:] == (scene.height, scene.width)
    elif cfg.default_scope == 'mmdet':
        assert torch.isfinite(result.pred_instances.bboxes).all()
    else:
        assert result.pred_score.shape == (cfg.data_preprocessor.num_classes,)
        assert result.pred_score.sum() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize('path', CONFIGS, ids=name)
def test_numbers_fit_together(path):
    cfg = read(path)
    init_default_scope(cfg.default_scope)
    if cfg.model.backbone.type in OURS:
        check_widths(cfg.model)
    check_crop(cfg)
    check_schedule(cfg, constant='ft-384' in path.stem)  # DeiT fine-tunes at a constant rate
    if path.parent.name not in ('demo', 'bccd', 'camvid', 'imagenette', 'classify', 'transfer'):
        check_batch_size(cfg, path.name)


def check_widths(model):
    """The neck or head takes the channels that the backbone of full size gives."""
    arguments = {k: v for k, v in model.backbone.items() if k not in ('init_cfg', 'drop_path_rate')}
    parts = ('neck', 'decode_head', 'panoptic_head', 'head')
    head = next(model[part] for part in parts if model.get(part))
    taken = head.get('in_channels', head.get('embed_dims'))  # the latter of EoMT
    taken = [taken] if isinstance(taken, int) else taken
    assert out_channels(json.dumps(arguments)) == list(taken)


@cache
def out_channels(backbone):
    """Channels of the maps of a backbone of full size, from its arguments as JSON."""
    with torch.device('meta'):
        return list(MODELS.build(json.loads(backbone)).out_channels)


def check_crop(cfg):
    """Training crops have the images' orientation: all data here is wider than high.

    Mmdet's RandomCrop takes (width, height), mmseg's (height, width).
    """
    dataset = cfg.train_dataloader.dataset
    dataset = dataset.get('datasets', [dataset.get('dataset', dataset)])[0]
    for step in dataset.pipeline:
        if step['type'] == 'RandomCrop' and step.get('crop_type', 'absolute') == 'absolute':
            image = np.zeros((1500, 2000, 3), np.uint8)
            labels = dict(gt_seg_map=image[..., 0], seg_fields=['gt_seg_map'])
            cropped = TRANSFORMS.build(step)(dict(img=image, img_shape=image.shape[:2], **labels))
            height, width = cropped['img'].shape[:2]
            assert {height, width} == set(step.crop_size) and width >= height


def check_schedule(cfg, constant):
    """The learning rate warms up, and decays until the end of the training."""
    by_epoch = 'max_epochs' in cfg.train_cfg
    length = cfg.train_cfg.max_epochs if by_epoch else cfg.train_cfg.max_iters
    schedulers = cfg.param_scheduler
    *warm_ups, decay = schedulers if isinstance(schedulers, list) else [schedulers]
    begin, end = decay.get('begin', 0), decay.get('end', length)
    assert end == length and decay.by_epoch == by_epoch
    for warm_up in warm_ups:
        assert warm_up.type == 'LinearLR' and warm_up.get('begin', 0) == 0
        assert warm_up.end == begin or decay.type == 'MultiStepLR'
    if constant:
        assert (decay.type, decay.factor) == ('ConstantLR', 1.0)
    elif decay.type == 'MultiStepLR':
        assert decay.gamma == 0.1
        assert all(length / 2 < milestone < length for milestone in decay.milestones)
    elif decay.type != 'HeadFirstPolyLR':  # which warms up itself, and ends at 0
        assert decay.type in ('CosineAnnealingLR', 'PolyLR')
        assert decay.get('T_max', end - begin) == end - begin
        assert decay.eta_min <= max(cfg.optim_wrapper.optimizer.lr / 40, 1e-6)


def check_batch_size(cfg, filename):
    """`base_batch_size`, used by `auto_scale_lr`, is that of 8 GPUs."""
    assert cfg.auto_scale_lr.base_batch_size == 8 * cfg.train_dataloader.batch_size
    assert not cfg.auto_scale_lr.get('enable', False)
    if '8xb' in filename:
        assert f'8xb{cfg.train_dataloader.batch_size}' in filename


def test_every_config_is_in_its_folders_readme():
    for path in CONFIGS:
        readmes = [folder / 'README.md' for folder in path.parents]
        nearest = next(file for file in readmes if file.exists())
        assert path.name in nearest.read_text(), name(path)


@pytest.mark.parametrize(
    'path', [path for path in CONFIGS if path.parent.name == 'mask_rcnn'], ids=name
)
def test_mask_rcnn_refuses_test_time_augmentation(path):
    """mmdet's DetTTAModel asserts that there are no masks, after the first image."""
    # Refused before the checkpoint is opened.
    with pytest.raises(ValueError, match='tta: the config has no tta_model'):
        launch.test(read(path), checkpoint=path, tta=True)


FOLDERS = ('retinanet', 'mask_rcnn', 'semantic_fpn', 'upernet', 'dino', 'mask2former', 'vitdet')
PRETRAINED = [path for path in CONFIGS if path.parent.name in FOLDERS and 'swin' not in path.name]


@pytest.mark.parametrize('path', PRETRAINED, ids=name)
def test_coco_and_ade20k_start_from_pretrained_weights_of_their_size(path):
    """And keep the position encodings of the weights."""
    backbone = read(path).model.backbone
    public = public_backbone(backbone.init_cfg.checkpoint)
    assert backbone.init_cfg.type == 'Pretrained' and public['arch'] == backbone.arch
    assert public['type'] == ('CPVT' if backbone.type == 'MultiScaleCPVT' else backbone.type)
    kept = encodings_of(backbone)
    assert all(one in kept for one in encodings_of(public))


def encodings_of(backbone):
    """Types and settings of the encodings; a backbone without ``position`` has PEG alone."""
    position = backbone.get('position', dict(type='PEG'))
    found = [dict(one) for one in (position if isinstance(position, list) else [position])]
    return [one for one in found if one['type'] != 'PEG']

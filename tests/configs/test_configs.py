"""Every config: its numbers fit together, it trains a step, it predicts, and its learning rates are
as documented.
"""

import json
import math
from functools import cache

import numpy as np
import pytest
import torch
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, PARAM_SCHEDULERS, TRANSFORMS, init_default_scope
from shrink import CONFIGS, Scene, batch, build, name, read, read_small

from cpvt_backbones.checkpoints import public_backbone
from cpvt_backbones.engine import launch

OURS = ('CPVT', 'MultiScaleCPVT', 'PyramidCPVT')


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


@pytest.mark.parametrize('path', CONFIGS, ids=name)
def test_trains_a_step_and_predicts_at_two_sizes(path, scenes, teacher):
    cfg = read_small(path)
    model = model_of(cfg, teacher)
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    check_rates(cfg, model, wrapper)
    check_step(model, batch(cfg, 'train', scenes), wrapper)
    model.eval()
    for scene in scenes:
        check_prediction(cfg, model, scene)


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
    elif cfg.default_scope == 'mmdet':
        assert torch.isfinite(result.pred_instances.bboxes).all()
    else:
        assert result.pred_score.shape == (cfg.data_preprocessor.num_classes,)
        assert result.pred_score.sum() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize('path', CONFIGS, ids=name)
def test_full_size_model_fits_together(path):
    cfg = read(path)
    init_default_scope(cfg.default_scope)
    with torch.device('meta' if cfg.model.backbone.type in OURS else 'cpu'):
        backbone = MODELS.build({k: v for k, v in cfg.model.backbone.items() if k != 'init_cfg'})
    if cfg.model.backbone.type not in OURS:
        return
    taken = cfg.model.neck.in_channels if 'neck' in cfg.model else None
    for head in ('decode_head', 'panoptic_head', 'head'):
        if taken is None and head in cfg.model:
            taken = cfg.model[head].in_channels
    taken = [taken] if isinstance(taken, int) else taken
    assert list(backbone.out_channels) == list(taken)


def test_training_crops_have_the_images_orientation():
    """All data here is wider than high.

    Mmdet's RandomCrop takes (width, height), mmseg's (height, width).
    """
    image = np.zeros((1500, 2000, 3), np.uint8)
    tested = 0
    for path in CONFIGS:
        cfg = read(path)
        dataset = cfg.train_dataloader.dataset
        dataset = dataset.get('datasets', [dataset.get('dataset', dataset)])[0]
        steps = [step for step in dataset.pipeline if step['type'] == 'RandomCrop']
        if not steps or steps[0].get('crop_type', 'absolute') != 'absolute':
            continue
        init_default_scope(cfg.default_scope)
        labels = dict(gt_seg_map=image[..., 0], seg_fields=['gt_seg_map'])
        results = dict(img=image, img_shape=image.shape[:2], **labels)
        height, width = TRANSFORMS.build(steps[0])(results)['img'].shape[:2]
        assert {height, width} == set(steps[0].crop_size) and width >= height, name(path)
        tested += 1
    assert tested >= 20


@cache
def learning_rates(schedule):
    """Learning rate of every step of a schedule (JSON); an epoch has thirty steps."""
    base, train_cfg, options = json.loads(schedule)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=base)
    by_epoch = 'max_epochs' in train_cfg
    schedulers = []
    for scheduler in options:
        cls, convert = (
            PARAM_SCHEDULERS.get(scheduler.pop('type')),
            scheduler.pop('convert_to_iter_based', False),
        )
        if not by_epoch or not scheduler.get('by_epoch', True):
            schedulers.append((cls(optimizer, **scheduler), 1))
        elif convert:
            schedulers.append(
                (cls.build_iter_from_epoch(optimizer=optimizer, **scheduler, epoch_length=30), 1)
            )
        else:
            schedulers.append((cls(optimizer, **scheduler), 30))
    rates = []
    for step in range(train_cfg['max_epochs'] * 30 if by_epoch else train_cfg['max_iters']):
        rates.append(optimizer.param_groups[0]['lr'])
        optimizer.step()
        for scheduler, every in schedulers:
            if (step + 1) % every == 0:
                scheduler.step()
    return rates


@pytest.mark.parametrize('path', CONFIGS, ids=name)
def test_learning_rate_decays(path):
    """The schedule is walked to its end: mmseg's for Semantic FPN ends at the rate where it
    starts.
    """
    cfg = read(path)
    base = cfg.optim_wrapper.optimizer.lr
    schedulers = (
        cfg.param_scheduler if isinstance(cfg.param_scheduler, list) else [cfg.param_scheduler]
    )
    if steps := [
        s for s in schedulers if s.type == 'MultiStepLR'
    ]:  # within the training, after any warm-up
        length = cfg.train_cfg.get('max_epochs') or cfg.train_cfg.max_iters
        assert steps[0].gamma == 0.1 and all(length / 2 < m < length for m in steps[0].milestones)
        return
    parts = 10 if cfg.train_cfg.get('max_iters', 0) >= 1000 else 1  # a tenth of many iterations
    schedule = [
        {
            k: v // parts if k in ('begin', 'end', 'T_max') else v
            for k, v in s.items()
            if k != '_scope_'
        }
        for s in schedulers
    ]
    train_cfg = {k: v // parts if k == 'max_iters' else v for k, v in cfg.train_cfg.items()}
    rates = learning_rates(json.dumps([base, train_cfg, schedule]))
    if 'ft-384' in path.stem:  # DeiT fine-tunes at a constant rate
        assert set(rates) == {base}
        return
    assert max(rates) == pytest.approx(base, rel=0.02)
    assert rates[-1] <= base / 40 or math.isclose(rates[-1], 1e-6, rel_tol=0.2), rates[-1]


@pytest.mark.parametrize('path', CONFIGS, ids=name)
def test_base_batch_size_is_the_one_in_the_name(path):
    """`auto_scale_lr` compares the batch in use with `base_batch_size`: 8 GPUs times the batch of
    the loader.
    """
    cfg = read(path)
    if path.parent.name in ('demo', 'bccd', 'camvid', 'imagenette', 'classify', 'transfer'):
        return
    assert cfg.auto_scale_lr.base_batch_size == 8 * cfg.train_dataloader.batch_size
    assert not cfg.auto_scale_lr.get('enable', False)
    if '8xb' in path.name:
        assert f'8xb{cfg.train_dataloader.batch_size}' in path.name


def test_every_config_is_in_its_folders_readme():
    for path in CONFIGS:
        readmes = [folder / 'README.md' for folder in path.parents]
        nearest = next(file for file in readmes if file.exists())
        assert path.name in nearest.read_text(), name(path)


def test_documented_configs_exist():
    names = {name(p) for p in CONFIGS}
    for size in 'tsb':
        bs = 128 if size == 'b' else 256
        for kind in ('', '_peg0-5', '-gap', '-gap_peg0-5'):
            assert f'imagenet/cpvt-{size}{kind}_8xb{bs}_in1k.py' in names
        for kind in ('learned', 'sincos', 'relative', 'none'):
            assert f'imagenet/deit-{size}_{kind}_8xb{bs}_in1k.py' in names
        for kind in ('', '-windowed'):
            assert f'retinanet/retinanet_multiscale-cpvt-{size}{kind}_fpn_1x_coco.py' in names
    for size in 'tsbl':
        assert f'imagenet/pyramid-cpvt-{size}_8xb128_in1k.py' in names
        for schedule in ('1x', 'ms-3x'):
            assert f'retinanet/retinanet_pyramid-cpvt-{size}_fpn_{schedule}_coco.py' in names


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
    backbone = read(path).model.backbone
    public = public_backbone(backbone.init_cfg.checkpoint)
    assert backbone.init_cfg.type == 'Pretrained' and public['arch'] == backbone.arch
    assert public['type'] == ('CPVT' if backbone.type == 'MultiScaleCPVT' else backbone.type)


@pytest.mark.parametrize('path', PRETRAINED, ids=name)
def test_recipes_keep_the_position_encodings_of_their_weights(path):
    backbone = read(path).model.backbone
    kept = encodings_of(backbone)
    assert all(one in kept for one in encodings_of(public_backbone(backbone.init_cfg.checkpoint)))


def encodings_of(backbone):
    """Types and settings of the encodings; a backbone without ``position`` has PEG alone."""
    position = backbone.get('position', dict(type='PEG'))
    found = [dict(one) for one in (position if isinstance(position, list) else [position])]
    return [one for one in found if one['type'] != 'PEG']

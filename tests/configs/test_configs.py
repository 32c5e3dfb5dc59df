"""Every config: its numbers fit together, it trains a step, it predicts, and its optimizer does what it says."""

import math

import numpy as np
import pytest
import torch
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, TRANSFORMS, init_default_scope
from shrink import CONFIGS, Scene, batch, build, name, read_small

from cpvt_backbones.engine import launch
from cpvt_backbones.engine.launch import read_config

OURS = ('CPVT', 'MultiScaleCPVT', 'PyramidCPVT')
DISTILLED = [p for p in CONFIGS if 'distilled' in p.name]


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


def spared(parameter_name, module):
    """Whether weight decay must leave a parameter alone."""
    positions = ('pos_block', 'pos_embed', 'rel_pos', 'cls_token', 'dist_token', 'position_encodings')
    norms = (torch.nn.LayerNorm, torch.nn.GroupNorm, torch.nn.modules.batchnorm._BatchNorm)
    return (
        any(part in parameter_name for part in positions)
        or isinstance(module, norms)
        or parameter_name.endswith('bias')
    )


@pytest.mark.parametrize('path', CONFIGS, ids=name)
def test_trains_a_step_and_predicts_at_two_sizes(path, scenes, teacher):
    cfg = read_small(path)
    model = model_of(cfg, teacher)
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)

    # -- one group a parameter, each with the decay and the rate that the recipe asks for
    owners = {id(p): module for module in model.modules() for p in module.parameters(recurse=False)}
    names = {id(p): n for n, p in model.named_parameters()}
    base = cfg.optim_wrapper.optimizer
    rate = cfg.optim_wrapper.get('paramwise_cfg', {}).get('layer_decay_rate', 1.0)
    seen = set()
    for group in wrapper.optimizer.param_groups:
        for parameter in group['params']:
            seen.add(id(parameter))
            if names[id(parameter)].startswith('backbone.') and type(model.backbone).__name__ not in OURS:
                continue  # a peer's own rules
            expected = 0.0 if spared(names[id(parameter)], owners[id(parameter)]) else base.weight_decay
            assert group['weight_decay'] == pytest.approx(expected), names[id(parameter)]
            scale = 1.0
            if rate != 1.0 and names[id(parameter)].startswith('backbone.'):
                depth, layers = model.backbone.get_layer_depth(names[id(parameter)], 'backbone.')
                scale = rate ** (layers - 1 - depth)
            assert group['lr'] == pytest.approx(base.lr * scale), names[id(parameter)]
    assert seen == {id(p) for p in model.parameters() if p.requires_grad}

    # -- one step on two images
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    reached = set()
    for n, p in model.named_parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(lambda _, n=n: reached.add(n))
    model.train()
    losses = model.train_step(batch(cfg, 'train', scenes), wrapper)
    assert losses and all(torch.isfinite(value).all() for value in losses.values())
    if type(model.backbone).__name__ in OURS:
        assert {n for n, p in model.named_parameters() if p.requires_grad} == reached
    assert any(not torch.equal(before[n], p) for n, p in model.named_parameters())

    # -- and two sizes of images
    model.eval()
    for scene in scenes:
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
    cfg = read_config(path)
    init_default_scope(cfg.default_scope)
    with torch.device('meta' if cfg.model.backbone.type in OURS else 'cpu'):
        backbone = MODELS.build({k: v for k, v in cfg.model.backbone.items() if k != 'init_cfg'})
    if cfg.model.backbone.type not in OURS:
        return
    taken = cfg.model.neck.in_channels if 'neck' in cfg.model else None
    for head in ('decode_head', 'head'):
        if taken is None and head in cfg.model:
            taken = cfg.model[head].in_channels
    taken = [taken] if isinstance(taken, int) else taken
    assert list(backbone.out_channels) == list(taken)


SCHEDULED = [p for p in CONFIGS if p.parent.name != 'test_sizes']


def crop_of(path):
    """The training crop of a config, where it is of one size."""
    dataset = read_config(path).train_dataloader.dataset
    steps = [step for step in dataset.get('pipeline', ()) if step['type'] == 'RandomCrop']
    return steps[0] if steps and steps[0].get('crop_type', 'absolute') == 'absolute' else None


@pytest.mark.parametrize('path', [path for path in CONFIGS if crop_of(path)], ids=name)
def test_a_crop_lies_as_the_pictures_do(path):
    """All data here is wider than high. mmdet's RandomCrop takes (width, height), mmseg's (height, width)."""
    cfg, crop = read_config(path), crop_of(path)
    init_default_scope(cfg.default_scope)
    picture = np.zeros((1500, 2000, 3), np.uint8)
    results = dict(img=picture, img_shape=picture.shape[:2], gt_seg_map=picture[..., 0], seg_fields=['gt_seg_map'])
    height, width = TRANSFORMS.build(crop)(results)['img'].shape[:2]
    assert {height, width} == set(crop.crop_size) and width >= height


@pytest.mark.parametrize('path', SCHEDULED, ids=name)
def test_learning_rate_really_decays(path):
    """A schedule that ends where it starts is mmseg's fault with Semantic FPN; walk it, do not read it."""
    from mmengine.registry import PARAM_SCHEDULERS

    cfg = read_config(path)
    base = cfg.optim_wrapper.optimizer.lr
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=base)
    by_epoch = 'max_epochs' in cfg.train_cfg
    steps_an_epoch = 30
    total = cfg.train_cfg.max_epochs * steps_an_epoch if by_epoch else cfg.train_cfg.max_iters
    schedulers = []
    for options in cfg.param_scheduler:
        options = dict(options)
        kind = options.pop('type')
        convert = options.pop('convert_to_iter_based', False)
        cls = PARAM_SCHEDULERS.get(kind)
        if options.get('by_epoch', True) and by_epoch:
            if convert:
                schedulers.append(
                    (cls.build_iter_from_epoch(optimizer=optimizer, **options, epoch_length=steps_an_epoch), 1)
                )
            else:
                schedulers.append((cls(optimizer, **options), steps_an_epoch))
        else:
            schedulers.append((cls(optimizer, **options), 1))
    rates = []
    for step in range(total):
        rates.append(optimizer.param_groups[0]['lr'])
        optimizer.step()
        for scheduler, every in schedulers:
            if (step + 1) % every == 0:
                scheduler.step()
    if 'ft-384' in path.stem:  # DeiT fine-tunes at a constant rate
        assert set(rates) == {base}
        return
    highest = max(rates)
    # (Thirty steps stand for an epoch, so a warm-up of 500 iterations would last for most of a COCO schedule.)
    if not (by_epoch and any(not s.get('by_epoch', True) for s in cfg.param_scheduler)):
        assert highest == pytest.approx(base, rel=0.02)
        assert rates[-1] <= base / 40 or math.isclose(rates[-1], 1e-6, rel_tol=0.2), rates[-1]
    else:
        steps = [s for s in cfg.param_scheduler if s.get('by_epoch', True)]
        assert all(m < cfg.train_cfg.max_epochs for s in steps for m in s.milestones)
        assert len(steps[0].milestones) == 2


@pytest.mark.parametrize('path', SCHEDULED, ids=name)
def test_the_batch_that_the_rate_belongs_to_is_what_the_name_says(path):
    """`auto_scale_lr` compares the batch in use with `base_batch_size`: 8 GPUs times the loader's."""
    cfg = read_config(path)
    if path.parent.name in ('demo', 'bccd', 'camvid', 'imagenette', 'classify', 'transfer'):
        return
    assert cfg.auto_scale_lr.base_batch_size == 8 * cfg.train_dataloader.batch_size
    assert not cfg.auto_scale_lr.get('enable', False)
    if '8xb' in path.name:
        assert f'8xb{cfg.train_dataloader.batch_size}' in path.name


def test_every_config_is_in_its_folders_readme():
    """Of test_sizes/ the folder is: its files are named by size and arch."""
    told = {
        path: next(file for file in (folder / 'README.md' for folder in path.parents) if file.exists()).read_text()
        for path in CONFIGS
    }
    names = {path: 'test_sizes/' if path.parent.name == 'test_sizes' else path.name for path in CONFIGS}
    assert not [name(path) for path in CONFIGS if names[path] not in told[path]]


def test_there_is_one_config_for_every_promise():
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


@pytest.mark.parametrize('path', [path for path in CONFIGS if path.parent.name == 'mask_rcnn'], ids=name)
def test_no_augmented_test_of_masks_is_promised(path):
    """mmdet's DetTTAModel asserts that there are none, after the first image."""
    with pytest.raises(ValueError, match='tta: the config has no tta_model'):
        launch.test(read_config(path), checkpoint=path, tta=True)  # refused before it is opened

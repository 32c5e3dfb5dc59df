"""Whole models of other packages, opened by the toolboxes' functions: outputs equal the peer's, and
no part stays random.
"""

import warnings

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import load_checkpoint as mmengine_load
from peers import (
    PVT_ARCH,
    PVT_TABLE,
    mmdet_pvt,
    mmseg_pcpvt,
    pvt_authors_names,
    scaled,
    timm_twins,
    timm_vit,
)
from test_mmengine_loader import make_runner
from tiny import COLUMN, PYRAMID, build, image_classifier, max_difference, retinanet, semantic_fpn

from cpvt_backbones.checkpoints import CheckpointError, load_weights

TWINS = dict(type='PyramidCPVT', arch=PYRAMID, norm_eps=1e-5)
PVT = dict(type='PyramidCPVT', arch=PVT_ARCH, img_size=64, embed_norm_eps=1e-6, position=PVT_TABLE)
POOLED = dict(type='PyramidCPVT', arch=PYRAMID, out_indices=-1, out_type='avg_featmap')
DEIT = dict(type='CPVT', arch=COLUMN, img_size=64, position=dict(type='Learned'))
IMAGES = torch.linspace(-2, 2, 3 * 64 * 96).reshape(1, 3, 64, 96).sin()


def with_trunk(config, trunk):
    """A model of the toolbox with the peer's trunk, all weights perturbed."""
    model = build(config)
    model.backbone = trunk
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    return scaled(model)


def peer_of(task):
    """The config of a model here, and the same model with the peer's trunk."""
    if task == 'segmentation':
        config = semantic_fpn(TWINS, **{'decode_head.norm_cfg': dict(_delete_=True, type='BN')})
        return config, with_trunk(config, mmseg_pcpvt())
    config = retinanet(PVT)
    return config, with_trunk(config, mmdet_pvt())


def dropped(state, part):
    return {key: value for key, value in state.items() if part not in key}


def flat(outputs):
    """All values that a model returns, in one vector."""
    if isinstance(outputs, torch.Tensor):
        return outputs.flatten()
    return torch.cat([flat(value) for value in outputs])


def assert_same(ours, theirs, images=IMAGES):
    with torch.inference_mode():
        found, wanted = flat(ours.eval()(images)), flat(theirs(images))
    assert max_difference(found, wanted) <= 1e-5 * max(1, wanted.abs().max().item())


def config_of(model, scope):
    test = dict(dataset=dict(type='CustomDataset', pipeline=[dict(type='LoadImageFromFile')]))
    return Config(dict(model=model, default_scope=scope, test_dataloader=test))


def open_segmentor(config, file):
    from mmseg.apis import init_model

    return init_model(config_of(config, 'mmseg'), str(file), device='cpu')


def open_detector(config, file):
    from mmdet.apis import init_detector

    return init_detector(config_of(config, 'mmdet'), str(file), device='cpu', palette='random')


def open_classifier(config, file):
    from mmpretrain import get_model

    init_default_scope('mmpretrain')
    return get_model(config_of(config, 'mmpretrain'), pretrained=str(file), device='cpu')


def open_with_load_weights(config, file):
    model = build(config)
    load_weights(model, file)
    return model


OPEN = dict(segmentation=open_segmentor, detection=open_detector, weights=open_with_load_weights)


@pytest.mark.parametrize('form', ['now', 'old', 'bare', 'module'])
@pytest.mark.parametrize('task', ['segmentation', 'detection'])
def test_dense_model_with_the_trunk_of_its_toolbox(task, form, tmp_path):
    """Files of mmdet 2 and mmseg 0, without meta, and of a model in a wrapper are opened, too."""
    config, peer = peer_of(task)
    colours = [[1, 2, 3]] * 3
    state = peer.state_dict()
    files = dict(
        now=dict(state_dict=state, meta=dict(dataset_meta=dict(classes='abc', palette=colours))),
        old=dict(state_dict=state, meta=dict(CLASSES=('a', 'b', 'c'), PALETTE=colours)),
        bare=dict(state_dict={**state, 'auxiliary_head.conv_seg.bias': torch.ones(3)}),
        module=dict(state_dict={f'module.{key}': value for key, value in state.items()}),
    )
    torch.save(files[form], tmp_path / 'peer.pth')
    warnings.simplefilter('ignore')  # of the toolboxes, without names of classes
    for name in (task, 'weights'):
        assert_same(OPEN[name](config, tmp_path / 'peer.pth'), peer)


def test_detector_with_the_names_of_its_authors(tmp_path):
    """PVT's authors store a class token and a last norm, which their detectors do not use."""
    config, peer = peer_of('detection')
    trunk = pvt_authors_names(peer.backbone.state_dict(), extra_entries=1)
    state = dropped(peer.state_dict(), 'backbone.')
    state |= {f'backbone.{key}': value for key, value in trunk.items()}
    torch.save(dict(state_dict=state, meta=dict(CLASSES=('a', 'b', 'c'))), tmp_path / 'peer.pth')
    assert_same(open_detector(config, tmp_path / 'peer.pth'), peer)


def test_load_from_converts_the_model_and_its_average(tmp_path):
    config, peer = peer_of('segmentation')
    torch.save(dict(state_dict=peer.state_dict(), meta={}), tmp_path / 'peer.pth')
    file = str(tmp_path / 'peer.pth')
    runner = make_runner(tmp_path / 'run', 1, model=build(config), load_from=file)
    runner.call_hook('before_run')
    runner.load_or_resume()
    (ema,) = (hook for hook in runner.hooks if type(hook).__name__ == 'EMAHook')
    assert_same(runner.model, peer)
    assert_same(ema.ema_model.module.eval(), peer)


def mmpretrain_names(state):
    """A classifier of mmpretrain with timm's trunk and ViT's head."""
    heads = {'head': 'head.layers.head', 'head_dist': 'head.layers.head_dist'}
    names = ((key, *key.rpartition('.')[::2]) for key in state)
    return {
        f'{heads[stem]}.{leaf}' if stem in heads else f'backbone.{key}': state[key]
        for key, stem, leaf in names
    }


def lightning_names(state):
    return {f'model.{key}': value for key, value in state.items()}


@pytest.mark.parametrize('rename', [dict, mmpretrain_names, lightning_names])
@pytest.mark.parametrize('name', ['twins', 'deit', 'distilled'])
def test_classifier_with_its_head(name, rename, tmp_path):
    peers = dict(
        twins=timm_twins,
        deit=timm_vit,
        distilled=lambda: timm_vit('VisionTransformerDistilled'),
    )
    backbones = dict(
        twins=dict(POOLED, final_norm=True),
        deit=dict(DEIT, out_type='cls_token'),
        distilled=dict(DEIT, out_type='cls_token', with_dist_token=True),
    )
    peer = peers[name]()
    config = (
        image_classifier(backbones[name], classes=10)
        if name != 'distilled'
        else dict(
            type='ImageClassifier',
            backbone=backbones[name],
            head=dict(type='DistillationHead', num_classes=10, in_channels=24),
        )
    )
    torch.save(rename(peer.state_dict()), tmp_path / 'peer.pth')
    for opened in (open_classifier, open_with_load_weights):
        assert_same(opened(config, tmp_path / 'peer.pth'), peer)


def test_classifier_of_transformers(tmp_path):
    transformers = pytest.importorskip('transformers')
    sizes = dict(hidden_size=24, num_hidden_layers=4, num_attention_heads=2, intermediate_size=48)
    config = transformers.ViTConfig(**sizes, image_size=64, num_labels=10, layer_norm_eps=1e-6)
    peer = scaled(transformers.ViTForImageClassification(config))
    peer.save_pretrained(tmp_path)
    ours = image_classifier(dict(DEIT, out_type='cls_token'), classes=10)
    opened = open_classifier(ours, tmp_path / 'model.safetensors')
    images = IMAGES[..., :64]
    with torch.inference_mode():
        assert max_difference(opened(images), peer(images).logits) <= 1e-5


CHANGES = {
    'a head alone': (lambda state: {k: v for k, v in state.items() if 'head' in k}, 'lacks.*backb'),
    'a trunk alone': (lambda state: dropped(state, 'decode_head'), 'lacks.*decode_head'),
    'no neck': (lambda state: dropped(state, 'neck'), 'lacks.*neck'),
    'a part of the trunk': (lambda state: dropped(state, 'layers.3.1.norm2'), 'blocks.3.1.norm2'),
    'a renamed part': (
        lambda state: {key.replace('scale_heads.2', 'scales.2'): v for key, v in state.items()},
        'lacks .* of its weights: decode_head.scales.2',
    ),
    'another width': (
        lambda state: {k: v[:8] if 'lateral_convs.0' in k else v for k, v in state.items()},
        'other shapes.*neck.lateral_convs.0',
    ),
    'several heads': (
        lambda state: {**state, 'heads.7.weight': torch.ones(3)},
        'lacks .* of its weights: heads.7.weight',
    ),
}


@pytest.mark.parametrize('change', CHANGES)
def test_what_does_not_fit_is_refused_by_name(change, tmp_path):
    config, peer = peer_of('segmentation')
    edit, message = CHANGES[change]
    file = tmp_path / 'peer.pth'
    torch.save(dict(state_dict=edit(peer.state_dict()), meta={}), file)
    for opened in (open_segmentor, open_with_load_weights):
        with pytest.raises(CheckpointError, match=f"(?s)checkpoint '{file}'.*{message}"):
            opened(config, file)


def test_own_weights_without_a_part_are_refused_through_mmengine(tmp_path):
    config = semantic_fpn(TWINS)
    state = build(config).state_dict()
    for part in ('neck.fpn_convs.1.conv.bias', 'backbone.blocks.0.0.norm1.weight'):
        torch.save(dict(state_dict=dropped(state, part), meta={}), tmp_path / 'w.pth')
        with pytest.raises(CheckpointError, match=part.removeprefix('backbone.')):
            mmengine_load(build(config), str(tmp_path / 'w.pth'))


@pytest.mark.parametrize(
    'backbone, message',
    [
        (dict(DEIT, out_type='avg_featmap', with_cls_token=False), 'cls_token'),
        (dict(DEIT, out_type='cls_token', position=None), 'pos_embed'),
        (
            dict(DEIT, out_type='cls_token', position=[dict(type='Learned'), dict(type='PEG')]),
            'pos_block',
        ),
        (dict(DEIT, out_type='cls_token', final_norm=False), 'norm'),
    ],
)
def test_a_model_that_computes_something_else_is_refused(backbone, message, tmp_path):
    """A backbone alone takes all of these for pretraining."""
    torch.save(timm_vit().state_dict(), tmp_path / 'peer.pth')
    with pytest.raises(CheckpointError, match=f'outputs would differ: {message}'):
        open_classifier(image_classifier(backbone, classes=10), tmp_path / 'peer.pth')


def test_a_pooled_norm_and_a_second_head_are_refused(tmp_path):
    pooled = dict(DEIT, out_type='avg_featmap', with_cls_token=False)
    options = dict(global_pool='avg', class_token=False)
    torch.save(timm_vit(**options).state_dict(), tmp_path / 'pooled.pth')
    with pytest.raises(CheckpointError, match='normalises the mean'):
        open_classifier(image_classifier(pooled, classes=10), tmp_path / 'pooled.pth')
    state = {**timm_twins().state_dict(), 'head_dist.weight': torch.ones(10, 24)}
    torch.save(state, tmp_path / 'two.pth')
    config = image_classifier(dict(POOLED, final_norm=True), classes=10)
    with pytest.raises(CheckpointError, match='lacks 1 of its weights: head_dist.weight'):
        open_classifier(config, tmp_path / 'two.pth')


def test_models_of_others_are_loaded_as_mmengine_does(tmp_path):
    """A part that stays random is theirs to allow."""
    backbone = dict(type='ResNet', depth=18, base_channels=8, out_indices=(3,))
    init_default_scope('mmpretrain')
    pytest.importorskip('mmpretrain')
    model = MODELS.build(Config(dict(model=dict(type='ImageClassifier', backbone=backbone))).model)
    state = model.state_dict()
    first = next(iter(state))
    torch.save(dict(state_dict={first: torch.ones_like(state[first])}), tmp_path / 'w.pth')
    mmengine_load(model, str(tmp_path / 'w.pth'))
    assert (model.state_dict()[first] == 1).all()

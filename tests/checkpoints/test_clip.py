"""CLIP's vision transformers: every name is recognised, with and without the norm before the first
block.
"""

from functools import partial

import pytest
import torch
from test_conversion import LEARNED, assert_close, load, misfit, mmpretrain_vit, timm_vit
from tiny import COLUMN
from torch import nn

from cpvt_backbones import CPVT


def clip_names(state):
    """timm's ViT to open_clip's names, under the whole model's prefix and beside a text tower."""
    names = {
        'cls_token': 'class_embedding',
        'pos_embed': 'positional_embedding',
        'patch_embed.proj.weight': 'conv1.weight',
    }
    renamed = {
        'logit_scale': torch.ones(()),
        'transformer.resblocks.0.attn.in_proj_weight': torch.ones(6, 2),
    }
    for key, value in state.items():
        if key in ('patch_embed.proj.bias',) or key.startswith('head'):
            continue
        key = names.get(key, key)
        for old, new in (
            ('blocks.', 'transformer.resblocks.'),
            ('.norm', '.ln_'),
            ('attn.qkv.', 'attn.in_proj_'),
            ('attn.proj', 'attn.out_proj'),
            ('mlp.fc1', 'mlp.c_fc'),
            ('mlp.fc2', 'mlp.c_proj'),
        ):
            key = key.replace(old, new)
        key = key.replace('norm_pre.', 'ln_pre.')
        key = f'ln_post.{key[5:]}' if key.startswith('norm.') else key
        renamed[f'visual.{key}'] = (
            value[0, 0]
            if key == 'class_embedding'
            else value[0]
            if key == 'positional_embedding'
            else value
        )
    return renamed


def test_clip_without_its_first_norm(record_property):
    pytest.importorskip('timm')
    theirs = timm_vit()
    nn.init.zeros_(theirs.patch_embed.proj.bias)
    ours = CPVT(arch=COLUMN, img_size=64, position=LEARNED, out_type='raw')
    report = load(ours, clip_names(theirs.state_dict()))
    assert report.prefix == 'visual.'
    assert set(report.added) == {'patch_embed.proj.bias'}
    assert_close(ours, lambda x: [theirs.forward_features(x)], record_property)


def clip_state(names):
    """The peer and its state dict with the names of a package."""
    if names == 'mmpretrain':
        pytest.importorskip('mmpretrain')
        theirs = mmpretrain_vit(pre_norm=True, norm_cfg=dict(type='LN', eps=1e-5))
    elif names == 'mmseg':
        pytest.importorskip('mmseg')
        from mmseg.models.backbones import VisionTransformer

        theirs = VisionTransformer(
            img_size=64, embed_dims=24, num_layers=4, num_heads=2, pre_norm=True
        )
    else:
        from timm.layers import LayerNorm, QuickGELU

        theirs = timm_vit(
            pre_norm=True, act_layer=QuickGELU, norm_layer=partial(LayerNorm, eps=1e-5)
        )
    state = theirs.state_dict()
    return theirs, clip_names(state) if names == 'open_clip' else state


CLIP = dict(arch=COLUMN, img_size=64, position=LEARNED, pre_norm=True, norm_eps=1e-5)


@pytest.mark.parametrize('fused', [False, True])
@pytest.mark.parametrize('names', ['open_clip', 'timm'])
def test_clip_with_quick_gelu(names, fused, record_property):
    pytest.importorskip('timm')
    theirs, state = clip_state(names)
    ours = CPVT(**CLIP, activation='quick_gelu', out_type='raw')
    report = load(ours, state)
    kept = set(state) - set(report.dropped) - {old for old, _ in report.renamed}
    assert kept <= set(report.loaded)  # every key is loaded, renamed or dropped with a reason
    assert set(report.added) == {'patch_embed.proj.bias'}
    ours = ours.fuse() if fused else ours
    assert_close(ours, lambda x: [theirs.forward_features(x)], record_property, size=(64, 64))
    assert_close(ours, lambda x: [theirs.forward_features(x)], record_property)


def test_pooling_by_attention_beside_the_names_of_clip():
    """Perception Encoder in its authors' names is refused; CoCa has other names, and is not."""
    pytest.importorskip('timm')
    _, state = clip_state('open_clip')
    model = CPVT(**CLIP, activation='quick_gelu')
    state['visual.attn_pool.query'] = torch.ones(1, 24)
    load(model, state)
    state['visual.attn_pool.probe'] = torch.ones(1, 1, 24)
    misfit(r'visual\.attn_pool\.probe: .* those of Perception Encoder', state, model)


def test_clip_with_the_names_of_mmpretrain(record_property):
    theirs, state = clip_state('mmpretrain')
    ours = CPVT(**CLIP, out_type='featmap', out_indices=-1)
    load(ours, state)
    theirs.out_type = 'featmap'
    assert_close(ours, theirs, record_property, size=(64, 64))


@pytest.mark.parametrize('names', ['open_clip', 'timm', 'mmpretrain', 'mmseg'])
def test_clip_needs_a_model_with_its_first_norm(names):
    pytest.importorskip('timm')
    _, state = clip_state(names)
    ours = CPVT(arch=COLUMN, img_size=64, position=LEARNED)
    misfit(r'wrong architecture: .*build a CPVT with pre_norm=True', state, ours)
    plain = {key: value for key, value in timm_vit().state_dict().items()}
    misfit(r'lacks 2 keys of the model: norm_pre\.weight', plain, CPVT(**CLIP))

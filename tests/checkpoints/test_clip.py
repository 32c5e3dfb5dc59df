"""CLIP's vision transformers: names are recognised; a norm before the first block is refused."""

import pytest
import torch
from test_conversion import LEARNED, assert_close, load, mmpretrain_vit, timm_vit
from tiny import COLUMN
from torch import nn

from cpvt_backbones import CPVT, convert_state_dict
from cpvt_backbones.checkpoints import CheckpointError


def clip_names(state):
    """timm's ViT to open_clip's names, under the whole model's prefix and beside a text tower."""
    names = {
        'cls_token': 'class_embedding',
        'pos_embed': 'positional_embedding',
        'patch_embed.proj.weight': 'conv1.weight',
    }
    renamed = {'logit_scale': torch.ones(()), 'transformer.resblocks.0.attn.in_proj_weight': torch.ones(6, 2)}
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
            value[0, 0] if key == 'class_embedding' else value[0] if key == 'positional_embedding' else value
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


@pytest.mark.parametrize('names', ['open_clip', 'timm', 'mmpretrain', 'mmseg'])
def test_clip_is_refused(names):
    pytest.importorskip('timm')
    if names == 'mmpretrain':
        pytest.importorskip('mmpretrain')
        state = mmpretrain_vit(pre_norm=True).state_dict()
    elif names == 'mmseg':
        pytest.importorskip('mmseg')
        from mmseg.models.backbones import VisionTransformer

        state = VisionTransformer(img_size=64, embed_dims=24, num_layers=4, num_heads=2, pre_norm=True).state_dict()
    else:
        state = timm_vit(pre_norm=True).state_dict()
        state = state if names == 'timm' else clip_names(state)
    ours = CPVT(arch=COLUMN, img_size=64, position=LEARNED)
    with pytest.raises(
        CheckpointError, match=r'wrong architecture: .*: it normalises the tokens before the first block'
    ):
        convert_state_dict(state, ours)

"""Small models of other packages with random weights, names of weights that no installed package
has, and the models here that compute the same with them.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from tiny import COLUMN, PYRAMID, max_difference

from benchmarks.peer_models import (
    MM_TABLE,
    PVT_TABLE,
    PVTV2_ARCH,
    lists,
    pvt_authors_names,
    pvtv2_authors_names,
    scaled,
)
from cpvt_backbones import CPVT, PyramidCPVT, convert_state_dict
from cpvt_backbones.checkpoints import CheckpointError

LEARNED = dict(type='Learned')
# Twins-SVT: windows of 3 tokens in every other block, more of them in each stage
SVT_ARCH = {**PYRAMID, 'depths': (2, 2, 3, 2), 'window_size': 3}
PVT_ARCH = {**PYRAMID, 'embed_dims': (8, 16, 16, 24), 'num_heads': (1, 2, 2, 3)}
# Of SAM: windows of 3 of 8 x 8 tokens.
SAM = dict(
    arch={**COLUMN, 'num_heads': 4},
    patch_size=8,
    img_size=64,
    with_cls_token=False,
    final_norm=False,
    window_size=3,
    global_blocks=(1, 3),
    mask_window_padding=False,
)


def load(ours, state, **kwargs):
    """Convert and load strictly; the hooks of the model change no value."""
    state_dict, report = convert_state_dict(state, ours, **kwargs)
    assert not report.missing and not report.mismatched and not report.refused, str(report)
    before = {key: value.clone() for key, value in state_dict.items()}
    ours.load_state_dict(state_dict, strict=True)
    assert all(torch.equal(ours.state_dict()[key], value) for key, value in before.items())
    return report


def misfit(message, state, model, **options):
    """The model must refuse the weights."""
    with pytest.raises(CheckpointError, match=message):
        convert_state_dict(state, model, **options)


def assert_close(ours, outputs, record, size=(64, 96), bound=1e-5):
    """Outputs agree, relative to the largest value, at least to 1."""
    images = torch.randn(1, 3, *size)
    with torch.inference_mode():
        found, wanted = ours.eval()(images), outputs(images)
    assert len(found) == len(wanted)
    for got, want in zip(found, wanted, strict=True):
        assert got.shape == want.shape
        difference = max_difference(got, want) / max(1, want.abs().max().item())
        record(f'{size[0]}x{size[1]}', f'{difference:.1e}')
        assert difference <= bound


def assert_equal_states(left, right):
    assert left.keys() == right.keys()
    assert all(torch.equal(left[key], value) for key, value in right.items())


def learned(**kwargs):
    """A column with a table alone, which returns all tokens."""
    arguments = dict(arch=COLUMN, img_size=64, position=LEARNED, out_type='raw')
    return CPVT(**{**arguments, **kwargs})


# -- models
# --------------------------------------------------------------------------------------------------


def timm_twins():
    from timm.models.twins import Twins

    return scaled(Twins(**PYRAMID, num_classes=10))


def timm_svt():
    from timm.models.twins import Twins

    numbers = {key: value for key, value in SVT_ARCH.items() if key != 'window_size'}
    return scaled(Twins(**numbers, wss=(3,) * 4, num_classes=10))


def timm_vit(cls='VisionTransformer', **kwargs):
    from timm.models import deit, vision_transformer

    arguments = dict(
        img_size=64,
        embed_dim=24,
        depth=4,
        num_heads=2,
        mlp_ratio=2.0,
        num_classes=10,
        dynamic_img_size=True,
    )
    module = deit if 'Distilled' in cls else vision_transformer
    return scaled(getattr(module, cls)(**{**arguments, **kwargs}))


def timm_clip():
    from timm.layers import LayerNorm, QuickGELU

    norm = partial(LayerNorm, eps=1e-5)
    return timm_vit(pre_norm=True, act_layer=QuickGELU, norm_layer=norm)


def timm_swiglu():
    from timm.layers import SwiGLU

    norm = partial(torch.nn.LayerNorm, eps=1e-5)
    return timm_vit(mlp_layer=lambda act_layer, **kwargs: SwiGLU(**kwargs), norm_layer=norm)


def timm_without_key_bias():
    model = timm_vit()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.bias[24:48] = 0
    return model


def timm_without_patch_bias():
    model = timm_vit()
    torch.nn.init.zeros_(model.patch_embed.proj.bias)
    return model


def mmseg_pcpvt(**kwargs):
    from mmseg.models.backbones import PCPVT

    return scaled(PCPVT(**{**lists(PYRAMID), 'qkv_bias': True, **kwargs}))


def mmseg_svt():
    from mmseg.models.backbones import SVT

    numbers = {key: value for key, value in SVT_ARCH.items() if key != 'window_size'}
    return scaled(SVT(**lists(numbers), windiow_sizes=[3] * 4, qkv_bias=True))


def mmseg_vit(**kwargs):
    from mmseg.models.backbones import VisionTransformer

    sizes = dict(img_size=64, embed_dims=24, num_layers=4, num_heads=2, mlp_ratio=2)
    return scaled(VisionTransformer(**{**sizes, 'patch_bias': True, 'final_norm': True, **kwargs}))


def mmpretrain_pcpvt():
    from mmpretrain.models.backbones import PCPVT

    full = {**lists(PYRAMID), 'patch_sizes': [4, 2, 2, 2], 'strides': [4, 2, 2, 2]}
    norms = dict(norm_after_stage=[False, False, False, True], out_indices=(0, 1, 2, 3))
    return scaled(PCPVT(arch=full, qkv_bias=True, **norms))


def mmpretrain_svt():
    from mmpretrain.models.backbones import SVT

    numbers = {key: value for key, value in SVT_ARCH.items() if key != 'window_size'}
    full = {**lists(numbers), 'patch_sizes': [4, 2, 2, 2], 'strides': [4, 2, 2, 2]}
    norms = dict(norm_after_stage=[False, False, False, True], out_indices=(0, 1, 2, 3))
    return scaled(SVT(arch={**full, 'window_sizes': [3] * 4}, qkv_bias=True, **norms))


def mmpretrain_vit(cls='VisionTransformer', **kwargs):
    from mmpretrain.models import backbones

    arch = dict(embed_dims=24, num_layers=4, num_heads=2, feedforward_channels=48)
    arguments = dict(arch=arch, img_size=64, out_type='featmap')
    return scaled(getattr(backbones, cls)(**{**arguments, **kwargs}))


def mmpretrain_sam():
    """Without its neck, which other weights have."""
    from mmpretrain.models.backbones import ViTSAM

    arch = dict(embed_dims=24, num_layers=4, num_heads=4, feedforward_channels=48)
    arch['global_attn_indexes'] = [1, 3]
    sizes = dict(img_size=64, patch_size=8, window_size=3, out_channels=0)
    return scaled(ViTSAM(arch=arch, **sizes))


def mmdet_pvt(**kwargs):
    from mmdet.models.backbones import PyramidVisionTransformer

    arguments = dict(
        pretrain_img_size=64,
        embed_dims=8,
        num_layers=[2, 1, 2, 2],
        num_heads=[1, 2, 2, 3],
        mlp_ratios=[2] * 4,
        sr_ratios=[4, 2, 2, 1],
    )
    return scaled(PyramidVisionTransformer(**{**arguments, **kwargs}))


def mmdet_pvtv2():
    from mmdet.models.backbones import PyramidVisionTransformerV2

    sizes = dict(embed_dims=8, num_layers=[2, 1, 2, 2], num_heads=[1, 2, 2, 3])
    return scaled(PyramidVisionTransformerV2(**sizes, mlp_ratios=[2] * 4, sr_ratios=[4, 2, 2, 1]))


def timm_pvtv2():
    from timm.models.pvt_v2 import PyramidVisionTransformerV2

    numbers = {key: value for key, value in PVT_ARCH.items()}
    return scaled(PyramidVisionTransformerV2(**numbers, num_classes=10))


# -- names
# --------------------------------------------------------------------------------------------------


def in_classifier(state):
    """Names of a whole classifier of mmpretrain."""
    head = {'head.fc.weight': torch.zeros(10, 24), 'head.fc.bias': torch.zeros(10)}
    return {f'backbone.{key}': value for key, value in state.items()} | head


def with_neck(state):
    return {**state, 'channel_reduction.0.weight': torch.zeros(8, 24, 1, 1)}


_OPEN_CLIP = (
    (r'^cls_token$', 'class_embedding'),
    (r'^pos_embed$', 'positional_embedding'),
    (r'^patch_embed\.proj\.', 'conv1.'),
    (r'^norm_pre\.', 'ln_pre.'),
    (r'^norm\.', 'ln_post.'),
    (r'^blocks\.', 'transformer.resblocks.'),
    (r'\.norm([12])\.', r'.ln_\1.'),
    (r'\.attn\.qkv\.', '.attn.in_proj_'),
    (r'\.attn\.proj\.', '.attn.out_proj.'),
    (r'\.mlp\.fc1\.', '.mlp.c_fc.'),
    (r'\.mlp\.fc2\.', '.mlp.c_proj.'),
)


def clip_names(state):
    """timm's ViT to open_clip's names, under the whole model's prefix and beside a text tower."""
    renamed = {
        'logit_scale': torch.ones(()),
        'transformer.resblocks.0.attn.in_proj_weight': torch.ones(6, 2),
    }
    for key, value in state.items():
        if key == 'patch_embed.proj.bias' or key.startswith('head'):
            continue
        if key in ('cls_token', 'pos_embed'):
            value = value[0, 0] if key == 'cls_token' else value[0]
        for pattern, name in _OPEN_CLIP:
            key = re.sub(pattern, name, key)
        renamed[f'visual.{key}'] = value
    return renamed


def official_dinov2(state):
    """timm's DINOv2 with registers in Meta's names: the table has the class token's entry."""
    state = dict(state)
    entry = torch.randn(1, 1, 24) * 0.1
    state['register_tokens'] = state.pop('reg_token')
    state['cls_token'] = state['cls_token'] - entry
    state['pos_embed'] = torch.cat((entry, state['pos_embed']), dim=1)
    state['mask_token'] = torch.zeros(1, 24)
    return state


def storage_tokens(state):
    """Registers as Meta's DINOv3 names them."""
    return {key.replace('reg_token', 'storage_tokens'): value for key, value in state.items()}


def swiglu_of_meta(state):
    for old, new in (('.fc1_g.', '.w1.'), ('.fc1_x.', '.w2.'), ('.fc2.', '.w3.')):
        state = {key.replace(old, new): value for key, value in state.items()}
    return state


def joined_swiglu_of_meta(state):
    """Gate and value in one layer, as Meta's DINOv2-g stores them."""
    state = swiglu_of_meta(state)
    for first in [key for key in state if '.w1.' in key]:
        both = (state.pop(first), state.pop(first.replace('.w1.', '.w2.')))
        state[first.replace('.w1.', '.w12.')] = torch.cat(both)
    return state


def biases_of_beit(state):
    """Biases of queries and values alone, as timm stores them."""
    state = dict(state)
    for index in range(4):
        stem = f'blocks.{index}.attn'
        query, _, state[f'{stem}.v_bias'] = state.pop(f'{stem}.qkv.bias').chunk(3)
        state[f'{stem}.q_bias'] = query
    return state


def biases_of_meta(state):
    """A bias of keys that a mask removes, and what a DINOv3 has beside."""
    state = dict(state)
    keys = torch.eye(3)[1].repeat_interleave(24)
    for index in range(4):
        stem = f'blocks.{index}.attn.qkv'
        state[f'{stem}.bias'] = state[f'{stem}.bias'] + keys
        state[f'{stem}.bias_mask'] = 1 - keys
    state['mask_token'], state['rope_embed.periods'] = torch.zeros(1, 24), torch.ones(16)
    return state


def pvt_classifier(state):
    return pvt_authors_names(state, extra_entries=1)


# -- weights, and the models that compute the same with them
# --------------------------------------------------------------------------------------------------

HEAD = r'head\.(weight|bias)'
PATCH_BIAS = {'patch_embed.proj.bias'}
CLIP = dict(pre_norm=True, norm_eps=1e-5)
SAM_POSITION = [MM_TABLE, dict(type='DecomposedRelative')]

NATIVE, OTHER = (64, 64), (64, 96)
# Grids of which both sides, one or none are larger than the table's.
MM_SIZES = (NATIVE, (48, 112), (144, 32), (16, 48))
PVT_SIZES = (OTHER, (128, 128), (96, 224), (288, 64), (32, 96))
# Where the mm packages mask all padding of windows: at both sides of each stage's grid, or nowhere.
SVT_SIZES = ((64, 64), (64, 160), (96, 96))
# Of 8 x 8 tokens, for which the tables of global blocks are; of a multiple of the window in both
# sides; of one in neither; of less than a window.
SAM_SIZES = ((64, 64), (48, 72), (40, 88), (16, 8))


def tokens(theirs, images):
    """Of timm's ViT."""
    return [theirs.forward_features(images)]


def maps(theirs, images):
    """Of an mm backbone."""
    return theirs(images)


def stages(theirs, images):
    """Of timm's Twins."""
    return theirs.forward_intermediates(images, norm=True, intermediates_only=True)


class Case(NamedTuple):
    """Weights of a peer, and a model here that computes the same with them."""

    package: str
    theirs: Callable[[], Any]
    ours: Callable[[], Any]
    outputs: Callable[[Any, torch.Tensor], Any]
    names: Callable[[dict[str, Any]], dict[str, Any]] = dict  # the state dict that is converted
    dropped: str = ''  # pattern of the keys that no output needs
    added: set[str] = set()  # keys that the source has not
    sizes: tuple[tuple[int, int], ...] = (OTHER, NATIVE)
    to: str = ''  # target of the way back
    bound: float = 1e-5


def timm(theirs, ours=learned, outputs=tokens, **options):
    return Case('timm', theirs, ours, outputs, **{'dropped': HEAD, **options})


def mm(theirs, ours, **options):
    package = theirs.func.__name__ if isinstance(theirs, partial) else theirs.__name__
    return Case(package.partition('_')[0], theirs, ours, maps, **{'sizes': MM_SIZES, **options})


def column(**kwargs):
    return partial(learned, position=MM_TABLE, **{'out_type': 'featmap', **kwargs})


def pyramid(**kwargs):
    return partial(PyramidCPVT, **{'arch': PYRAMID, **kwargs})


def pvtv2(**kwargs):
    arch = {**PVT_ARCH, **PVTV2_ARCH}
    return PyramidCPVT(arch=arch, position=None, norm_after_stage=True, **kwargs)


def pvt(size):
    return partial(
        PyramidCPVT, arch=PVT_ARCH, img_size=size, position=PVT_TABLE, embed_norm_eps=1e-6
    )


REGISTERS = partial(timm_vit, reg_tokens=4, no_embed_class=True)
CLIP_TOWER = r'logit_scale|transformer\.resblocks\.0\.attn\.in_proj_weight'
CASES = {
    'timm': timm(timm_vit, to='timm'),
    'timm, registers in the table': timm(
        partial(timm_vit, reg_tokens=4), partial(learned, num_registers=4)
    ),
    'DINOv3 of Meta, registers': timm(
        partial(timm_vit, reg_tokens=4), partial(learned, num_registers=4), names=storage_tokens
    ),
    'DINOv2 of Meta, registers': timm(
        partial(REGISTERS, init_values=0.1),
        partial(learned, num_registers=4, layer_scale_init=1.0),
        names=official_dinov2,
        dropped=rf'{HEAD}|mask_token',
    ),
    'timm, biases of queries and values': timm(timm_without_key_bias, names=biases_of_beit),
    'DINOv3 of Meta, masked biases': timm(
        timm_without_key_bias,
        names=biases_of_meta,
        dropped=rf'{HEAD}|mask_token|rope_embed\.periods|.*\.bias_mask',
    ),
    'Meta, SwiGLU': timm(
        timm_swiglu,
        partial(learned, activation='swiglu', norm_eps=1e-5),
        names=swiglu_of_meta,
    ),
    'Meta, SwiGLU in one layer': timm(
        timm_swiglu,
        partial(learned, activation='swiglu', norm_eps=1e-5),
        names=joined_swiglu_of_meta,
    ),
    'open_clip': timm(
        timm_clip,
        partial(learned, **CLIP, activation='quick_gelu'),
        names=clip_names,
        dropped=CLIP_TOWER,
        added=PATCH_BIAS,
    ),
    'open_clip, no first norm': timm(
        timm_without_patch_bias, names=clip_names, dropped=CLIP_TOWER, added=PATCH_BIAS
    ),
    'timm, Twins': timm(timm_twins, pyramid(final_norm=True), stages, to='timm'),
    'timm, Twins-SVT': timm(
        timm_svt,
        pyramid(arch=SVT_ARCH, final_norm=True, mask_window_padding=False),
        stages,
        to='timm',
    ),
    'mmpretrain': mm(partial(mmpretrain_vit, out_type='raw'), column(out_type='raw')),
    'mmpretrain, layer scale': mm(
        partial(mmpretrain_vit, layer_scale_init_value=0.5), column(layer_scale_init=1.0)
    ),
    'mmpretrain, CLIP': mm(
        partial(mmpretrain_vit, pre_norm=True, norm_cfg=dict(type='LN', eps=1e-5)),
        column(**CLIP),
        added=PATCH_BIAS,
    ),
    'mmpretrain, SAM': mm(
        mmpretrain_sam,
        partial(CPVT, **SAM, position=SAM_POSITION),
        names=with_neck,
        dropped=r'channel_reduction\..*',
        sizes=SAM_SIZES,
        bound=2e-6,
    ),
    'mmpretrain, Twins': mm(
        mmpretrain_pcpvt,
        pyramid(final_norm=True, norm_eps=1e-5),
        names=in_classifier,
        dropped=r'head\.fc\.(weight|bias)',
        sizes=(OTHER, NATIVE),
        to='mmpretrain',
    ),
    'mmseg': mm(mmseg_vit, column(norm_eps=1e-5)),
    'mmseg, Twins': mm(mmseg_pcpvt, pyramid(norm_eps=1e-5), sizes=(OTHER, NATIVE), to='mmseg'),
    'mmseg, Twins-SVT': mm(
        mmseg_svt,
        pyramid(arch=SVT_ARCH, norm_after_stage=True, norm_eps=1e-5),
        sizes=SVT_SIZES,
        to='mmseg',
    ),
    'mmpretrain, Twins-SVT': mm(
        mmpretrain_svt,
        pyramid(arch=SVT_ARCH, final_norm=True, norm_eps=1e-5),
        sizes=SVT_SIZES,
        to='mmpretrain',
    ),
    'mmdet, PVTv2': mm(mmdet_pvtv2, partial(pvtv2, embed_norm_eps=1e-6), sizes=PVT_SIZES),
    'timm, PVTv2': timm(timm_pvtv2, pvtv2, stages, sizes=PVT_SIZES),
    'PVTv2 of its authors': timm(
        timm_pvtv2, pvtv2, stages, names=pvtv2_authors_names, sizes=PVT_SIZES
    ),
    'mmdet, PVT': mm(mmdet_pvt, pvt(64), sizes=PVT_SIZES),
    # With one token in the last stage, an entry could be a class token's or a patch's.
    'mmdet, PVT of 32 px': mm(partial(mmdet_pvt, pretrain_img_size=32), pvt(32), sizes=(OTHER,)),
    'PVT of its authors': mm(
        partial(mmdet_pvt, pretrain_img_size=32),
        pvt(32),
        names=pvt_classifier,
        dropped=r'cls_token|norm\.(weight|bias)',
        sizes=(OTHER,),
    ),
}

"""Same weights, same numbers: timm's RoPE-ViT and DINOv3, the intermediate maps and the tokens of
the last block.

timm refuses sizes that are no multiple of the patch; this package pads the last patches with zeros.
"""

import pytest
import torch
from mmengine.config import Config
from test_peers import compare, fill
from tiny import max_difference

from cpvt_backbones import CPVT, MultiScaleCPVT, convert_state_dict

SIZES = [(224, 224), (64, 96), (128, 48)]
LARGE = dict(embed_dims=1024, depth=24, num_heads=16, mlp_ratio=4.0)


def timm_model(name, **kwargs):
    model = fill(pytest.importorskip('timm').create_model(name, num_classes=0, **kwargs))
    with torch.no_grad():
        for block in model.blocks:  # layer scale: as near 1 as a norm's weight
            block.gamma_1 += 1
            block.gamma_2 += 1
    return model


def converted(theirs, **kwargs):
    """Our model with their weights: none missing, none dropped, none added but what the source
    leaves at zero.
    """
    ours = CPVT(**kwargs).eval()
    state, report = convert_state_dict(theirs.state_dict(), ours)
    assert not report.dropped and not report.missing
    ours.load_state_dict(state, strict=True)
    return ours


def compare_all(theirs, record, **kwargs):
    ours = converted(theirs, out_type='raw', **kwargs)
    compare(
        ours, theirs, lambda peer, x: [peer.forward_features(x)], record, sizes=SIZES, double=None
    )
    images = torch.randn(1, 3, *SIZES[1])
    with torch.no_grad():
        expected = ours(images)[0]
        ours._rotations = lambda *_: []
        assert max_difference(ours(images)[0], expected) > 1e-3, (
            'the rotation has no weight in this comparison'
        )
    taps = [ours.depth * (i + 1) // 4 - 1 for i in range(4)]
    ours = converted(theirs, out_indices=taps, **kwargs)
    compare(
        ours,
        theirs,
        lambda peer, x: (
            peer.forward_intermediates(x, indices=taps, norm=False, intermediates_only=True)[:-1]
            + peer.forward_intermediates(x, indices=taps, norm=True, intermediates_only=True)[-1:]
        ),
        record,
        sizes=SIZES[1:2],
        double=None,
    )


@pytest.mark.parametrize('variant', ['rope', 'rope_mixed', 'rope_ape', 'rope_mixed_ape'])
@pytest.mark.slow  # test_public_weights.py compares two blocks of each family
@pytest.mark.parametrize('size', ['small', 'base', 'large'])
def test_rope_vit(size, variant, record_property):
    theirs = timm_model(f'vit_{size}_patch16_{variant}_224', dynamic_img_size=True)
    position = [dict(type='RoPE', mode='mixed' if 'mixed' in variant else 'axial')]
    if 'ape' in variant:
        position.insert(0, dict(type='Learned'))
    arch = LARGE if size == 'large' else size
    compare_all(theirs, record_property, arch=arch, position=position, layer_scale_init=1e-5)


DINOV3 = dict(
    position=dict(type='RoPE', mode='dinov3'),
    num_registers=4,
    qkv_bias=False,
    norm_eps=1e-5,
    layer_scale_init=1e-5,
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'options'),
    [
        ('small_patch16_dinov3', dict(arch='small')),
        ('small_patch16_dinov3_qkvb', dict(arch='small', qkv_bias=True)),
        ('small_plus_patch16_dinov3', dict(arch='small', activation='swiglu')),
        ('base_patch16_dinov3', dict(arch='base')),
        ('large_patch16_dinov3', dict(arch=LARGE)),
    ],
)
def test_dinov3(name, options, record_property):
    theirs = timm_model(f'vit_{name}')
    compare_all(theirs, record_property, **{**DINOV3, **options})


@pytest.mark.parametrize(
    'folder',
    [
        'retinanet',
        *(pytest.param(f, marks=pytest.mark.slow) for f in ('mask_rcnn', 'semantic_fpn')),
    ],
)
def test_the_recipes_start_as_dinov3(folder, pytestconfig, record_property):
    """The map of stride 16 is timm's, with PEG."""
    pytest.importorskip('mmseg' if folder == 'semantic_fpn' else 'mmdet')
    (path,) = (pytestconfig.rootpath / 'configs' / folder).glob('*-dinov3_*.py')
    cfg = Config.fromfile(path).model.backbone
    assert cfg.pop('type') == 'MultiScaleCPVT'
    name = cfg.pop('init_cfg').checkpoint.removeprefix('timm://').split('.')[0]
    ours = MultiScaleCPVT(**cfg).eval()
    theirs = timm_model(name)
    state, report = convert_state_dict(theirs.state_dict(), ours)
    assert not report.dropped and {key.split('.')[0] for key in report.added} == {'pos_block'}
    assert {key.split('.')[0] for key in report.missing} == {'pyramid'}
    ours.load_state_dict(state, strict=False)
    images = torch.randn(1, 3, 64, 96)
    with torch.inference_mode():
        got = ours(images)[ours.out_strides.index(16)]
        wanted = theirs.forward_intermediates(
            images, norm=True, indices=1, intermediates_only=True
        )[0]
    difference = max_difference(got, wanted) / max(1, wanted.abs().max().item())
    record_property('difference', f'{difference:.1e}')
    assert difference <= 1e-5

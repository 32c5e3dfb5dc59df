"""Names of public weights: each builds a model that takes every key of timm's and computes what
timm computes.
"""

import re

import pytest
import torch
from tiny import max_difference, only

from benchmarks.peer_models import scaled
from cpvt_backbones import CPVT, PyramidCPVT, convert_state_dict
from cpvt_backbones.backbones.archs import HIERARCHICAL_ARCHS
from cpvt_backbones.checkpoints import public_backbone
from cpvt_backbones.layers.position import POSITIONS

timm = pytest.importorskip('timm')

# Those whose pretrained weights are on the hub, by name without tag.
NAMES = sorted(
    {
        name.split('.')[0]
        for name in timm.list_models(pretrained=True)
        if public_backbone(f'timm://{name}')
    }
)
FAMILIES = [
    'deit_tiny_patch16_224',
    'deit_small_distilled_patch16_224',
    'deit3_base_patch16_384',
    'vit_small_patch8_224',
    'vit_large_patch14_clip_quickgelu_336',
    'vit_small_patch14_dinov2',
    'vit_base_patch14_reg4_dinov2',
    'vit_small_patch16_rope_224',
    'vit_base_patch16_rope_ape_224',
    'vit_large_patch16_rope_mixed_224',
    'vit_small_patch16_rope_mixed_ape_224',
    'vit_small_patch16_dinov3',
    'vit_base_patch16_dinov3_qkvb',
    'vit_small_plus_patch16_dinov3',
    'twins_pcpvt_large',
    'twins_svt_small',
    'samvit_base_patch16',
    'vit_so400m_patch14_siglip_gap_224',
    'vit_large_patch16_siglip_512',
    'vit_pe_core_tiny_patch16_384',
    'vit_pe_spatial_gigantic_patch14_448',
    'vit_pe_lang_large_patch14_448',
    'eva02_tiny_patch14_336',
    'vit_large_patch16_radio_v3',
    'vit_so400m_patch16_radio_v4',
    'vit_giant_patch14_reg1_tipsv2',
]


def small(name):
    """Overrides for timm's model and for ours that leave two narrow blocks, or few."""
    if name.startswith('twins'):
        arch = public_backbone(f'timm://{name}')['arch']
        pyramid = {**HIERARCHICAL_ARCHS[arch], 'depths': (1, 2, 1, 1)}
        return dict(depths=pyramid['depths']), dict(arch=pyramid)
    numbers = dict(depth=2, num_heads=2)
    arch = public_backbone(f'timm://{name}')['arch']
    ratio = arch['mlp_ratio'] if isinstance(arch, dict) else 4.0
    if name.startswith('samvit'):
        theirs = dict(embed_dim=128, global_attn_indexes=(1,), **numbers)
        arch = dict(embed_dims=128, mlp_ratio=ratio, **numbers)
        return theirs, dict(arch=arch, global_blocks=(1,))
    return dict(embed_dim=128, **numbers), dict(
        arch=dict(embed_dims=128, mlp_ratio=ratio, **numbers)
    )


def compare_with_timm(name, theirs_options, ours_options, record):
    built = public_backbone(f'timm://{name}.tag')
    cls = dict(CPVT=CPVT, PyramidCPVT=PyramidCPVT)[built.pop('type')]
    is_sam = name.startswith('samvit')
    dynamic = dict(dynamic_img_size=True) if cls is CPVT and not is_sam else {}
    theirs = scaled(timm.create_model(name, num_classes=0, **dynamic, **theirs_options))
    depth = len(theirs.blocks)

    def ours(**arguments):
        model = cls(**{**built, **ours_options, **arguments}).eval()
        state, report = convert_state_dict(theirs.state_dict(), model)
        assert set(theirs.state_dict()) <= {
            *report.loaded,
            *report.dropped,
            *(old for old, _ in report.renamed),
        }
        assert not report.missing
        assert all(re.match(r'(fc_)?norm\.|neck\.|attn_pool\.', key) for key in report.dropped)
        model.load_state_dict(state, strict=True)
        return model

    taps = sorted({0, depth // 2, depth - 1}) if cls is CPVT else (0, 1, 2, 3)
    tokens, maps = ours(out_type='raw', out_indices=-1), ours(out_indices=taps, final_norm=False)
    if is_sam:  # its neck is dropped
        theirs.neck = torch.nn.Identity()
    native, stride = built.get('img_size', 224), maps.out_strides[-1]
    for size in ((native, native), (4 * stride, 7 * stride), (9 * stride, 3 * stride)):
        images = torch.randn(1, 3, *size)
        with torch.inference_mode():
            outputs = (*tokens(images), *maps(images))
            options = dict(indices=list(taps), norm=False, intermediates_only=True)
            features = theirs.forward_features(images)
            if name.startswith('eva02'):
                features = theirs.fc_norm(features)  # of each token, as this package does
            wanted = (
                features.flatten(2).mT if is_sam else features,
                *theirs.forward_intermediates(images, **options),
            )
        for got, want in zip(outputs, wanted, strict=True):
            assert got.shape == want.shape
            difference = max_difference(got, want) / max(1, want.abs().max().item())
            record(f'{size[0]}x{size[1]}', f'{difference:.1e}')
            assert difference <= 1e-5


def skip_without_encoding(name):
    if 'RoPE' in str(public_backbone(name)) and 'RoPE' not in POSITIONS:
        pytest.skip('there is no rotary encoding')


OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in NAMES if name not in FAMILIES]


@pytest.mark.parametrize('name', FAMILIES + OTHERS)
def test_two_blocks_compute_what_timm_computes(name, record_property):
    """Whole models are compared by `make parity`."""
    skip_without_encoding(name)
    compare_with_timm(name, *small(name), record_property)


@pytest.mark.parametrize('name', only(*sorted({*FAMILIES} & {*NAMES}), of=NAMES))
def test_size_is_timms(name):
    """But for biases of keys and of the patch embedding, and entries of prefix tokens in a table,
    which are zero.
    """
    skip_without_encoding(name)
    built = public_backbone(f'timm://{name}.tag')
    cls = dict(CPVT=CPVT, PyramidCPVT=PyramidCPVT)[built.pop('type')]
    with torch.device('meta'):
        theirs = timm.create_model(name, num_classes=0)
        theirs.neck = theirs.attn_pool = None  # SAM's neck and SigLIP's pooling are dropped
        ours = cls(**built, **dict(out_type='raw', out_indices=-1))
    more = count(ours) - count(theirs)
    assert 0 <= more <= (sum(ours.depths) + 6) * ours.out_channels[-1]


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())

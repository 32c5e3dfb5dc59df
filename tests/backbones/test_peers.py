"""Same weights, same numbers: timm's Twins-PCPVT and DeiT, mmdet's PVT.

Sizes are multiples of 32: the peers crop or refuse the rest.
"""

import pytest
import torch
from tiny import max_difference

from cpvt_backbones import CPVT, PyramidCPVT, convert_state_dict

SIZES = [(224, 224), (64, 96), (128, 64)]


def from_timm(name, **kwargs):
    """A model of timm without its own initialisation, which takes longer than the comparison."""
    with torch.device('meta'):
        model = pytest.importorskip('timm').create_model(name, num_classes=0, **kwargs)
    assert not [*model.buffers()]
    return fill(model.to_empty(device='cpu'))


def fill(model):
    """Random weights of a scale that keeps activations near 1 through any depth, norms and biases
    included.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.normal_(0, 0.1)
                if name.endswith('weight'):  # of a norm
                    parameter.add_(1)
            elif name.endswith('weight'):
                parameter.normal_(0, 0.5 * parameter[0].numel() ** -0.5)
            else:  # tables and tokens
                parameter.normal_(0, 0.5)
    return model.eval()


def build(cls, state, **kwargs):
    """A model of ours with these weights, and no others: no key missing, none left over."""
    with torch.device('meta'):
        model = cls(**kwargs)
    model.load_state_dict(state, strict=True, assign=True)
    return model.eval()


def compare(ours, theirs, outputs, record, *, sizes=SIZES, double=SIZES[1]):
    """Float32 at each size, float64 at size ``double``.

    ``outputs`` (peer, images): what ours should hand out.
    """

    def differences(size, dtype):
        images = torch.randn(1, 3, *size, dtype=dtype)
        with torch.inference_mode():
            for got, wanted in zip(ours(images), outputs(theirs, images), strict=True):
                assert got.shape == wanted.shape
                yield max_difference(got, wanted) / max(1, wanted.abs().max().item())

    for size in sizes:
        for difference in differences(size, torch.float32):
            record(f'{size[0]}x{size[1]}', f'{difference:.1e}')
            assert difference <= 1e-5
    if double:  # tells rounding from a small mistake
        ours.double()
        theirs.double()
        for difference in differences(double, torch.float64):
            record('float64', f'{difference:.1e}')
            assert difference <= 1e-10


@pytest.mark.parametrize('arch', ['small', 'base', 'large'])
def test_pyramid_and_timm_twins(arch, record_property):
    theirs = from_timm(f'twins_pcpvt_{arch}')
    ours = build(PyramidCPVT, theirs.state_dict(), arch=arch, final_norm=True)
    compare(
        ours,
        theirs,
        lambda peer, x: peer.forward_intermediates(x, norm=True, intermediates_only=True),
        record_property,
        double=None if arch == 'large' else SIZES[1],
    )


def test_pyramid_and_timm_twins_as_classifiers(record_property):
    theirs = from_timm('twins_pcpvt_small')
    ours = build(
        PyramidCPVT, theirs.state_dict(), arch='small', out_type='avg_featmap', out_indices=-1
    )
    compare(ours, theirs, lambda peer, x: [peer(x)], record_property, sizes=SIZES[1:2])


# At the table's own size: elsewhere timm resizes it in float32, whatever the model's precision.
DOUBLE = {'tiny': SIZES[0], 'small': SIZES[0], 'base': None}


@pytest.mark.parametrize('arch', DOUBLE)
def test_column_with_a_learned_table_and_timm_deit(arch, record_property):
    theirs = from_timm(f'deit_{arch}_patch16_224', dynamic_img_size=True)
    ours = build(
        CPVT, theirs.state_dict(), arch=arch, position=dict(type='Learned'), out_type='raw'
    )
    compare(
        ours,
        theirs,
        lambda peer, x: [peer.forward_features(x)],
        record_property,
        double=DOUBLE[arch],
    )


def test_column_and_timm_deit_at_each_tap(record_property):
    theirs = from_timm('deit_tiny_patch16_224', dynamic_img_size=True)
    ours = build(
        CPVT,
        theirs.state_dict(),
        arch='tiny',
        position=dict(type='Learned'),
        out_indices=(2, 5, 8, 11),
    )
    ours.norm = torch.nn.Identity()
    compare(
        ours,
        theirs,
        lambda peer, x: peer.forward_intermediates(
            x, indices=[2, 5, 8, 11], norm=False, intermediates_only=True
        ),
        record_property,
        sizes=SIZES[1:2],
        double=None,
    )


@pytest.mark.parametrize('arch', ['small', 'medium'])
def test_column_and_timm_deit3(arch, record_property):
    theirs = from_timm(f'deit3_{arch}_patch16_224', dynamic_img_size=True)
    arch = arch if arch == 'small' else dict(embed_dims=512, depth=12, num_heads=8, mlp_ratio=4.0)
    ours = CPVT(
        arch=arch, position=dict(type='Learned'), layer_scale_init=1e-6, out_type='raw'
    ).eval()
    state, report = convert_state_dict(theirs.state_dict(), ours)
    assert not report.dropped and not report.added
    ours.load_state_dict(state, strict=True)
    compare(ours, theirs, lambda peer, x: [peer.forward_features(x)], record_property, double=None)


def test_column_and_timm_clip(record_property):
    theirs = from_timm('vit_base_patch16_clip_quickgelu_224', dynamic_img_size=True)
    ours = CPVT(
        arch='base',
        position=dict(type='Learned'),
        norm_eps=1e-5,
        pre_norm=True,
        activation='quick_gelu',
        out_type='raw',
    ).eval()
    state, report = convert_state_dict(theirs.state_dict(), ours)
    assert not report.dropped
    ours.load_state_dict(state, strict=True)
    compare(ours, theirs, lambda peer, x: [peer.forward_features(x)], record_property, double=None)


def from_mmdet(state):
    """mmdet's PVT keys to ours."""
    renamed = {}
    for key, value in state.items():
        _, stage, part, *rest = key.split('.')
        if part == '0':
            leaf = '.'.join(rest).replace('projection', 'proj')
            renamed[f'patch_embeds.{stage}.{leaf}'] = value
        elif rest == ['0', 'pos_embed']:
            renamed[f'pos_embed.{stage}'] = value
        else:
            block = f'blocks.{stage}.{int(rest[0]) - 1}'
            leaf = '.'.join(rest[1:])
            if 'in_proj' in leaf:
                dim, kind = value.shape[0] // 3, leaf.rsplit('_', 1)[1]
                renamed[f'{block}.attn.q.{kind}'], renamed[f'{block}.attn.kv.{kind}'] = value.split(
                    (dim, 2 * dim)
                )
                continue
            for old, new in (
                ('attn.attn.out_proj', 'attn.proj'),
                ('ffn.layers.0', 'mlp.fc1'),
                ('ffn.layers.3', 'mlp.fc2'),
            ):
                leaf = leaf.replace(old, new)
            if leaf.startswith('mlp.') and leaf.endswith('weight'):
                value = value[:, :, 0, 0]
            renamed[f'{block}.{leaf}'] = value
    return renamed


@pytest.mark.parametrize('arch', ['tiny', 'small', 'large'])
def test_pyramid_with_tables_and_mmdet_pvt(arch, record_property):
    pytest.importorskip('mmdet')
    from mmdet.models.backbones import PyramidVisionTransformer

    depths = {'tiny': [2, 2, 2, 2], 'small': [3, 4, 6, 3], 'large': [3, 8, 27, 3]}
    theirs = fill(PyramidVisionTransformer(num_layers=depths[arch]))
    ours = build(
        PyramidCPVT,
        from_mmdet(theirs.state_dict()),
        arch=arch,
        embed_norm_eps=1e-6,
        position=dict(type='Learned', interpolation='bilinear', antialias=False),
    )
    compare(
        ours,
        theirs,
        lambda peer, x: peer(x),
        record_property,
        double=None if arch == 'large' else SIZES[1],
    )

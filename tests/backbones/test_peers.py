"""Same weights, same numbers at full depth: timm's Twins and DeiT, mmdet's PVT.

Sizes are multiples of 32: the peers crop or refuse the rest.
"""

import pytest
import torch
from tiny import max_difference, only

from benchmarks.peer_models import scaled
from cpvt_backbones import CPVT, PyramidCPVT, convert_state_dict

SIZES = [(224, 224), (64, 96), (128, 64)]


def from_timm(name, **kwargs):
    """A model of timm without its own initialisation, which takes longer than the comparison."""
    with torch.device('meta'):
        model = pytest.importorskip('timm').create_model(name, num_classes=0, **kwargs)
    assert not [*model.buffers()]
    return scaled(model.to_empty(device='cpu'))


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


@pytest.mark.parametrize(
    'arch', only('small', 'svt_small', of=['small', 'base', 'large', 'svt_small'])
)
def test_pyramid_and_timm_twins(arch, record_property):
    theirs = from_timm(f'twins_{arch}' if 'svt' in arch else f'twins_pcpvt_{arch}')
    options = dict(final_norm=True, mask_window_padding=False)
    ours = build(PyramidCPVT, theirs.state_dict(), arch=arch, **options)
    compare(
        ours,
        theirs,
        lambda peer, x: peer.forward_intermediates(x, norm=True, intermediates_only=True),
        record_property,
        double=None if arch == 'large' else SIZES[1],
    )


# At the table's own size: elsewhere timm resizes it in float32, whatever the model's precision.
DOUBLE = {'tiny': SIZES[0], 'base': None}


@pytest.mark.parametrize('arch', only('tiny', of=DOUBLE))
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


@pytest.mark.parametrize('arch', only('tiny', of=['tiny', 'small', 'large']))
def test_pyramid_with_tables_and_mmdet_pvt(arch, record_property):
    backbones = pytest.importorskip('mmdet.models.backbones')
    depths = {'tiny': [2, 2, 2, 2], 'small': [3, 4, 6, 3], 'large': [3, 8, 27, 3]}[arch]
    theirs = scaled(backbones.PyramidVisionTransformer(num_layers=depths))
    table = dict(type='Learned', interpolation='bilinear', antialias=False)
    ours = PyramidCPVT(arch=arch, embed_norm_eps=1e-6, position=table).eval()
    state, report = convert_state_dict(theirs.state_dict(), ours)
    assert not report.dropped and not report.added
    ours.load_state_dict(state, strict=True)
    double = SIZES[1] if arch == 'tiny' else None
    compare(ours, theirs, lambda peer, x: peer(x), record_property, double=double)

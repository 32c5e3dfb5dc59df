"""Parameter counts of every named size against the published and derived constants
(reference/cpvt.md).
"""

import pytest
import torch
from tiny import only

from cpvt_backbones import CPVT, MultiScaleCPVT, PyramidCPVT, list_archs

FIVE = dict(type='PEG', after_blocks=(0, 1, 2, 3, 4))

# Section 3, with a 1000-class head: learned table, one PEG, five PEGs, five PEGs without class
# token.
COLUMNS = {
    'tiny': (5_717_416, 5_681_512, 5_689_192, 5_689_000),
    'small': (22_050_664, 21_978_856, 21_994_216, 21_993_832),
    'base': (86_567_656, 86_424_040, 86_454_760, 86_453_992),
}
# Section 4: with norm and head, backbone alone.
PYRAMIDS = {
    'tiny': (12_849_640, 12_335_616),
    'small': (24_106_216, 23_592_192),
    'base': (43_828_456, 43_314_432),
    'large': (60_989_672, 60_475_648),
    # Twins-SVT: with norm and head as timm counts them.
    'svt_small': (24_060_776, 23_546_752),
    'svt_base': (56_070_952, 55_300_416),
    'svt_large': (99_271_400, 98_244_352),
}
# Of timm's pvt_v2_*, with a norm of each stage and a head.
PVTV2 = {
    'pvtv2_b0': 3_666_760,
    'pvtv2_b1': 14_009_000,
    'pvtv2_b2': 25_362_856,
    'pvtv2_b3': 45_238_696,
    'pvtv2_b4': 62_556_072,
    'pvtv2_b5': 81_956_008,
}


def build(cls, **kwargs):
    with torch.device('meta'):
        return cls(**kwargs)


def count(cls, *, only='', **kwargs):
    """Number of parameters of the model, or of those whose names begin so."""
    parameters = build(cls, **kwargs).named_parameters()
    return sum(p.numel() for name, p in parameters if name.startswith(only))


def test_the_tables_below_know_every_size():
    assert list_archs() == {
        'CPVT': tuple(COLUMNS),
        'MultiScaleCPVT': tuple(COLUMNS),
        'PyramidCPVT': (*PYRAMIDS, *PVTV2),
    }


@pytest.mark.parametrize('arch', list_archs()['CPVT'])
def test_columns(arch):
    head = build(CPVT, arch=arch).embed_dims * 1000 + 1000
    learned, one, five, gap = COLUMNS[arch]
    assert count(CPVT, arch=arch, position=dict(type='Learned')) + head == learned
    assert count(CPVT, arch=arch) + head == one
    assert count(CPVT, arch=arch, position=FIVE) + head == five
    without_token = dict(arch=arch, position=FIVE, with_cls_token=False)
    assert count(CPVT, **without_token) + head == gap
    assert count(CPVT, **without_token, out_type='avg_featmap') + head == gap


@pytest.mark.parametrize('arch', list_archs()['MultiScaleCPVT'])
def test_multi_scale_trunk_is_the_gap_model(arch):
    trunk = count(MultiScaleCPVT, arch=arch) - count(MultiScaleCPVT, arch=arch, only='pyramid.')
    head = build(MultiScaleCPVT, arch=arch).embed_dims * 1000 + 1000
    assert trunk + head == COLUMNS[arch][3]


@pytest.mark.parametrize('arch', only('tiny', 'svt_small', of=PYRAMIDS))
def test_pyramids(arch):
    with_head, alone = PYRAMIDS[arch]
    classifier = dict(arch=arch, out_type='avg_featmap', out_indices=-1)
    head = build(PyramidCPVT, **classifier).out_channels[0] * 1000 + 1000
    assert count(PyramidCPVT, **classifier) + head == with_head
    assert count(PyramidCPVT, arch=arch, final_norm=True) + head == with_head
    assert count(PyramidCPVT, arch=arch) == alone


@pytest.mark.parametrize('arch', PVTV2)
def test_pvtv2(arch):
    model = build(PyramidCPVT, arch=arch, position=None, norm_after_stage=True)
    head = model.out_channels[-1] * 1000 + 1000
    assert sum(p.numel() for p in model.parameters()) + head == PVTV2[arch]


def test_peg_of_the_paper_and_the_table_it_replaces():
    def position(type_, only='pos_block', **options):
        spec = dict(type=type_, **options)
        return count(CPVT, arch='tiny', with_cls_token=False, position=spec, only=only)

    assert position('PEG') == 1728 + 192
    assert position('PEG', bias=False) == 1728
    assert position('PEG', bias=False, num_layers=4, kernel_size=5) == 192 * 4 * 25
    assert position('PEG', bias=False, kind='separable', num_layers=3) == 3 * 38_592
    assert position('Learned', only='pos_embed') == 37_632
    assert position('Relative', only='rel_pos') == 12 * 2 * 17 * 64
    assert position('DecomposedRelative', only='rel_pos_hw', grid=64) == 12 * 2 * 127 * 64

"""Parameter counts of every named size against the published and derived constants
(reference/cpvt.md).
"""

import pytest
import torch

from cpvt_backbones import CPVT, MultiScaleCPVT, PyramidCPVT, list_archs
from cpvt_backbones.layers import SpatialReductionAttention

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
}


def count(cls, **kwargs):
    with torch.device('meta'):
        model = cls(**kwargs)
    return sum(p.numel() for p in model.parameters())


def test_the_tables_below_know_every_size():
    assert list_archs() == {
        'CPVT': tuple(COLUMNS),
        'MultiScaleCPVT': tuple(COLUMNS),
        'PyramidCPVT': tuple(PYRAMIDS),
    }


@pytest.mark.parametrize('arch', list_archs()['CPVT'])
def test_columns(arch):
    dim = {'tiny': 192, 'small': 384, 'base': 768}[arch]
    head = dim * 1000 + 1000
    learned, one, five, gap = COLUMNS[arch]
    assert count(CPVT, arch=arch, position=dict(type='Learned')) + head == learned
    assert count(CPVT, arch=arch) + head == one
    assert count(CPVT, arch=arch, position=FIVE) + head == five
    assert count(CPVT, arch=arch, position=FIVE, with_cls_token=False) + head == gap
    assert (
        count(CPVT, arch=arch, position=FIVE, with_cls_token=False, out_type='avg_featmap') + head
        == gap
    )


@pytest.mark.parametrize('arch', list_archs()['MultiScaleCPVT'])
def test_multi_scale_trunk_is_the_gap_model(arch):
    with torch.device('meta'):
        model = MultiScaleCPVT(arch=arch)
    trunk = sum(
        p.numel() for name, p in model.named_parameters() if not name.startswith('pyramid.')
    )
    assert trunk + model.embed_dims * 1000 + 1000 == COLUMNS[arch][3]


@pytest.mark.parametrize('arch', list_archs()['PyramidCPVT'])
def test_pyramids(arch):
    with_head, alone = PYRAMIDS[arch]
    assert (
        count(PyramidCPVT, arch=arch, out_type='avg_featmap', out_indices=-1) + 513_000 == with_head
    )
    assert count(PyramidCPVT, arch=arch, final_norm=True) + 513_000 == with_head
    assert count(PyramidCPVT, arch=arch) == alone


def test_peg_of_the_paper_and_the_table_it_replaces():
    def position(**kwargs):
        with torch.device('meta'):
            model = CPVT(arch='tiny', **kwargs)
        return sum(
            p.numel()
            for name, p in model.named_parameters()
            if name.startswith(('pos_block', 'pos_embed', 'rel_pos'))
        )

    assert position(position=dict(type='PEG', bias=False)) == 1728
    assert position(position=dict(type='PEG', bias=False, kind='separable')) == 38_592
    assert position(position=dict(type='Learned'), with_cls_token=False) == 37_632
    assert position(position=dict(type='Relative')) == 12 * 2 * 17 * 64


def norms(model):
    return {name: m.eps for name, m in model.named_modules() if isinstance(m, torch.nn.LayerNorm)}


@pytest.mark.parametrize('arch', list_archs()['PyramidCPVT'])
def test_epsilons_of_a_pyramid(arch):
    with torch.device('meta'):
        found = norms(PyramidCPVT(arch=arch, final_norm=True))
    inner = {name for name in found if name.startswith('patch_embeds') or '.attn.norm' in name}
    assert {found[name] for name in inner} == {1e-5}
    assert {found[name] for name in found if name not in inner} == {1e-6}
    assert 'norm' in found
    with torch.device('meta'):
        assert set(norms(PyramidCPVT(arch=arch, embed_norm_eps=1e-6, norm_eps=1e-3)).values()) == {
            1e-3,
            1e-6,
        }


def test_epsilons_of_a_column():
    with torch.device('meta'):
        found = norms(CPVT(arch='tiny'))
    assert len(found) == 25
    assert set(found.values()) == {1e-6}
    with torch.device('meta'):
        assert set(norms(CPVT(arch='tiny', norm_eps=1e-5)).values()) == {1e-5}


@pytest.mark.parametrize('arch', list_archs()['CPVT'])
def test_shape_of_a_column(arch):
    with torch.device('meta'):
        model = CPVT(arch=arch)
    assert len(model.blocks) == 12
    assert all(block.attn.num_heads * 64 == model.embed_dims for block in model.blocks)
    assert all(block.mlp.fc1.out_features == 4 * model.embed_dims for block in model.blocks)


@pytest.mark.parametrize(
    ('arch', 'depths'),
    [
        ('tiny', [2, 2, 2, 2]),
        ('small', [3, 4, 6, 3]),
        ('base', [3, 4, 18, 3]),
        ('large', [3, 8, 27, 3]),
    ],
)
def test_shape_of_a_pyramid(arch, depths):
    with torch.device('meta'):
        model = PyramidCPVT(arch=arch)
    assert [len(stage) for stage in model.blocks] == depths
    for stage, dim, heads, ratio, reduction in zip(
        model.blocks, (64, 128, 320, 512), (1, 2, 5, 8), (8, 8, 4, 4), (8, 4, 2, 1), strict=True
    ):
        for block in stage:
            assert isinstance(block.attn, SpatialReductionAttention)
            assert (block.attn.num_heads, block.attn.sr_ratio) == (heads, reduction)
            assert block.mlp.fc1.weight.shape == (dim * ratio, dim)
    assert model.out_channels == (64, 128, 320, 512)
    assert model.out_strides == (4, 8, 16, 32)
    assert {
        name.split('.')[1] for name in model.state_dict() if name.startswith('pos_block')
    } == set('0123')

"""The table of differences, docs/weights_parity.csv, is complete, and its tool finds one."""

import pytest
import torch

from benchmarks import parity
from cpvt_backbones.checkpoints import SOURCES, public_backbone

BOUND = 2e-6


def test_every_kind_of_weights_is_in_the_table():
    """Of a new one, measure its peer: make parity."""
    rows = parity.table_rows()
    assert {row[0] for row in rows} == {family.name for family in SOURCES}
    names = pytest.importorskip('timm').list_models(pretrained=True)
    names = [name.split('.')[0] for name in names if public_backbone(f'timm://{name}')]
    assert {parity.family_of(name) for name in names} <= {row[1] for row in rows}


def test_a_difference_is_found():
    """A table that is resized otherwise than the peer does shows at two of three sizes."""
    timm = pytest.importorskip('timm')
    theirs = timm.create_model('test_vit', num_classes=0, dynamic_img_size=True)
    arch = dict(embed_dims=64, depth=6, num_heads=2, mlp_ratio=3.0)
    for antialias in (True, False):
        position = dict(type='Learned', antialias=antialias)
        ours = parity.CPVT(arch=arch, img_size=160, position=position, out_type='raw')
        case = parity.Case('timm', 'ViT', theirs, ours, theirs.forward_features, native=160)
        torch.manual_seed(0)
        names, found = parity.differences(case)
        assert names == "ViT, DeiT or CPVT, timm's or this package's names"
        assert found[0] <= BOUND and (max(found[1:3]) <= BOUND) == antialias
        assert found[3:] == [parity.NOT_TAKEN, '']  # timm refuses parts of patches
    assert parity.worst((0.0, 0.0)) == '0'
    assert parity.worst((parity.NOT_TAKEN, 2.04e-7)) == '2.0e-7'


def test_rows_that_a_peer_drops_are_all_of_the_difference(tmp_path):
    """PVTv2 at an odd size: with its reduced maps padded, timm's equals this package's."""
    timm = pytest.importorskip('timm')
    sizes = dict(depths=(1, 1, 1, 1), embed_dims=(16, 32, 48, 64), num_heads=(1, 1, 2, 2))
    theirs = timm.create_model('pvt_v2_b0', num_classes=0, **sizes)
    torch.save(theirs.state_dict(), tmp_path / 'w.pth')
    arch = dict(sizes, mlp_ratios=(8, 8, 4, 4), sr_ratios=(8, 4, 2, 1), mlp_kernel_size=3)
    arch['patch_kernels'] = (7, 3, 3, 3)
    options = dict(position=None, norm_after_stage=True, out_indices=-1)
    ours = parity.PyramidCPVT(arch=arch, **options)
    torch.manual_seed(0)
    case = parity.Case('timm', 'PVTv2', theirs, ours, theirs.forward_features, native=64)
    *found, odd, padded = parity.differences(case)[1]
    assert max(found) <= BOUND and odd > 1e-3 and padded <= BOUND

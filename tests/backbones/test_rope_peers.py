"""Same weights, same numbers: timm's RoPE-ViT and DINOv3, the intermediate maps and the tokens of
the last block.

timm refuses sizes that are no multiple of the patch; this package pads the last patches with zeros.
"""

import pytest
import torch
from mmengine.config import Config
from tiny import max_difference

from benchmarks.peer_models import scaled
from cpvt_backbones import MultiScaleCPVT, convert_state_dict


@pytest.mark.parametrize(
    'folder',
    [
        'retinanet',
        *(pytest.param(f, marks=pytest.mark.slow) for f in ('mask_rcnn', 'semantic_fpn')),
    ],
)
@pytest.mark.full
def test_the_recipes_start_as_dinov3(folder, pytestconfig, record_property):
    """The map of stride 16 is timm's, with PEG."""
    pytest.importorskip('mmseg' if folder == 'semantic_fpn' else 'mmdet')
    (path,) = (pytestconfig.rootpath / 'configs' / folder).glob('*-dinov3_*.py')
    cfg = Config.fromfile(path).model.backbone
    assert cfg.pop('type') == 'MultiScaleCPVT'
    name = cfg.pop('init_cfg').checkpoint.removeprefix('timm://').split('.')[0]
    ours = MultiScaleCPVT(**cfg).eval()
    theirs = scaled(pytest.importorskip('timm').create_model(name, num_classes=0))
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

"""A training step and a prediction of detectors: compiled operators and those on torchvision's
kernels agree.
"""

import pytest
import tiny
import torch
from mmengine.registry import MODELS, init_default_scope
from test_mmcv_operators import ours

pytest.importorskip('mmdet')

from operator_cases import COMPILED, outputs_and_gradients

needs_compiled = pytest.mark.skipif(
    not COMPILED, reason='mmcv has no compiled operators to compare with'
)
pytestmark = [pytest.mark.full, needs_compiled]

COLUMN = dict(type='MultiScaleCPVT', img_size=64, arch=tiny.TWO_BLOCKS)
DCN = dict(
    type='ResNet', depth=50, base_channels=8, norm_cfg=tiny.GN, out_indices=(0, 1, 2, 3),
    dcn=dict(type='DCNv2', deform_groups=1), stage_with_dcn=(False, True, True, True),
)  # fmt: skip


# They have every operator that mmdet's stock models call.
DETECTORS = {
    'retinanet': ('retinanet/retinanet_r50_fpn_1x_coco.py', DCN, [32, 64, 128, 256]),
    'mask_rcnn': ('mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py', COLUMN, [6, 12, 24, 24]),
}


def step_and_predict(model):
    """Losses and gradients of one batch, and the predictions for it."""
    from mmdet.testing import demo_mm_inputs

    torch.manual_seed(1)
    with_mask = 'MaskRCNN' in type(model).__name__
    batch = demo_mm_inputs(2, [[3, 96, 128], [3, 128, 96]], num_classes=3, with_mask=with_mask)
    torch.manual_seed(1)  # of the samplers
    model.train().zero_grad()
    losses = model.forward(**model.data_preprocessor(batch, True), mode='loss')
    total, logged = model.parse_losses(losses)
    total.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    with torch.no_grad():
        found = model.eval().forward(**model.data_preprocessor(batch, False), mode='predict')
    return logged, gradients, [sample.pred_instances for sample in found]


@pytest.mark.parametrize('name', DETECTORS)
def test_detectors(name):
    init_default_scope('mmdet')
    import mmdet.models  # noqa: F401

    model = tiny.randomise(MODELS.build(tiny.stock_detector(*DETECTORS[name])))
    for module in model.modules():
        if hasattr(module, 'conv_offset'):  # zero at first, and with it what depends on an offset
            torch.nn.init.normal_(module.conv_offset.weight, std=0.1)
    losses, gradients, predictions = step_and_predict(model)
    our_losses, our_gradients, our_predictions = ours(step_and_predict, model)
    assert losses.keys() == our_losses.keys()
    for key in losses:
        torch.testing.assert_close(our_losses[key], losses[key], rtol=1e-6, atol=1e-6)
    assert gradients.keys() == our_gradients.keys()
    for key, gradient in gradients.items():
        error = (our_gradients[key] - gradient).norm() / gradient.norm().clamp(min=1e-6)
        assert error < 1e-5, (key, error)
    assert sum(len(found) for found in predictions) > 10
    for found, other in zip(predictions, our_predictions, strict=True):
        assert torch.equal(found.labels, other.labels)
        torch.testing.assert_close(other.bboxes, found.bboxes, rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(other.scores, found.scores, rtol=1e-5, atol=1e-6)
        assert 'masks' not in found or torch.equal(found.masks, other.masks)


def test_dyhead():
    """It passes the offsets of one level to the maps of the levels beside it."""
    dyhead = pytest.importorskip('mmdet.models.necks').DyHead
    neck = dyhead(16, 16, num_blocks=2, zero_init_offset=False)
    torch.manual_seed(0)
    for parameter in neck.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    maps = [torch.randn(2, 16, *size) for size in ((13, 22), (7, 11), (4, 6))]

    def flat(*maps):
        return torch.cat([out.flatten(1) for out in neck(maps)], dim=1)

    expected = outputs_and_gradients(flat, *maps)
    found = ours(outputs_and_gradients, flat, *maps)
    for left, right in zip(expected, found, strict=True):
        torch.testing.assert_close(right, left, rtol=1e-5, atol=1e-5)

"""What is predicted on an image does not depend on which images share its batch."""

import copy
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.registry import MODELS, init_default_scope

from cpvt_backbones.engine import PredictBySizeHook, predict_by_size

pytest.importorskip('mmdet')
pytest.importorskip('mmseg')
pytest.importorskip('mmpretrain')

PYRAMID = dict(
    embed_dims=(16, 16, 32, 32), depths=(1,) * 4, num_heads=(1, 1, 2, 2), mlp_ratios=(2,) * 4, sr_ratios=(4, 2, 1, 1)
)
ARCH = dict(embed_dims=32, depth=2, num_heads=2, mlp_ratio=2.0)
SIZES = [(64, 96), (90, 57), (64, 96), (33, 120)]
BACKBONES = {
    'MultiScaleCPVT': dict(type='MultiScaleCPVT', arch=ARCH, patch_size=8, position=dict(type='PEG')),
    'windows': dict(type='MultiScaleCPVT', arch=ARCH, patch_size=8, window_size=3, global_blocks=(1,)),
    'PyramidCPVT': dict(
        type='PyramidCPVT',
        arch=PYRAMID,
    ),
}
# No zeros where the pictures are black: padding has to differ from what a picture may hold.
PIXELS = dict(mean=[100.0] * 3, std=[60.0] * 3)


def neck(backbone):
    channels = list(MODELS.build(backbone).out_channels)
    return dict(type='FPN', in_channels=channels, out_channels=32, num_outs=len(channels))


def retinanet(backbone):
    init_default_scope('mmdet')
    anchors = dict(
        type='AnchorGenerator', octave_base_scale=4, scales_per_octave=2, ratios=[0.5, 1.0, 2.0], strides=[4, 8, 16, 32]
    )
    return MODELS.build(
        dict(
            type='RetinaNet',
            data_preprocessor=dict(type='DetDataPreprocessor', pad_size_divisor=32, **PIXELS),
            backbone=backbone,
            neck=neck(backbone),
            bbox_head=dict(
                type='RetinaHead',
                num_classes=3,
                in_channels=32,
                feat_channels=32,
                stacked_convs=1,
                anchor_generator=anchors,
                bbox_coder=dict(type='DeltaXYWHBBoxCoder'),
            ),
            test_cfg=ConfigDict(nms_pre=200, score_thr=0.0, nms=dict(type='nms', iou_threshold=0.5), max_per_img=50),
        )
    )


def semantic_fpn(backbone):
    init_default_scope('mmseg')
    import cpvt_backbones.preprocessors  # noqa: F401

    return MODELS.build(
        dict(
            type='EncoderDecoder',
            data_preprocessor=dict(type='ValidSizesSegDataPreProcessor', test_cfg=dict(size_divisor=32), **PIXELS),
            backbone=backbone,
            neck=neck(backbone),
            decode_head=dict(
                type='FPNHead',
                in_channels=[32] * 4,
                in_index=[0, 1, 2, 3],
                feature_strides=[4, 8, 16, 32],
                channels=16,
                num_classes=4,
                norm_cfg=dict(type='GN', num_groups=4),  # sees the whole map, padding included
                align_corners=False,
            ),
            test_cfg=ConfigDict(mode='whole'),
        )
    )


def batch_of(task, images):
    from mmdet.structures import DetDataSample
    from mmseg.structures import SegDataSample

    sample = DetDataSample if task is retinanet else SegDataSample
    shapes = [tuple(image.shape[1:]) for image in images]
    samples = [sample(metainfo=dict(img_shape=s, ori_shape=s, scale_factor=(1.0, 1.0))) for s in shapes]
    return dict(inputs=[image.clone() for image in images], data_samples=samples)


def predict(model, task, images):
    with torch.no_grad():
        found = model.test_step(batch_of(task, images))
    if task is retinanet:
        return [torch.cat((f.pred_instances.bboxes, f.pred_instances.scores[:, None]), dim=1) for f in found]
    return [f.seg_logits.data for f in found]


def furthest(left, right):
    return max(
        (a - b).abs().max().item() if a.shape == b.shape else float('inf') for a, b in zip(left, right, strict=True)
    )


@pytest.fixture
def images():
    return [torch.randint(0, 256, (3, *size), dtype=torch.uint8) for size in SIZES]


@pytest.mark.parametrize('backbone', BACKBONES)
@pytest.mark.parametrize('task', [retinanet, semantic_fpn])
def test_the_neighbours_do_not_matter(task, backbone, images):
    torch.manual_seed(0)
    model = task(BACKBONES[backbone]).eval()
    if task is retinanet:  # scores and boxes that differ from place to place
        torch.nn.init.normal_(model.bbox_head.retina_cls.weight, std=0.03)
        torch.nn.init.normal_(model.bbox_head.retina_reg.weight, std=0.01)
    plain = copy.deepcopy(model)
    predict_by_size(model)

    together = predict(model, task, images)
    backwards = predict(model, task, images[::-1])[::-1]
    alone = [predict(model, task, [image])[0] for image in images]
    assert furthest(together, alone) < 1e-3  # px for boxes
    assert furthest(together, backwards) < 1e-3
    assert all(part.shape[1:] == size for part, size in zip(together, SIZES, strict=True)) or task is retinanet

    # Without it they do, so the comparison above could fail.
    mixed = predict(plain, task, images)
    by_itself = [predict(plain, task, [image])[0] for image in images]
    assert furthest(mixed, by_itself) > 1e-2


def test_nothing_changes_for_images_of_one_size(images):
    torch.manual_seed(0)
    model = semantic_fpn(BACKBONES['MultiScaleCPVT']).eval()
    square = [images[0][:, :64, :64], images[1][:, :64, :32].repeat(1, 1, 2)]
    before = predict(model, semantic_fpn, square)
    assert furthest(before, predict(predict_by_size(model), semantic_fpn, square)) == 0


def test_the_model_stays_what_it_was(images):
    model = retinanet(BACKBONES['MultiScaleCPVT'])
    cls, weights = type(model), {name: value.clone() for name, value in model.state_dict().items()}
    runner = SimpleNamespace(model=model)
    hook = PredictBySizeHook()
    hook.before_val(runner)
    changed = type(model)
    hook.before_test(runner)  # a second time
    assert type(model) is changed
    assert isinstance(model, cls)
    assert changed.__name__ == cls.__name__
    assert model.state_dict().keys() == weights.keys()
    twin = copy.deepcopy(model)  # as an average of weights does
    twin.load_state_dict(weights)
    assert furthest(predict(twin.eval(), retinanet, images[:2]), predict(model.eval(), retinanet, images[:2])) == 0


def test_a_config_needs_one_line():
    from mmengine.registry import HOOKS

    assert isinstance(HOOKS.build(dict(type='PredictBySizeHook')), PredictBySizeHook)


def test_sizes_that_do_not_fit_are_refused(images):
    model = predict_by_size(semantic_fpn(BACKBONES['MultiScaleCPVT']).eval())
    batch = batch_of(semantic_fpn, images[:1])
    with pytest.raises(ValueError, match=r'img_shape.*\(64, 96\)'):
        model.predict(torch.zeros(1, 3, 32, 32), batch['data_samples'])


def test_other_modules_are_refused():
    with pytest.raises(TypeError, match='predict'):
        predict_by_size(torch.nn.Linear(1, 1))


def test_without_samples_the_batch_goes_through(images):
    """As mmseg's own predict allows."""
    model = semantic_fpn(BACKBONES['MultiScaleCPVT']).eval()
    batch = torch.randn(2, 3, 40, 56)
    with torch.no_grad():
        before = [sample.seg_logits.data for sample in model.predict(batch)]
        after = [sample.seg_logits.data for sample in predict_by_size(model).predict(batch)]
    assert furthest(before, after) == 0

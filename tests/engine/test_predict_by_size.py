"""What is predicted on an image does not depend on which images share its batch."""

import copy
import importlib
from types import SimpleNamespace

import pytest
import tiny
import torch
from mmengine.registry import HOOKS
from tiny import build

from cpvt_backbones.engine import predict_by_size

pytest.importorskip('mmdet')
pytest.importorskip('mmseg')
pytest.importorskip('mmpretrain')

PYRAMID = dict(
    embed_dims=(16, 16, 32, 32),
    depths=(1,) * 4,
    num_heads=(1, 1, 2, 2),
    mlp_ratios=(2,) * 4,
    sr_ratios=(4, 2, 1, 1),
)
ARCH = dict(embed_dims=32, depth=2, num_heads=2, mlp_ratio=2.0)
SIZES = [(64, 96), (90, 57), (64, 96), (33, 120)]
BACKBONES = {
    'MultiScaleCPVT': dict(
        type='MultiScaleCPVT', arch=ARCH, patch_size=8, position=dict(type='PEG')
    ),
    'windows': dict(
        type='MultiScaleCPVT', arch=ARCH, patch_size=8, window_size=3, global_blocks=(1,)
    ),
    'PyramidCPVT': dict(
        type='PyramidCPVT',
        arch=PYRAMID,
    ),
}
# No zeros where the pictures are black: padding has to differ from what a picture may hold.
PIXELS = dict(mean=[100.0] * 3, std=[60.0] * 3)


def retinanet(backbone):
    anchors = dict(scales_per_octave=2, ratios=[0.5, 1.0, 2.0])
    return build(
        tiny.retinanet(
            backbone,
            data_preprocessor=dict(pad_size_divisor=32, **PIXELS),
            test_cfg=dict(max_per_img=50),
            **{'bbox_head.anchor_generator': anchors},
        )
    )


def semantic_fpn(backbone):
    """Its GroupNorm sees the whole map, padding included."""
    import cpvt_backbones.engine.preprocessors  # noqa: F401

    preprocessor = dict(
        type='ValidSizesSegDataPreProcessor', test_cfg=dict(size_divisor=32), **PIXELS
    )
    return build(tiny.semantic_fpn(backbone, data_preprocessor=dict(_delete_=True, **preprocessor)))


def batch_of(task, images):
    from mmdet.structures import DetDataSample
    from mmseg.structures import SegDataSample

    sample = DetDataSample if task is retinanet else SegDataSample
    shapes = [tuple(image.shape[1:]) for image in images]
    samples = [
        sample(metainfo=dict(img_shape=s, ori_shape=s, scale_factor=(1.0, 1.0))) for s in shapes
    ]
    return dict(inputs=[image.clone() for image in images], data_samples=samples)


def predict(model, task, images):
    with torch.no_grad():
        found = model.test_step(batch_of(task, images))
    if task is retinanet:
        return [
            torch.cat((f.pred_instances.bboxes, f.pred_instances.scores[:, None]), dim=1)
            for f in found
        ]
    return [f.seg_logits.data for f in found]


def furthest(left, right):
    return max(
        (a - b).abs().max().item() if a.shape == b.shape else float('inf')
        for a, b in zip(left, right, strict=True)
    )


@pytest.fixture
def images():
    return [torch.randint(0, 256, (3, *size), dtype=torch.uint8) for size in SIZES]


@pytest.fixture
def double_precision(monkeypatch):
    """In fp32 a product of other sizes rounds differently, and boxes of nearly equal scores change
    places.
    """
    operators = importlib.import_module('mmcv.ops.nms').ext_module
    nms = operators.nms  # takes fp32 only
    monkeypatch.setattr(
        operators,
        'nms',
        lambda boxes, scores, **options: nms(boxes.float(), scores.float(), **options),
    )
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize('backbone', BACKBONES)
@pytest.mark.parametrize('task', [retinanet, semantic_fpn])
def test_the_neighbours_do_not_matter(task, backbone, images, double_precision):
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
    assert furthest(together, alone) < 1e-9  # px for boxes
    assert furthest(together, backwards) < 1e-9
    assert (
        all(part.shape[1:] == size for part, size in zip(together, SIZES, strict=True))
        or task is retinanet
    )

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
    hook = HOOKS.build(dict(type='PredictBySizeHook'))
    hook.before_val(runner)
    changed = type(model)
    hook.before_test(runner)  # a second time
    assert type(model) is changed
    assert isinstance(model, cls)
    assert changed.__name__ == cls.__name__
    assert model.state_dict().keys() == weights.keys()
    twin = copy.deepcopy(model)  # as an average of weights does
    twin.load_state_dict(weights)
    assert (
        furthest(
            predict(twin.eval(), retinanet, images[:2]),
            predict(model.eval(), retinanet, images[:2]),
        )
        == 0
    )


def test_sizes_that_do_not_fit_are_refused(images):
    model = predict_by_size(semantic_fpn(BACKBONES['MultiScaleCPVT']).eval())
    batch = batch_of(semantic_fpn, images[:1])
    with pytest.raises(ValueError, match=r'img_shape.*\(64, 96\)'):
        model.predict(torch.zeros(1, 3, 32, 32), batch['data_samples'])

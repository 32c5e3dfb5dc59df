"""What is predicted on an image does not depend on which images share its batch."""

import copy
import importlib
import pickle
from types import SimpleNamespace

import pytest
import tiny
import torch
from mmengine.registry import HOOKS
from tiny import build, predict

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


def retinanet(backbone, preprocessor):
    anchors = dict(scales_per_octave=2, ratios=[0.5, 1.0, 2.0])
    model = build(
        tiny.retinanet(
            backbone,
            data_preprocessor=dict(type=preprocessor, pad_size_divisor=32, **PIXELS),
            test_cfg=dict(max_per_img=50),
            **{'bbox_head.anchor_generator': anchors},
        )
    )
    # scores and boxes that differ from place to place
    torch.nn.init.normal_(model.bbox_head.retina_cls.weight, std=0.03)
    torch.nn.init.normal_(model.bbox_head.retina_reg.weight, std=0.01)
    return model


def semantic_fpn(backbone, preprocessor):
    """Its GroupNorm sees the whole map, padding included."""
    options = dict(_delete_=True, type=preprocessor, test_cfg=dict(size_divisor=32), **PIXELS)
    return build(tiny.semantic_fpn(backbone, data_preprocessor=options))


TASKS = {
    retinanet: ('DetDataPreprocessor', 'ValidSizesDetDataPreprocessor'),
    semantic_fpn: ('SegDataPreProcessor', 'ValidSizesSegDataPreProcessor'),
}


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
@pytest.mark.parametrize('task', TASKS)
def test_the_neighbours_do_not_matter(task, backbone, images, double_precision):
    plain, with_sizes = TASKS[task]
    model = task(BACKBONES[backbone], with_sizes)
    together = predict(model, images)
    backwards = predict(model, images[::-1])[::-1]
    alone = [predict(model, [image])[0] for image in images]
    assert furthest(together, alone) < 1e-9  # px for boxes
    assert furthest(together, backwards) < 1e-9
    if task is semantic_fpn:
        assert [part.shape[1:] for part in together] == SIZES

    # Without it they do in mmdet, and mmsegmentation refuses them.
    toolbox = task(BACKBONES[backbone], plain)
    toolbox.load_state_dict(model.state_dict())
    alone = [predict(toolbox, [image])[0] for image in images]
    if task is semantic_fpn:
        with pytest.raises(AssertionError, match='should be the same'):
            predict(toolbox, images)
    else:
        assert furthest(predict(toolbox, images), alone) > 1e-2
    assert furthest(predict(predict_by_size(toolbox), images), alone) < 1e-9


def test_a_batch_of_one_size_is_not_split(images):
    model = semantic_fpn(BACKBONES['PyramidCPVT'], TASKS[semantic_fpn][1])
    calls = []
    model.backbone.register_forward_pre_hook(lambda _, given: calls.append(len(given[0])))
    square = [images[0][:, :64, :64], images[1][:, :64, :32].repeat(1, 1, 2)]
    predict(model, square)
    assert calls == [2]
    predict(model, [*square, images[1]])
    assert calls == [2, 2, 1]


@pytest.mark.parametrize('preprocessor', TASKS[retinanet])
def test_the_model_stays_what_it_was(preprocessor, images):
    model = retinanet(BACKBONES['MultiScaleCPVT'], preprocessor)
    cls, weights = type(model), {name: value.clone() for name, value in model.state_dict().items()}
    runner = SimpleNamespace(model=model)
    hook = HOOKS.build(dict(type='PredictBySizeHook'))
    hook.before_val(runner)
    changed = type(model)
    hook.before_test(runner)  # a second time
    assert type(model) is changed
    assert isinstance(model, cls)
    assert changed.__name__ == cls.__name__ == 'RetinaNet'
    assert model.state_dict().keys() == weights.keys()
    found = predict(model, images[:2])
    # as an average of weights does, and torch.save of a model
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(twin) is changed
        assert furthest(predict(twin, images[:2]), found) == 0


def test_what_is_no_model_of_a_toolbox_is_refused():
    with pytest.raises(TypeError, match='mm model, got Linear'):
        predict_by_size(torch.nn.Linear(1, 1))


def test_images_without_samples_are_split_too():
    backbone = dict(type='CPVT', arch=ARCH, out_type='avg_featmap')
    preprocessor = dict(type='ValidSizesClsDataPreprocessor', _delete_=True, **PIXELS)
    model = build(tiny.image_classifier(backbone, data_preprocessor=preprocessor)).eval()
    images = [torch.randint(0, 256, (3, *size)) for size in SIZES]
    with torch.no_grad():
        together = model.test_step(dict(inputs=images, data_samples=None))
        alone = model.test_step(dict(inputs=images[3:], data_samples=None))
    assert torch.equal(together[3].pred_score, alone[0].pred_score)

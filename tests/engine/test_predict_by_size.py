"""What is predicted on an image does not depend on which images share its batch."""

import copy
import importlib
import time

import pytest
import tiny
import torch
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.registry import RUNNERS
from mmengine.runner import TestLoop, ValLoop
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
    together = predict(model, images, by_size=True)
    backwards = predict(model, images[::-1], by_size=True)[::-1]
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
    assert furthest(predict(toolbox, images, by_size=True), alone) < 1e-9


def test_a_batch_of_one_size_is_not_split(images):
    model = semantic_fpn(BACKBONES['PyramidCPVT'], TASKS[semantic_fpn][1])
    calls = []
    model.backbone.register_forward_pre_hook(lambda _, given: calls.append(len(given[0])))
    square = [images[0][:, :64, :64], images[1][:, :64, :32].repeat(1, 1, 2)]
    predict(model, square, by_size=True)
    assert calls == [2]
    predict(model, [*square, images[1]], by_size=True)
    assert calls == [2, 2, 1]


def classifier():
    backbone = dict(type='CPVT', arch=ARCH, out_type='avg_featmap')
    return tiny.image_classifier(backbone, data_preprocessor=PIXELS)


def test_images_without_samples_are_split_too(images):
    model = build(classifier()).eval()
    with torch.no_grad():
        together = predict_by_size(model.test_step, dict(inputs=images, data_samples=None))
        alone = model.test_step(dict(inputs=images[3:], data_samples=None))
    assert torch.equal(together[3].pred_score, alone[0].pred_score)


def test_the_views_of_an_image_stay_together(images):
    """Test-time augmentation: images of one size may have augmented views of two."""
    from mmpretrain.models import AverageClsScoreTTA
    from mmpretrain.structures import DataSample

    model = AverageClsScoreTTA(module=build(classifier())).eval()
    images[2] = torch.randint(0, 256, images[0].shape, dtype=torch.uint8)
    smaller = [image[:, :40, : 40 + 8 * (n == 2)] for n, image in enumerate(images)]
    views = [images, smaller]
    batch = dict(inputs=views, data_samples=[[DataSample() for _ in images] for _ in views])
    with torch.no_grad():
        together = predict_by_size(model.test_step, batch)
        for number, found in enumerate(together):
            one = {key: [values[number : number + 1] for values in batch[key]] for key in batch}
            (alone,) = model.test_step(one)
            assert torch.allclose(found.pred_score, alone.pred_score, atol=1e-6)


class Pictures(torch.utils.data.Dataset):
    metainfo = dict(classes=['a', 'b', 'c'])

    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        from mmpretrain.structures import DataSample

        sample = DataSample().set_gt_label(index % 3)
        return dict(inputs=self.images[index], data_samples=sample)


class Scores(BaseMetric):
    def process(self, data_batch, data_samples):
        self.results += [sample['pred_score'] for sample in data_samples]

    def compute_metrics(self, results):
        return dict(scores=torch.stack(results))


@pytest.mark.parametrize('kind', ['val', 'test'])
@pytest.mark.parametrize('runner_type', ['Runner', 'ResumableRunner', 'ResumableFlexibleRunner'])
def test_the_loops_of_a_runner_predict_by_size(runner_type, kind, images, tmp_path):
    """mmengine's own runner does if the config names the loop."""
    model = build(classifier())

    def scores(batch_size, **loop):
        loader = dict(
            batch_size=batch_size,
            dataset=Pictures(images),
            sampler=dict(type='DefaultSampler', shuffle=False),
        )
        options = {f'{kind}_dataloader': loader, f'{kind}_cfg': loop}
        runner = RUNNERS.get(runner_type)(
            copy.deepcopy(model),
            work_dir=str(tmp_path),
            **{**options, f'{kind}_evaluator': Evaluator(Scores())},
            default_scope='mmengine',
            log_level='WARNING',
            randomness=dict(seed=0),  # FlexibleRunner draws the weights anew
            experiment_name=f'by_size_{time.time_ns()}',
        )
        return getattr(runner, kind)()['scores']

    alone = scores(1)
    named = dict(type=f'{kind.title()}LoopBySize')
    padded = dict(type=dict(val=ValLoop, test=TestLoop)[kind].__name__)
    assert torch.allclose(scores(4, **named), alone, atol=1e-6)
    if runner_type == 'Runner':
        assert not torch.allclose(scores(4, **padded), alone, atol=1e-4)
    else:
        assert torch.allclose(scores(4), alone, atol=1e-6)
        assert torch.allclose(scores(4, **padded), alone, atol=1e-6)

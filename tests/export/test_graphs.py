"""Graphs, before export, compute the predictions of the toolbox."""

import math

import numpy as np
import pytest
import torch
from export_models import Toolbox, classifier, detector, rcnn, segmentor
from tiny import column, multi_scale, pyramid

from cpvt_backbones.export import Detections, Features, graph_of
from cpvt_backbones.export.exported import paste_mask
from cpvt_backbones.export.formats import EXAMPLE
from cpvt_backbones.export.graphs import Preprocess
from cpvt_backbones.export.verification import match_boxes

SIZES = [(17, 33), (64, 64), (97, 131)]


def pixels(height, width, batch=2):
    rng = np.random.default_rng(height * width)
    return [rng.integers(0, 256, (height, width, 3), np.uint8) for _ in range(batch)]


def to_tensor(images):
    return torch.from_numpy(np.stack(images).transpose(0, 3, 1, 2).copy())


def run(graph, images):
    with torch.no_grad():
        return dict(zip(graph.output_names, graph(to_tensor(images)), strict=True))


def detections_and_expected(model, images):
    """Detections of the graph, then of the toolbox, of each image."""
    outputs = {name: value.numpy() for name, value in run(graph_of(model), images).items()}
    counts = outputs.pop('counts')
    for place, expected in enumerate(Toolbox(model).predict(images)):
        count = int(counts[place])
        assert count == len(expected['boxes'])
        assert not any(outputs[name][place][count:].any() for name in ('boxes', 'scores', 'labels'))
        yield {name: value[place][:count] for name, value in outputs.items()}, expected


@pytest.mark.parametrize(
    'options',
    [
        {},
        dict(score_thr=0.0, max_per_img=700, nms_pre=100),
        dict(score_thr=0.3, nms_pre=1000),
        dict(min_bbox_size=12),
        dict(min_bbox_size=-1, nms=dict(type='nms', iou_threshold=0.1)),
        dict(nms=dict(type='nms', iou_threshold=0.3, class_agnostic=True)),
        dict(divisor=32),
    ],
    ids=str,
)
def test_detections_equal_those_of_mmdet(options):
    pytest.importorskip('mmdet')
    model = detector(**options)
    found = 0
    for size in SIZES:
        for prediction, expected in detections_and_expected(model, pixels(*size)):
            assert match_boxes(prediction, expected) < 2e-3
            distinct = {tuple(box) for box in expected['boxes'].tolist()}
            assert len(distinct) > len(expected['boxes']) // 4
            found += len(expected['boxes'])
    assert found > 30


@pytest.mark.parametrize('config', ['mask_rcnn/mask-rcnn', 'cascade_rcnn/cascade-mask-rcnn'])
def test_instances_equal_those_of_mmdet(config):
    model = rcnn(config)
    for size in SIZES:
        for found, expected in detections_and_expected(model, pixels(*size)):
            masks = [
                paste_mask(mask, box, size) >= 0.5
                for mask, box in zip(found['masks'], found['boxes'], strict=True)
            ]
            assert match_boxes(found | dict(masks=np.array(masks)), expected) < 2e-3
            assert len(masks) > 3
            assert expected['masks'].any(axis=(1, 2)).sum() > len(masks) // 2


def test_images_without_detections():
    pytest.importorskip('mmdet')
    outputs = run(graph_of(detector(score_thr=0.999)), pixels(40, 50))
    assert not any(value.any() for value in outputs.values())


@pytest.mark.parametrize(
    'options',
    [
        {},
        dict(upernet=True),
        dict(classes=1),
        dict(padding=dict(size_divisor=32), pad_val=9),
        dict(size_divisor=32),
    ],
    ids=str,
)
def test_class_maps_equal_those_of_mmseg(options):
    pytest.importorskip('mmseg')
    model = segmentor(**options)
    toolbox = Toolbox(model)
    for size in SIZES:
        images = pixels(*size)
        expected = toolbox.logits(images)
        logits = run(graph_of(model, logits=True), images)['logits']
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
        class_map = run(graph_of(model), images)['class_map']
        assert class_map.dtype == torch.int64
        same = class_map == torch.stack([toolbox.to_classes(one) for one in expected])
        assert same.float().mean() > 0.999
        assert len(class_map.unique()) > 1


def test_scores_equal_those_of_mmpretrain_from_pixels_and_from_normalised_images():
    pytest.importorskip('mmpretrain')
    model = classifier()
    for size in SIZES:
        images = pixels(*size)
        scores = run(graph_of(model), images)['scores']
        expected = np.stack([one['scores'] for one in Toolbox(model).predict(images)])
        np.testing.assert_allclose(scores.numpy(), expected, atol=1e-5)
        assert expected.std() > 0.01
        inputs = model.data_preprocessor(dict(inputs=to_tensor(images)))['inputs']
        with torch.no_grad():
            (from_inputs,) = graph_of(model, pixels=False)(inputs)
        torch.testing.assert_close(from_inputs, scores)


def test_model_is_unchanged():
    pytest.importorskip('mmdet')
    model = detector().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    graph_of(model)
    assert model.training and all(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize('build', [column, multi_scale, pyramid])
def test_strides_and_channels_of_a_backbone(build):
    graph = Features(build())
    outputs = graph(graph.example(batch=2, height=70, width=50))
    assert len(outputs) == len(graph.output_names)
    strides, channels = graph.settings['strides'], graph.settings['channels']
    for output, stride, width in zip(outputs, strides, channels, strict=True):
        assert output.shape == (2, width, -(-70 // stride), -(-50 // stride))


def rcnn_with_another_extractor():
    model = rcnn()
    model.roi_head.bbox_roi_extractor = torch.nn.Identity()
    return graph_of(model)


def detector_with_another_head():
    model = detector()
    model.bbox_head = torch.nn.Identity()
    return Detections(model)


def classifier_of_several_labels():
    from mmpretrain.models import MultiLabelLinearClsHead

    model = classifier()
    model.head = MultiLabelLinearClsHead(num_classes=7, in_channels=24)
    return graph_of(model)  # its scores are no softmax


SLIDE = dict(mode='slide', crop_size=(32, 32), stride=(16, 16))
SOFT = dict(type='soft_nms', iou_threshold=0.5)
TWO_THRESHOLDS = dict(type='nms', iou_threshold=0.5, score_threshold=0.1)


@pytest.mark.parametrize(
    ('build', 'words'),
    [
        (lambda: graph_of(detector(nms_pre=-1)), 'test_cfg.nms_pre must be .* >= 1, got -1'),
        (lambda: graph_of(detector(max_per_img=-1)), 'test_cfg.max_per_img must be .*, got -1'),
        (lambda: graph_of(detector(nms=SOFT)), r"nms must be .*got \{'type': 'soft_nms'"),
        (lambda: graph_of(detector(nms=TWO_THRESHOLDS)), 'nms must be .*score_threshold'),
        (lambda: graph_of(detector(), logits=True), 'logits must be False .* got True for Retina'),
        (lambda: graph_of(detector(), part='neck'), r"\['backbone', 'model'\], got 'neck'"),
        (detector_with_another_head, 'a RetinaHead, got RetinaNet with Identity'),
        (rcnn_with_another_extractor, r"one of \['SingleRoIExtractor'\], got 'Identity'"),
        (classifier_of_several_labels, r'model\.head must give .*MultiLabelLinearClsHead'),
        (lambda: graph_of(segmentor(test_cfg=SLIDE)), "test_cfg.mode must be 'whole', got 'slide'"),
        (
            lambda: Preprocess.of(segmentor(padding=dict(size=(64, 64))).data_preprocessor),
            r'test_cfg must not set a size, got \(64, 64\)',
        ),
        (lambda: Features(torch.nn.Linear(1, 1)), 'a backbone of this package.* got Linear'),
        (
            lambda: Features(column(with_dist_token=True, out_type='cls_token')),
            'distillation token',
        ),
        (
            lambda: Features(column(out_type='with_cls_token')),
            "a map without the class token .*, got 'with_cls_token'",
        ),
    ],
)
def test_other_models_and_settings_are_refused(build, words):
    for toolbox in ('mmdet', 'mmseg', 'mmpretrain'):
        pytest.importorskip(toolbox)
    with pytest.raises(ValueError, match=words):
        build()


@pytest.mark.parametrize('side', ['height', 'width'])
def test_no_crop_or_padding_is_idle_in_the_example(side):
    """AOTInductor would leave it out, and files would have wrong shapes at other sizes."""
    length = EXAMPLE[side]
    cells = {stride: math.ceil(length / stride) for stride in (4, 8, 16, 32)}
    assert length % 16 and all(cells[16] % window for window in (2, 3, 4, 5, 6, 7, 14))
    assert all(cells[stride] % 7 for stride in cells)  # windows of Twins-SVT
    assert all(16 // stride * cells[16] > cells[stride] for stride in (4, 8))

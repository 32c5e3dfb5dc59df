"""Graphs, before export, compute the predictions of the toolbox."""

import numpy as np
import pytest
import torch
from export_models import Toolbox, classifier, detector, rcnn, segmentor
from tiny import column, multi_scale, pyramid

from cpvt_backbones.export import Detections, Features, graph_of
from cpvt_backbones.export.exported import paste_mask
from cpvt_backbones.export.graphs import Preprocess
from cpvt_backbones.export.verification import match_boxes

SIZES = [(17, 33), (64, 64), (97, 131)]


def pixels(height, width, batch=2):
    rng = np.random.default_rng(height * width)
    return [rng.integers(0, 256, (height, width, 3), np.uint8) for _ in range(batch)]


def run(graph, images):
    with torch.no_grad():
        batch = torch.from_numpy(np.stack(images).transpose(0, 3, 1, 2).copy())
        return dict(zip(graph.output_names, graph(batch), strict=True))


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
    graph = graph_of(model)
    found = 0
    for size in SIZES:
        images = pixels(*size)
        outputs = run(graph, images)
        assert outputs['boxes'].shape == (2, model.test_cfg.max_per_img, 4)
        for place, expected in enumerate(Toolbox(model).predict(images)):
            count = int(outputs['counts'][place])
            assert count == len(expected['boxes'])
            prediction = {
                name: outputs[name][place].numpy() for name in ('boxes', 'scores', 'labels')
            }
            assert (
                match_boxes({name: value[:count] for name, value in prediction.items()}, expected)
                < 2e-3
            )
            assert not any(value[count:].any() for value in prediction.values())
            found += count
            assert len({tuple(box) for box in expected['boxes'].tolist()}) > count // 4, (
                'boxes are not distinct'
            )
    assert found > 30


@pytest.mark.parametrize(
    'config',
    ['mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py', 'cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco.py'],
)
def test_instances_equal_those_of_mmdet(config):
    model = rcnn(config)
    graph, toolbox = graph_of(model), Toolbox(model)
    for size in SIZES:
        images = pixels(*size)
        outputs = run(graph, images)
        for place, expected in enumerate(toolbox.predict(images)):
            count = int(outputs['counts'][place])
            assert count == len(expected['boxes']) > 3
            found = {
                name: value[place][:count].numpy()
                for name, value in outputs.items()
                if name != 'counts'
            }
            masks = [
                paste_mask(mask, box, size) >= 0.5
                for mask, box in zip(found['masks'], found['boxes'], strict=True)
            ]
            assert match_boxes(found | dict(masks=np.array(masks)), expected) < 2e-3
            assert expected['masks'].any(axis=(1, 2)).sum() > count // 2


def test_unsupported_two_stage_heads_are_refused():
    model = rcnn()
    model.roi_head.bbox_roi_extractor = torch.nn.Identity()
    with pytest.raises(
        ValueError,
        match=r"bbox_roi_extractor\) must be one of \['SingleRoIExtractor'\], got 'Identity'",
    ):
        graph_of(model)


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


def test_scores_equal_those_of_mmpretrain():
    pytest.importorskip('mmpretrain')
    model = classifier()
    for size in SIZES:
        images = pixels(*size)
        scores = run(graph_of(model), images)['scores']
        expected = np.stack([one['scores'] for one in Toolbox(model).predict(images)])
        np.testing.assert_allclose(scores.numpy(), expected, atol=1e-5)
        assert expected.std() > 0.01


def test_normalised_input():
    pytest.importorskip('mmpretrain')
    model = classifier()
    images = torch.from_numpy(np.stack(pixels(30, 40)).transpose(0, 3, 1, 2).copy())
    inputs = model.data_preprocessor(dict(inputs=images))['inputs']
    with torch.no_grad():
        (from_pixels,) = graph_of(model)(images)
        (from_inputs,) = graph_of(model, pixels=False)(inputs)
    torch.testing.assert_close(from_inputs, from_pixels)


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
    (images,) = (graph.example(batch=2, height=70, width=50),)
    outputs = graph(images)
    assert len(outputs) == len(graph.output_names) == len(graph.settings['strides'])
    for output, stride, channels in zip(
        outputs, graph.settings['strides'], graph.settings['channels'], strict=True
    ):
        assert output.shape == (2, channels, -(-70 // stride), -(-50 // stride))


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(nms_pre=-1), r'test_cfg.nms_pre must be an integer >= 1, got -1'),
        (dict(max_per_img=-1), r'test_cfg.max_per_img must be an integer >= 1, got -1'),
        (
            dict(nms=dict(type='soft_nms', iou_threshold=0.5)),
            r"test_cfg.nms must be .*got \{'type': 'soft_nms'",
        ),
        (
            dict(nms=dict(type='nms', iou_threshold=0.5, score_threshold=0.1)),
            r'test_cfg.nms must be .*score_threshold',
        ),
    ],
)
def test_unsupported_test_settings_are_refused(options, message):
    pytest.importorskip('mmdet')
    with pytest.raises(ValueError, match=message):
        graph_of(detector(**options))


def test_other_models_are_refused():
    pytest.importorskip('mmdet')
    pytest.importorskip('mmseg')
    model = detector()
    model.bbox_head = torch.nn.Identity()
    with pytest.raises(
        ValueError, match='must be a detector with a RetinaHead, got RetinaNet with Identity'
    ):
        Detections(model)
    with pytest.raises(ValueError, match=r"test_cfg.mode must be 'whole', got 'slide'"):
        graph_of(segmentor(test_cfg=dict(mode='slide', crop_size=(32, 32), stride=(16, 16))))
    with pytest.raises(
        ValueError,
        match='logits must be False unless the model is a segmentor, got True for RetinaNet',
    ):
        graph_of(detector(), logits=True)
    with pytest.raises(
        ValueError, match=r"part must be one of \['backbone', 'model'\], got 'neck'"
    ):
        graph_of(detector(), part='neck')
    with pytest.raises(ValueError, match='model must be a backbone of this package.* got Linear'):
        Features(torch.nn.Linear(1, 1))
    with pytest.raises(ValueError, match='distillation token'):
        Features(column(with_dist_token=True, out_type='cls_token'))


def test_resizing_preprocessors_are_refused():
    pytest.importorskip('mmseg')
    model = segmentor(padding=dict(size=(64, 64)))
    with pytest.raises(ValueError, match=r'test_cfg must not set a size, got \(64, 64\)'):
        Preprocess.of(model.data_preprocessor)


def test_multi_label_classifiers_are_refused():
    """Its scores are no softmax."""
    pytest.importorskip('mmpretrain')
    from mmpretrain.models import MultiLabelLinearClsHead

    model = classifier()
    model.head = MultiLabelLinearClsHead(num_classes=7, in_channels=24)
    with pytest.raises(
        ValueError, match=r'model\.head must give .* one class.*MultiLabelLinearClsHead'
    ):
        graph_of(model)

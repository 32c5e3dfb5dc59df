"""One exported file agrees with PyTorch at every size and batch size."""

import importlib.util
import json

import numpy as np
import pytest
import torch
from export_models import Toolbox, classifier, detector, rcnn, segmentor
from tiny import DENSE, POSITIONS, TWO_BLOCKS, column, multi_scale, pyramid, randomise

from cpvt_backbones.export import Features, export, features_of, graph_of, reference_of, verify
from cpvt_backbones.export.exported import ExportedModel
from cpvt_backbones.export.formats import EXPORT_FORMATS
from cpvt_backbones.export.graphs import Preprocess
from cpvt_backbones.export.verification import VERIFIED_SIZES, match_boxes

LARGE = (800, 1344)
PEG = POSITIONS['peg']


def check(graph, reference, path, *, sizes=(*VERIFIED_SIZES, LARGE), batches=(1, 3), **options):
    """Export, open and compare; returns the opened file."""
    export(graph, path, **options)
    exported = ExportedModel(path, device='cpu')
    quick = [size for size in sizes if size != LARGE]
    comparisons = list(verify(exported, reference, sizes=quick, batches=batches))
    if LARGE in sizes:
        comparisons += verify(exported, reference, sizes=[LARGE], batches=[1])
    assert [one for one in comparisons if not one.agrees] == []
    assert all(one.compared for one in comparisons)
    return exported


def check_backbone(backbone, path, **options):
    # Normalise as in training: maps without a norm behind them scale with the images.
    preprocess = Preprocess(mean=[120.0] * 3, std=[60.0] * 3)
    graph = Features(randomise(backbone), preprocess=preprocess)
    return check(graph, features_of(graph, backbone), path, **options)


def check_model(model, path, *, logits=False, **options):
    graph = graph_of(model, logits=logits)
    return check(graph, reference_of(graph, Toolbox(model)), path, **options)


def test_backbone_in_onnx(tmp_path):
    """Windows larger than some grids, complete and padded windows, prefix tokens and coordinates of
    the whole grid.
    """
    pytest.importorskip('onnxscript')
    options = dict(with_cls_token=True, num_registers=2, position=[POSITIONS['rope_dinov3'], PEG])
    backbone = multi_scale(arch=TWO_BLOCKS, window_size=3, global_blocks=(1,), **options)
    exported = check_backbone(
        backbone, tmp_path / 'model.onnx', sizes=[*VERIFIED_SIZES, (1, 1), LARGE]
    )
    assert exported.metadata['strides'] == [4, 8, 16, 32]
    assert exported.metadata['input'] == 'normalised'
    pytest.importorskip('openvino')
    in_openvino = ExportedModel(tmp_path / 'model.onnx', runtime='openvino')
    assert (
        in_openvino.metadata == exported.metadata
        and in_openvino.fingerprint != exported.fingerprint
    )
    graph = Features(backbone, preprocess=Preprocess(mean=[120.0] * 3, std=[60.0] * 3))
    assert all(
        one.agrees
        for one in verify(
            in_openvino, features_of(graph, backbone), sizes=[(1, 1), *VERIFIED_SIZES]
        )
    )
    bfloat16 = ExportedModel(tmp_path / 'model.onnx', runtime='openvino-bfloat16')
    for one in verify(bfloat16, features_of(graph, backbone), sizes=[(64, 96)]):
        assert one.difference < 0.1


def test_detector_in_onnx(tmp_path):
    pytest.importorskip('onnxscript')
    pytest.importorskip('mmdet')
    exported = check_model(
        detector(), tmp_path / 'model.onnx', settings=dict(classes=['a', 'b', 'c'])
    )
    assert exported.metadata['score_threshold'] == 0.05
    assert exported.metadata['classes'] == exported.classes == ['a', 'b', 'c']
    assert exported.metadata['versions']['torch'] == torch.__version__

    import onnx

    graph = onnx.load(tmp_path / 'model.onnx').graph
    operators = [node.op_type for node in graph.node]
    assert operators.count('NonMaxSuppression') == 1
    assert operators.count('MultiHeadAttention') == 2 and 'Softmax' not in operators, (
        'one operator a block'
    )
    sizes = [dim.dim_param or dim.dim_value for dim in graph.input[0].type.tensor_type.shape.dim]
    assert sizes == ['batch', 3, 'height', 'width']


def test_segmentor_in_onnx(tmp_path):
    pytest.importorskip('onnxscript')
    pytest.importorskip('mmseg')
    exported = check_model(segmentor(), tmp_path / 'model.onnx', sizes=VERIFIED_SIZES)
    assert exported.metadata['input'] == 'pixels'


def test_classifier_in_onnx(tmp_path):
    pytest.importorskip('onnxscript')
    pytest.importorskip('mmpretrain')
    check_model(classifier(), tmp_path / 'model.onnx', sizes=VERIFIED_SIZES)


def test_classifier_as_torch_export(tmp_path):
    pytest.importorskip('mmpretrain')
    check_model(classifier(), tmp_path / 'model.pt2', format='torch_export', sizes=VERIFIED_SIZES)


@pytest.mark.slow
@pytest.mark.parametrize('name', DENSE)
def test_every_backbone_in_onnx(name, tmp_path):
    check_backbone(DENSE[name](), tmp_path / 'model.onnx')


@pytest.mark.slow
def test_rotated_keys_of_a_pyramid_in_onnx(tmp_path):
    check_backbone(pyramid(position=POSITIONS['rope_mixed']), tmp_path / 'model.onnx')


@pytest.mark.slow
@pytest.mark.parametrize('position', POSITIONS)
@pytest.mark.parametrize('format', ['onnx', 'torch_export'])
def test_every_encoding(position, format, tmp_path):
    path = tmp_path / f'model{EXPORT_FORMATS[format]}'
    check_backbone(column(position=POSITIONS[position]), path, format=format, sizes=VERIFIED_SIZES)


@pytest.mark.slow
@pytest.mark.parametrize('format', EXPORT_FORMATS)
@pytest.mark.parametrize('logits', [False, True])
def test_segmentor_in_every_format(format, logits, tmp_path):
    path = tmp_path / f'model{EXPORT_FORMATS[format]}'
    check_model(segmentor('pyramid'), path, format=format, logits=logits)


@pytest.mark.slow
@pytest.mark.parametrize('format', EXPORT_FORMATS)
@pytest.mark.parametrize('backbone', ['windowed', 'pyramid'])
def test_detector_in_every_format(format, backbone, tmp_path):
    path = tmp_path / f'model{EXPORT_FORMATS[format]}'
    exported = check_model(detector(backbone, divisor=32), path, format=format)
    graph = graph_of(detector(backbone, divisor=32))
    large = list(
        verify(
            exported, reference_of(graph, Toolbox(detector(backbone, divisor=32))), sizes=[LARGE]
        )
    )
    assert [one.batch for one in large] == [1, 3] and all(one.agrees for one in large)


@pytest.mark.slow
@pytest.mark.parametrize(
    'build',
    [lambda: multi_scale(window_size=3), pyramid, column],
    ids=['windows', 'pyramid', 'column'],
)
def test_backbones_as_aoti(build, tmp_path):
    check_backbone(
        build(), tmp_path / 'model.pt2', format='aoti', sizes=[*VERIFIED_SIZES, (1, 1), LARGE]
    )


@pytest.mark.slow
@pytest.mark.parametrize('opset', [18, 21, 23])
def test_portable_files(opset, tmp_path):
    import onnx

    check_model(detector('windowed'), tmp_path / 'model.onnx', opset=opset, portable=True)
    graph = onnx.load(tmp_path / 'model.onnx').graph
    assert {node.domain for node in graph.node} == {''}
    assert ('Attention' in {node.op_type for node in graph.node}) == (opset == 23)


@pytest.mark.slow
@pytest.mark.parametrize('format', EXPORT_FORMATS)
@pytest.mark.parametrize(
    'config', ['mask_rcnn/mask-rcnn_r50', 'cascade_rcnn/cascade-mask-rcnn_r50']
)
def test_two_stage_detectors(config, format, tmp_path):
    model = rcnn(f'{config}_fpn_1x_coco.py')
    path = tmp_path / f'model{EXPORT_FORMATS[format]}'
    exported = check_model(model, path, format=format, sizes=VERIFIED_SIZES)
    assert exported.metadata['mask_threshold'] == 0.5
    if format == 'onnx' and importlib.util.find_spec('openvino'):
        found = verify(
            ExportedModel(path, runtime='openvino'), reference_of(graph_of(model), Toolbox(model))
        )
        assert all(one.agrees for one in found)


@pytest.mark.slow
@pytest.mark.parametrize('format', EXPORT_FORMATS)
def test_upernet(format, tmp_path):
    path = tmp_path / f'model{EXPORT_FORMATS[format]}'
    check_model(
        segmentor(upernet=True),
        path,
        logits=True,
        format=format,
        sizes=[*VERIFIED_SIZES, (1, 1), LARGE],
    )


# -- verification
# --------------------------------------------------------------------------------------------------


class File:
    """Stands for an exported file; returns given predictions."""

    def __init__(self, task, predict):
        self.task, self.predict, self.metadata = task, predict, dict(outputs=[])


def compare(task, found, expected):
    (one,) = verify(
        File(task, lambda _: [found]), lambda _: [expected], sizes=[(5, 7)], batches=[1]
    )
    return one


BOXES = dict(
    boxes=np.array([[0, 0, 9, 9], [0, 0, 5, 5], [20, 20, 30, 30]], np.float32),
    scores=np.array([0.9, 0.9, 0.4], np.float32),
    labels=np.array([1, 1, 0]),
)


def boxes(**changes):
    return {name: changes.get(name, value) for name, value in BOXES.items()}


def test_boxes_of_equal_score_may_swap():
    order = [1, 0, 2]
    one = compare('detection', {name: value[order] for name, value in BOXES.items()}, BOXES)
    assert one.agrees and one.difference == 0 and one.compared == 3


@pytest.mark.parametrize(
    'wrong',
    [
        boxes(boxes=BOXES['boxes'] + np.float32(0.02)),
        boxes(labels=np.array([1, 0, 0])),
        boxes(scores=np.array([0.9, 0.9, 0.39], np.float32)),
        {name: value[:2] for name, value in BOXES.items()},
        boxes(boxes=BOXES['boxes'][[0, 0, 2]]),
    ],
    ids=['moved', 'label', 'score', 'missing', 'twice'],
)
def test_different_boxes_disagree(wrong):
    assert not compare('detection', wrong, BOXES).agrees
    assert len(wrong['boxes']) == 2 or match_boxes(wrong, BOXES) > 1e-2


def test_different_maps_and_features_disagree():
    class_map = np.zeros((100, 100), int)
    other = class_map.copy()
    other[0, :9] = 1
    assert compare('segmentation', dict(seg_map=other), dict(seg_map=class_map)).agrees
    other[0, :11] = 1
    assert not compare('segmentation', dict(seg_map=other), dict(seg_map=class_map)).agrees
    assert not compare('segmentation', dict(seg_map=class_map[:-1]), dict(seg_map=class_map)).agrees
    features = [np.ones((3, 4, 5), np.float32), np.zeros((3, 2, 2), np.float32)]
    for change, agrees in ((5e-5, True), (2e-4, False), (np.nan, False)):
        found = [features[0], features[1] + np.float32(change)]
        assert compare('features', dict(features=found), dict(features=features)).agrees == agrees
    assert not compare(
        'features', dict(features=[features[0][:, :1], features[1]]), dict(features=features)
    ).agrees
    assert not compare('classification', dict(scores=np.ones(3)), dict(scores=np.zeros(3))).agrees


# -- errors
# --------------------------------------------------------------------------------------------------


def test_wrong_arguments_are_refused(tmp_path):
    graph = Features(column())
    with pytest.raises(
        ValueError, match=r"format must be one of \['aoti', 'onnx', 'torch_export'\], got 'trt'"
    ):
        export(graph, tmp_path / 'model.onnx', format='trt')
    with pytest.raises(
        ValueError, match=r"path must have the suffix .pt2 for format='aoti', got .*model.onnx"
    ):
        export(graph, tmp_path / 'model.onnx', format='aoti')


def test_models_that_branch_on_sizes_are_refused(tmp_path):
    graph = Features(column())
    whole = graph.model.forward
    graph.model.forward = lambda images: whole(torch.zeros(1, 3, int(images.shape[2]), 40))
    with pytest.raises(ValueError, match='CPVT cannot be recorded for every size'):
        export(graph, tmp_path / 'model.onnx')
    assert not list(tmp_path.iterdir())


def test_settings_are_plain_data():
    settings = Features(column()).settings
    assert json.loads(json.dumps(settings)) == settings


def test_other_opsets_are_refused(tmp_path):
    pytest.importorskip('onnxscript')
    with pytest.raises(ValueError, match=r'opset must be one of \(18, 21, 23\), got 17'):
        export(Features(column()), tmp_path / 'model.onnx', opset=17)
    assert not (tmp_path / 'model.onnx').exists()

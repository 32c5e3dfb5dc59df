"""One exported file agrees with PyTorch at every size and batch size."""

import numpy as np
import pytest
import torch
from export_models import Toolbox, classifier, detector, rcnn, segmentor
from tiny import DENSE, POSITIONS, TWO_BLOCKS, column, multi_scale, only, pyramid, randomise

from cpvt_backbones.export import Features, export, features_of, graph_of, reference_of, verify
from cpvt_backbones.export.exported import ExportedModel
from cpvt_backbones.export.formats import EXPORT_FORMATS
from cpvt_backbones.export.graphs import Preprocess
from cpvt_backbones.export.verification import VERIFIED_SIZES, match_boxes

LARGE = (800, 1344)


def assert_agrees(exported, reference, *, sizes=VERIFIED_SIZES, batches=(1, 3)):
    comparisons = list(verify(exported, reference, sizes=sizes, batches=batches))
    assert [one for one in comparisons if not one.agrees] == []
    assert all(one.compared for one in comparisons)


def check(graph, reference, path, *, large_batches=(), **options):
    """Export, open and compare; returns the opened file."""
    export(graph, path, **options)
    exported = ExportedModel(path, device='cpu')
    assert_agrees(exported, reference)
    assert_agrees(exported, reference, sizes=[LARGE], batches=large_batches)
    return exported


def features(backbone):
    """Normalised as in training: maps without a norm behind them scale with the images."""
    preprocess = Preprocess(mean=[120.0] * 3, std=[60.0] * 3)
    graph = Features(randomise(backbone), preprocess=preprocess)
    return graph, features_of(graph, backbone)


def whole_model(model, **options):
    graph = graph_of(model, **options)
    return graph, reference_of(graph, Toolbox(model))


@pytest.mark.full
def test_backbone_in_onnx(tmp_path):
    """Windows larger than some grids, complete and padded windows, prefix tokens and coordinates of
    the whole grid.
    """
    pytest.importorskip('onnxscript')
    positions = [POSITIONS['rope_dinov3'], POSITIONS['peg']]
    options = dict(with_cls_token=True, num_registers=2, position=positions)
    backbone = multi_scale(arch=TWO_BLOCKS, window_size=3, global_blocks=(1,), **options)
    graph, reference = features(backbone)
    path = tmp_path / 'model.onnx'
    exported = check(graph, reference, path, large_batches=[1])
    assert_agrees(exported, reference, sizes=[(1, 1)])
    assert exported.metadata['strides'] == [4, 8, 16, 32]
    assert exported.metadata['input'] == 'normalised'
    pytest.importorskip('openvino')
    in_openvino = ExportedModel(path, runtime='openvino')
    assert in_openvino.metadata == exported.metadata
    assert in_openvino.fingerprint != exported.fingerprint
    assert_agrees(in_openvino, reference, sizes=[(1, 1), *VERIFIED_SIZES])
    bfloat16 = ExportedModel(path, runtime='openvino-bfloat16')
    for one in verify(bfloat16, reference, sizes=[(64, 96)]):
        assert one.difference < 0.1


@pytest.mark.full
def test_detector_in_onnx(tmp_path):
    pytest.importorskip('onnxscript')
    onnx = pytest.importorskip('onnx')
    path = tmp_path / 'model.onnx'
    exported = check(*whole_model(detector()), path, settings=dict(classes=['a', 'b', 'c']))
    assert exported.metadata['score_threshold'] == 0.05
    assert exported.metadata['classes'] == exported.classes == ['a', 'b', 'c']
    assert exported.metadata['versions']['torch'] == torch.__version__
    graph = onnx.load(path).graph
    operators = [node.op_type for node in graph.node]
    assert operators.count('NonMaxSuppression') == 1
    assert operators.count('MultiHeadAttention') == 2, 'one operator a block'
    assert 'Softmax' not in operators
    sizes = [dim.dim_param or dim.dim_value for dim in graph.input[0].type.tensor_type.shape.dim]
    assert sizes == ['batch', 3, 'height', 'width']


# -- every model in every format
MODELS = {
    'segmentor': lambda: whole_model(segmentor()),
    'classifier': lambda: whole_model(classifier()),
    'pyramid-segmentor': lambda: whole_model(segmentor('pyramid')),
    'pyramid-segmentor-logits': lambda: whole_model(segmentor('pyramid'), logits=True),
    'upernet': lambda: whole_model(segmentor(upernet=True), logits=True),
    'windowed-detector': lambda: whole_model(detector('windowed', divisor=32)),
    'pyramid-detector': lambda: whole_model(detector('pyramid', divisor=32)),
    'mask-rcnn': lambda: whole_model(rcnn()),
    'cascade-rcnn': lambda: whole_model(rcnn('cascade_rcnn/cascade-mask-rcnn')),
}
QUICK = [('segmentor', 'onnx'), ('classifier', 'onnx'), ('classifier', 'torch_export')]


def path_of(folder, format):
    if format == 'onnx':
        pytest.importorskip('onnxscript')
    return folder / f'model{EXPORT_FORMATS[format]}'


@pytest.mark.parametrize(('name', 'format'), only(('classifier', 'onnx'), of=QUICK))
def test_small_models(name, format, tmp_path):
    exported = check(*MODELS[name](), path_of(tmp_path, format), format=format)
    assert exported.metadata['input'] == 'pixels'


@pytest.mark.slow
@pytest.mark.parametrize('format', EXPORT_FORMATS)
@pytest.mark.parametrize('name', MODELS)
def test_every_model(name, format, tmp_path):
    path = path_of(tmp_path, format)
    graph, reference = MODELS[name]()
    if 'rcnn' not in name:
        check(graph, reference, path, format=format, large_batches=[1, 3])
        return
    exported = check(graph, reference, path, format=format)
    assert exported.metadata['mask_threshold'] == 0.5
    if format == 'onnx':
        pytest.importorskip('openvino')
        assert_agrees(ExportedModel(path, runtime='openvino'), reference)


BACKBONES = {**DENSE, 'rotated_keys': lambda: pyramid(position=POSITIONS['rope_mixed'])}


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'format'),
    [(name, 'onnx') for name in BACKBONES]
    + [(name, 'aoti') for name in ('multi_scale_windowed', 'pyramid', 'column')],
)
def test_every_backbone(name, format, tmp_path):
    graph, reference = features(BACKBONES[name]())
    path = path_of(tmp_path, format)
    exported = check(graph, reference, path, format=format, large_batches=[1])
    assert_agrees(exported, reference, sizes=[(1, 1)])


@pytest.mark.slow
@pytest.mark.parametrize('position', POSITIONS)
@pytest.mark.parametrize('format', ['onnx', 'torch_export'])
def test_every_encoding(position, format, tmp_path):
    backbone = column(position=POSITIONS[position])
    check(*features(backbone), path_of(tmp_path, format), format=format)


@pytest.mark.slow
@pytest.mark.parametrize('opset', [18, 21, 23])
def test_portable_files(opset, tmp_path):
    onnx = pytest.importorskip('onnx')
    path = tmp_path / 'model.onnx'
    check(*whole_model(detector('windowed')), path, opset=opset, portable=True)
    graph = onnx.load(path).graph
    assert {node.domain for node in graph.node} == {''}
    assert ('Attention' in {node.op_type for node in graph.node}) == (opset == 23)


# -- verification


class File:
    """Stands for an exported file; returns given predictions."""

    in_channels = 3

    def __init__(self, task, predict):
        self.task, self.predict, self.metadata = task, predict, dict(outputs=[])


def compare(task, found, expected):
    file = File(task, lambda _: [found])
    (one,) = verify(file, lambda _: [expected], sizes=[(5, 7)], batches=[1])
    return one


BOXES = dict(
    boxes=np.array([[0, 0, 9, 9], [0, 0, 5, 5], [20, 20, 30, 30]], np.float32),
    scores=np.array([0.9, 0.9, 0.4], np.float32),
    labels=np.array([1, 1, 0]),
)


def test_boxes_of_equal_score_may_swap():
    swapped = {name: value[[1, 0, 2]] for name, value in BOXES.items()}
    one = compare('detection', swapped, BOXES)
    assert one.agrees and one.difference == 0 and one.compared == 3


@pytest.mark.parametrize(
    'change',
    [
        dict(boxes=BOXES['boxes'] + np.float32(0.02)),
        dict(boxes=BOXES['boxes'][[0, 0, 2]]),
        dict(labels=np.array([1, 0, 0])),
        dict(scores=np.array([0.9, 0.9, 0.39], np.float32)),
        {name: value[:2] for name, value in BOXES.items()},
    ],
    ids=['moved', 'twice', 'label', 'score', 'missing'],
)
def test_different_boxes_disagree(change):
    wrong = {**BOXES, **change}
    assert not compare('detection', wrong, BOXES).agrees
    assert len(wrong['boxes']) == 2 or match_boxes(wrong, BOXES) > 1e-2


def test_different_maps_features_and_scores_disagree():
    class_map = np.zeros((100, 100), int)
    features = [np.ones((3, 4, 5), np.float32), np.zeros((3, 2, 2), np.float32)]

    def map_agrees(found):
        return compare('segmentation', dict(seg_map=found), dict(seg_map=class_map)).agrees

    def features_agree(*found):
        return compare('features', dict(features=[*found]), dict(features=features)).agrees

    for pixels, agrees in ((9, True), (11, False)):
        other = class_map.copy()
        other[0, :pixels] = 1
        assert map_agrees(other) == agrees
    assert not map_agrees(class_map[:-1])
    for change, agrees in ((5e-5, True), (2e-4, False), (np.nan, False)):
        assert features_agree(features[0], features[1] + np.float32(change)) == agrees
    assert not features_agree(features[0][:, :1], features[1])
    assert not compare('classification', dict(scores=np.ones(3)), dict(scores=np.zeros(3))).agrees


# -- errors


@pytest.mark.parametrize(
    ('options', 'words'),
    [
        (dict(format='trt'), r"format must be one of \['aoti', 'onnx', .*\], got 'trt'"),
        (
            dict(format='aoti'),
            r"path must have the suffix .pt2 for format='aoti', got .*model.onnx",
        ),
        (dict(opset=17), r'opset must be one of \(18, 21, 23\), got 17'),
    ],
)
def test_wrong_arguments_are_refused(options, words, tmp_path):
    pytest.importorskip('onnxscript')
    with pytest.raises(ValueError, match=words):
        export(Features(column()), tmp_path / 'model.onnx', **options)
    assert not list(tmp_path.iterdir())


def test_models_that_branch_on_sizes_are_refused(tmp_path):
    graph = Features(column())
    whole = graph.model.forward
    graph.model.forward = lambda images: whole(torch.zeros(1, 3, int(images.shape[2]), 40))
    with pytest.raises(ValueError, match='CPVT cannot be recorded for every size'):
        export(graph, tmp_path / 'model.onnx')
    assert not list(tmp_path.iterdir())

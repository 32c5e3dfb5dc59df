"""int8 copies: what is rounded, how much a copy differs, and when tools/export.py writes none."""

from collections import Counter

import cv2
import numpy as np
import pytest
from export_models import detector, segmentor, trained_classifier

from cpvt_backbones.export import export, graph_of, int8
from cpvt_backbones.export.exported import ExportedModel
from cpvt_backbones.export.int8 import Agreement, compare, quantise, total_of

pytest.importorskip('onnxscript')
onnx = pytest.importorskip('onnx')


def images(count, height=70, width=90):
    rng = np.random.default_rng(0)
    cells = rng.integers(0, 256, (count, 9, 11, 3), np.uint8)
    return [cv2.resize(one, (width, height)) for one in cells]


def operators(path):
    return Counter(node.op_type for node in onnx.load(path).graph.node)


MODELS = {
    'detector': lambda: graph_of(detector()),
    'segmentor': lambda: graph_of(segmentor(), logits=True),
}


# Of a portable file attention is two plain products.
@pytest.mark.parametrize(('name', 'portable'), [('segmentor', True), ('detector', False)])
def test_a_copy_rounds_matrix_products_alone(name, portable, tmp_path):
    path, copy = tmp_path / 'model.onnx', tmp_path / 'copy.onnx'
    export(MODELS[name](), path, portable=portable)
    quantise(path, copy)
    before, after = operators(path), operators(copy)
    constant = {one.name for one in onnx.load(path).graph.initializer}
    products = [
        node
        for node in onnx.load(path).graph.node
        if node.op_type in ('MatMul', 'Gemm') and node.input[1] in constant
    ]
    # Of attention, the products of two activations stay.
    assert after['MatMulInteger'] == len(products) > 0
    assert after['MatMul'] + after['Gemm'] == before['MatMul'] + before['Gemm'] - len(products)
    for kept in ('Conv', 'MultiHeadAttention', 'Softmax', 'LayerNormalization'):
        assert after[kept] == before[kept], kept
    assert before['Conv'] > 0
    original, rounded = ExportedModel(path), ExportedModel(copy)
    assert rounded.metadata == original.metadata | dict(int8=True)
    agreement = total_of(list(compare(rounded, original, images(3), score_thr=0.1)))
    assert agreement.total > 0 and agreement.share > 0.7
    if name == 'segmentor':
        batch = np.stack(images(2)).transpose(0, 3, 1, 2)
        exact, found = (file.run(batch)['logits'] for file in (original, rounded))
        error = np.sqrt(np.mean((found - exact) ** 2)) / exact.std()
        assert 1e-5 < error < 0.1, 'that of 7 bits'


def test_a_file_without_products_is_refused(tmp_path):
    path = tmp_path / 'model.onnx'
    sides = onnx.helper.make_tensor_value_info('a', onnx.TensorProto.FLOAT, [2, 2])
    result = onnx.helper.make_tensor_value_info('b', onnx.TensorProto.FLOAT, [2, 2])
    node = onnx.helper.make_node('Relu', ['a'], ['b'])
    graph = onnx.helper.make_graph([node], 'relu', [sides], [result])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid('', 21)])
    onnx.save(model, path)
    with pytest.raises(ValueError, match='has no product of a matrix with weights'):
        quantise(path, tmp_path / 'copy.onnx')


def boxes(*rows):
    return dict(boxes=[list(row[:4]) for row in rows], labels=[row[4] for row in rows])


@pytest.mark.parametrize(
    ('found', 'expected', 'share'),
    [
        (boxes((0, 0, 10, 10, 1)), boxes((1, 0, 11, 10, 1)), 1.0),
        (boxes((0, 0, 10, 10, 1)), boxes((1, 0, 11, 10, 2)), 0.0),
        (boxes((0, 0, 10, 10, 1)), boxes((6, 0, 16, 10, 1)), 0.0),
        (boxes((0, 0, 10, 10, 1)), boxes(), 0.0),
        (boxes(), boxes(), 1.0),
        # A box counts once: two that find the same are one pair.
        (boxes((0, 0, 10, 10, 1), (0, 0, 10, 10, 1)), boxes((0, 0, 10, 10, 1)), 2 / 3),
        (dict(label=3), dict(label=3), 1.0),
        (dict(label=3), dict(label=4), 0.0),
        (dict(seg_map=np.eye(4)), dict(seg_map=np.zeros((4, 4))), 0.75),
    ],
)
def test_agreement_of_two_predictions(found, expected, share):
    assert int8._compare(found, expected).share == pytest.approx(share)
    assert int8._compare(expected, found).share == pytest.approx(share)


def test_the_total_counts_pixels_and_boxes():
    assert total_of([Agreement(1, 2), Agreement(8, 8)]).share == 0.9


# -- tools/export.py --int8
@pytest.fixture
def trained(tmp_path):
    """Config and checkpoint of a classifier, and a folder of images."""
    config, checkpoint = trained_classifier(tmp_path)
    (tmp_path / 'photos').mkdir()
    for i, image in enumerate(images(4)):
        cv2.imwrite(str(tmp_path / 'photos' / f'{i} é.png'), image)
    return ['export', config, checkpoint, '--verify-sizes', '20x30']


def test_the_tool_writes_a_copy_that_agrees(trained, tmp_path, call, capsys, monkeypatch):
    out = tmp_path / 'new' / 'model.onnx'
    arguments = [*trained, '--int8', '--verify-images', tmp_path / 'photos', '--out', out]
    monkeypatch.setattr(int8, 'MIN_AGREEMENT', 0.0)
    call(*arguments)
    words = capsys.readouterr().out
    assert 'images of the same class, 4 images' in words and 'onnx in int8' in words
    assert [path.name for path in out.parent.iterdir()] == ['model.onnx']
    assert ExportedModel(out).metadata['int8'] is True
    out.unlink()
    monkeypatch.setattr(int8, 'MIN_AGREEMENT', 1.01)
    with pytest.raises(SystemExit, match=r'model.onnx was not written: int8 and fp32 agree in'):
        call(*arguments)
    assert not list(out.parent.iterdir())


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ('--out model.onnx', 'give images of the kind that the model is for by --verify-images'),
        ('--out model.pt2 --format aoti', 'accepted with --format onnx, got --format aoti'),
        ('--out model.onnx --part backbone', 'accepted without --part backbone'),
    ],
)
def test_wrong_arguments_of_int8(arguments, message, trained, tmp_path, refused, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in refused(*trained, '--int8', *arguments.split())
    assert not [*tmp_path.glob('*.onnx'), *tmp_path.glob('*.pt2')]

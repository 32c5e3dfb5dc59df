"""int8 copies: what is rounded, how much a copy differs, and when tools/export.py writes none."""

from collections import Counter

import cv2
import numpy as np
import pytest
import torch
from export_models import detector, segmentor, trained_classifier

from cpvt_backbones.export import export, graph_of, int8
from cpvt_backbones.export.exported import RUNTIMES, ExportedModel
from cpvt_backbones.export.int8 import (
    MAX_CALIBRATION_IMAGES,
    calibration_inputs,
    compare,
    quantise,
    split_images,
    total_of,
)

pytest.importorskip('onnxscript')
onnx = pytest.importorskip('onnx')


def images(count, height=70, width=90):
    rng = np.random.default_rng(0)
    cells = rng.integers(0, 256, (count, 9, 11, 3), np.uint8)
    return [cv2.resize(one, (width, height)) for one in cells]


def operators(path):
    return Counter(node.op_type for node in onnx.load(path).graph.node)


@pytest.fixture(scope='module')
def files(tmp_path_factory):
    """A segmentor, in which attention is two plain products, and a detector."""
    folder = tmp_path_factory.mktemp('files')
    torch.manual_seed(0)
    export(graph_of(segmentor(), logits=True), folder / 'segmentor.onnx', portable=True)
    export(graph_of(detector()), folder / 'detector.onnx')
    return folder


@pytest.mark.full
@pytest.mark.parametrize('name', ['segmentor', 'detector'])
def test_a_copy_rounds_matrix_products_alone(name, files, tmp_path):
    path, copy = files / f'{name}.onnx', tmp_path / 'copy.onnx'
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
    assert rounded.metadata == original.metadata | dict(int8='onnxruntime')
    agreement = total_of(list(compare(rounded, original, images(3), score_thr=0.1)))
    assert agreement.total > 0 and agreement.share > 0.7
    if name == 'segmentor':
        batch = np.stack(images(2)).transpose(0, 3, 1, 2)
        exact, found = (file.run(batch)['logits'] for file in (original, rounded))
        error = np.sqrt(np.mean((found - exact) ** 2)) / exact.std()
        assert 1e-5 < error < 0.1, 'that of 7 bits'


def rounded_nodes(path):
    """Of a static copy: how many nodes of each kind have rounded weights, and the other ones."""
    graph = onnx.load(path).graph
    made = {node.output[0] for node in graph.node if node.op_type == 'DequantizeLinear'}
    rounded, exact = Counter(), []
    for node in graph.node:
        if node.op_type in ('MatMul', 'Gemm', 'Conv', 'ConvTranspose'):
            if node.input[1] in made:
                assert node.input[0] in made
                rounded[node.op_type] += 1
            else:
                exact.append(node)
    return rounded, exact


def groups(node):
    return next((one.i for one in node.attribute if one.name == 'group'), 1)


@pytest.mark.full
@pytest.mark.parametrize('name', ['segmentor', 'detector'])
def test_a_static_copy_rounds_all_but_pegs_and_attention(name, files, tmp_path):
    path, copy = files / f'{name}.onnx', tmp_path / 'copy.onnx'
    original = ExportedModel(path)
    photos = images(3) + images(2, 41, 130)
    inputs = calibration_inputs(original, photos)
    quantise(path, copy, runtime='openvino', calibration=inputs)
    before = onnx.load(path).graph
    weights = {one.name for one in before.initializer}
    rounded, exact = rounded_nodes(copy)
    pegs = [node for node in before.node if node.op_type == 'Conv' and groups(node) > 1]
    assert pegs, 'the model has a PEG'
    kept = [node for node in exact if node.op_type == 'Conv']
    assert {node.name for node in kept} == {node.name for node in pegs}
    assert all(node.input[1] in weights for node in kept)
    convolutions = [node for node in before.node if node.op_type == 'Conv']
    assert rounded['Conv'] == len(convolutions) - len(pegs) > 0
    products = [node for node in before.node if node.op_type in ('MatMul', 'Gemm')]
    dense = [node for node in products if node.input[1] in weights]  # not those of attention
    assert rounded['MatMul'] + rounded['Gemm'] == len(dense) > 0
    assert ExportedModel(copy).metadata == original.metadata | dict(int8='openvino')
    for runtime in RUNTIMES[:2]:
        if runtime == 'openvino':
            pytest.importorskip('openvino')
        file = ExportedModel(copy, runtime=runtime)
        # Sizes that the calibration did not have, alone and in batches.
        for height, width in ((50, 66), (97, 33)):
            agreement = total_of(
                list(compare(file, original, images(2, height, width), score_thr=0.1))
            )
            assert agreement.total > 0 and agreement.share > 0.6, (runtime, height, width)
            pair = images(2, height, width)
            (alone,), (batched, _) = file.predict(pair[:1]), file.predict(pair)
            assert int8.agreement_of(batched, alone).share > 0.9, (runtime, height, width)
        if name == 'segmentor':
            batch = np.stack(images(2)).transpose(0, 3, 1, 2)
            exact_logits, found = (each.run(batch)['logits'] for each in (original, file))
            error = np.sqrt(np.mean((found - exact_logits) ** 2)) / exact_logits.std()
            assert 1e-5 < error < 0.2, 'that of 7 bits'


def test_images_of_the_calibration_are_not_compared():
    assert split_images([*'abcde']) == ([*'bd'], [*'ace'])
    assert split_images([*'ab']) == (['b'], ['a'])
    names = [*map(str, range(1000))]
    calibration, others = split_images(names)
    assert len(calibration) == MAX_CALIBRATION_IMAGES
    assert sorted(calibration + others) == sorted(names)


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
    assert int8.agreement_of(found, expected).share == pytest.approx(share)
    assert int8.agreement_of(expected, found).share == pytest.approx(share)


# -- tools/export.py --int8
@pytest.fixture
def trained(tmp_path):
    """Config and checkpoint of a classifier, and a folder of images."""
    config, checkpoint = trained_classifier(tmp_path)
    (tmp_path / 'photos').mkdir()
    for i, image in enumerate(images(4)):
        cv2.imwrite(str(tmp_path / 'photos' / f'{i} é.png'), image)
    return ['export', config, checkpoint, '--verify-sizes', '20x30']


@pytest.mark.full
def test_the_tool_writes_a_copy_that_agrees(trained, tmp_path, call, capsys, monkeypatch):
    out = tmp_path / 'new' / 'model.onnx'
    arguments = [*trained, '--int8', '--verify-images', tmp_path / 'photos', '--out', out]
    monkeypatch.setattr(int8, 'MIN_AGREEMENT', 0.0)
    out.parent.mkdir()
    others = {out.with_name(f'model.{kind}.onnx') for kind in ('int8', 'unverified')}
    for other in others:
        other.write_bytes(b'of the user')
    call(*arguments)
    words = capsys.readouterr().out
    assert 'images of the same class, 4 images' in words and 'onnx in int8' in words
    assert {*out.parent.iterdir()} == {out, *others}
    assert {other.read_bytes() for other in others} == {b'of the user'}
    assert ExportedModel(out).metadata['int8'] == 'onnxruntime'
    out.unlink()
    monkeypatch.setattr(int8, 'MIN_AGREEMENT', 1.01)
    with pytest.raises(SystemExit, match=r'model.onnx was not written: int8 and fp32 agree in'):
        call(*arguments)
    assert {*out.parent.iterdir()} == others


@pytest.mark.full
def test_the_tool_calibrates_for_openvino(trained, tmp_path, call, capsys, monkeypatch):
    pytest.importorskip('openvino')
    out = tmp_path / 'model.onnx'
    monkeypatch.setattr(int8, 'MIN_AGREEMENT', 0.0)
    words = ['--int8', '--runtime', 'openvino', '--verify-images', tmp_path / 'photos']
    call(*trained, *words, '--out', out)
    printed = capsys.readouterr().out
    assert 'images of the same class, 2 images' in printed, 'two others calibrate'
    assert 'infer.py' in printed and '--runtime openvino' in printed
    assert ExportedModel(out, runtime='openvino').metadata['int8'] == 'openvino'
    rounded, exact = rounded_nodes(out)
    assert rounded and {node.op_type for node in exact} == {'Conv'}


@pytest.mark.full
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

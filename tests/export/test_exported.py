"""ExportedModel: inputs, outputs, and its use as a predictor."""

import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch
from export_models import Toolbox, detector, segmentor
from tiny import column, multi_scale, randomise

from cpvt_backbones.export import Features, export, formats, graph_of
from cpvt_backbones.export import exported as module
from cpvt_backbones.export.exported import ExportedModel, paste_mask
from cpvt_backbones.export.verification import match_boxes
from cpvt_backbones.images.value_range import ValueRange
from cpvt_backbones.inference import Inferencer

PALETTE = [[10 * i, 0, 0] for i in range(5)]
RNG = np.random.default_rng(0)
SIZES = (40, 60), (33, 17), (40, 60), (64, 64)
PHOTOS = [RNG.integers(0, 256, (*size, 3), np.uint8) for size in SIZES]


def one_level_detector():
    return detector('single', levels=1)


@pytest.fixture(scope='module')
def files(tmp_path_factory):
    """One detector and two forms of one segmentor, as programs, which are quickest to write."""
    folder = tmp_path_factory.mktemp('exported')
    graphs = dict(
        detector=graph_of(one_level_detector(), pixels=False),
        maps=graph_of(segmentor('single')),
        logits=graph_of(segmentor('single'), logits=True),
    )
    settings = dict(classes=list('abcde'), palette=PALETTE)
    for name, graph in graphs.items():
        export(graph, folder / f'{name}.pt2', format='torch_export', settings=settings)
    return folder


@pytest.fixture(scope='module')
def onnx_file(tmp_path_factory):
    """A backbone and its file."""
    pytest.importorskip('onnxscript')
    pytest.importorskip('onnxruntime')
    backbone = column(arch=dict(embed_dims=24, depth=1, num_heads=2, mlp_ratio=2.0)).eval()
    path = tmp_path_factory.mktemp('onnx') / 'model.onnx'
    export(Features(backbone), path)
    return backbone, path


def test_images_of_any_sizes_in_one_call(files):
    """Images of one size share a batch, the order is kept, and images are normalised for a file
    that expects it.
    """
    exported = ExportedModel(files / 'detector.pt2', device='cpu')
    metadata = exported.metadata
    assert metadata['input'] == 'normalised' and exported.task == 'detection'
    assert metadata['mean'] == pytest.approx([123.675, 116.28, 103.53])
    assert metadata['flip_channels']
    assert (metadata['iou_threshold'], metadata['max_per_img']) == (0.5, 30)
    assert exported.nms_threshold == 0.5
    toolbox = Toolbox(one_level_detector())
    for image, found in zip(PHOTOS, exported.predict(PHOTOS), strict=True):
        (expected,) = toolbox.predict([image])
        assert len(found['boxes']) == len(expected['boxes']) > 0
        assert match_boxes(found, expected) < 1e-2


@pytest.mark.parametrize('name', ['maps', 'logits'])
def test_an_inferencer_runs_a_file(files, name):
    toolbox = Toolbox(segmentor('single'))
    exported = ExportedModel(files / f'{name}.pt2', device='cpu')
    assert (exported.classes, exported.palette) == (list('abcde'), PALETTE)
    results = Inferencer(predictor=exported, batch_size=2).predict(PHOTOS)
    for image, result in zip(PHOTOS, results, strict=True):
        assert result.error is None
        expected = toolbox.to_classes(toolbox.logits([image])[0]).numpy()
        assert (result.prediction['seg_map'] == expected).mean() > 0.999


@pytest.mark.full
def test_features_from_onnx(onnx_file):
    backbone, path = onnx_file
    (found,) = ExportedModel(path, device='cpu').predict(PHOTOS[:1])
    images = torch.from_numpy(PHOTOS[0]).permute(2, 0, 1)[None].float()
    with torch.no_grad():
        (expected,) = backbone(images)
    np.testing.assert_allclose(found['features'][0], expected[0].numpy(), atol=1e-3)


@pytest.mark.full
def test_signals_after_files_of_openvino_are_closed(onnx_file):
    """OpenVINO replaces the stack of signal handlers, which is of no use once its owner is
    deleted.
    """
    pytest.importorskip('openvino')
    script = """
import signal, sys
from cpvt_backbones.export.exported import ExportedModel
first, second = (ExportedModel(sys.argv[1], runtime='openvino') for _ in range(2))
del first
del second
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
signal.raise_signal(signal.SIGTERM)
"""
    assert subprocess.run([sys.executable, '-c', script, onnx_file[1]]).returncode == 75


def test_a_mask_fills_its_box():
    """Bilinear within the box, in pixels whose centres it covers.

    Nothing for a box without extent.
    """
    mask = np.ones((4, 4), np.float32)
    expected = np.zeros((5, 8), bool)
    expected[1:3, 2:6] = True
    pasted = paste_mask(mask, np.array([2, 1, 6, 3], np.float32), (5, 8))
    np.testing.assert_array_equal(pasted >= 0.5, expected)
    assert not paste_mask(mask, np.array([8, 1, 8, 3], np.float32), (5, 8)).any()


# -- refusals


@pytest.mark.parametrize(
    ('options', 'words'),
    [
        (dict(path='maps.pt2', runtime='openvino'), r"\['onnxruntime'\], got 'openvino'"),
        (dict(runtime='tensorrt'), r"runtime must be one of .*'openvino', .*got 'tensorrt'"),
        (dict(runtime='openvino', device='cuda:0'), "must be 'cpu' with .*, got 'cuda:0'"),
        (dict(device='mps'), "device must be 'cpu' or 'cuda.*, got 'mps'"),
        (dict(path='maps.pt2', device='cuda:1'), "device must be 'cpu', .*, got 'cuda:1'"),
        (dict(path='model.pth'), 'path must end in .onnx or .pt2, got'),
        (dict(path='foreign.pt2'), 'must be a file that cpvt export wrote; .* no entry'),
    ],
)
def test_files_devices_and_runtimes_that_do_not_fit(onnx_file, files, options, words, monkeypatch):
    monkeypatch.setattr(module, '_openvino_core', module._openvino_core.__wrapped__)
    monkeypatch.setitem(sys.modules, 'openvino', object())
    (files / 'model.pth').write_bytes(b'')
    if options.get('path') == 'foreign.pt2':
        program = torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),))
        torch.export.save(program, files / 'foreign.pt2')
    path = files / options['path'] if 'path' in options else onnx_file[1]
    with pytest.raises(ValueError, match=words):
        ExportedModel(**{**options, 'path': path})


def test_missing_files_and_runtimes(onnx_file, monkeypatch):
    with pytest.raises(FileNotFoundError, match="path: there is no file 'none.onnx'"):
        ExportedModel('none.onnx')
    monkeypatch.setattr(module, '_openvino_core', module._openvino_core.__wrapped__)
    monkeypatch.setitem(sys.modules, 'openvino', None)
    with pytest.raises(ImportError, match=r"runtime='openvino' needs `pip install openvino`"):
        ExportedModel(onnx_file[1], runtime='openvino')


@pytest.mark.full
def test_openvino_after_a_first_image_of_one_token(tmp_path):
    """OpenVINO 2026.4 computed all later images wrongly."""
    pytest.importorskip('openvino')
    path = tmp_path / 'model.onnx'
    export(Features(randomise(multi_scale(arch='tiny')).eval()), path)
    first, second = ExportedModel(path), ExportedModel(path, runtime='openvino')
    rng = np.random.default_rng(0)
    for height, width in ((9, 16), (33, 47), (64, 200), (1, 1)):
        images = rng.standard_normal((2, 3, height, width), np.float32)
        for name, expected in first.run(images).items():
            found = second.run(images)[name]
            assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


def test_other_arrays_are_refused(files, onnx_file):
    maps = ExportedModel(files / 'maps.pt2')
    accepted = r'images must be \(H, W, 3\), uint8, got shape'
    for array, found in (
        (np.zeros((5, 5), np.uint8), r'\(5, 5\), uint8'),
        (np.zeros((5, 5, 3)), r'\(5, 5, 3\), float64'),
    ):
        with pytest.raises(ValueError, match=f'{accepted} {found}'):
            maps.predict([array])
    with pytest.raises(ValueError, match=r'float32, got shape \(1, 3, 5, 5\), uint8'):
        ExportedModel(onnx_file[1]).run(np.zeros((1, 3, 5, 5), np.uint8))


def refusal(path, content, runtime='onnxruntime'):
    """The error of opening a damaged file, which is one line that names the file."""
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r'^path: .* is damaged|its metadata lacks') as error:
        ExportedModel(path, device='cpu', runtime=runtime)
    message = str(error.value)
    assert repr(str(path)) in message and '\n' not in message
    return message


def flipped(content, position):
    return content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]


@pytest.mark.parametrize('runtime', ['onnxruntime', 'openvino'])
def test_onnx_file_cut_short(runtime, onnx_file, tmp_path):
    pytest.importorskip(runtime)
    content, path = onnx_file[1].read_bytes(), tmp_path / 'damaged.onnx'
    for length in (0, 1, len(content) // 2, len(content) - 1):
        refusal(path, content[:length], runtime)


@pytest.mark.parametrize('runtime', ['onnxruntime', 'openvino'])
def test_operators_that_a_runtime_lacks_are_named(runtime, onnx_file, tmp_path):
    """OpenVINO before 2026.3 lacks the attention of ONNX Runtime."""
    pytest.importorskip(runtime)
    onnx = pytest.importorskip('onnx')
    model, path = onnx.load(onnx_file[1]), tmp_path / 'newer.onnx'
    node = next(node for node in model.graph.node if node.domain == 'com.microsoft')
    node.op_type = 'AttentionOfTomorrow'
    onnx.save(model, path)
    with pytest.raises(ValueError, match=f'that this version of {runtime} lacks: .*--portable'):
        ExportedModel(path, runtime=runtime)


@pytest.mark.parametrize('missing', ['onnx', 'onnxscript'])
def test_packages_of_onnx_that_are_missing_are_named(tmp_path, monkeypatch, missing):
    monkeypatch.setattr(formats, 'find_spec', lambda name: None if name == missing else name)
    words = "format='onnx' needs onnx and onnxscript: pip install onnx onnxscript onnxruntime"
    with pytest.raises(ImportError, match=words):
        export(Features(column(arch='tiny')), tmp_path / 'model.onnx')


def test_pt2_file_damaged_by_a_flipped_bit_or_truncation(files, tmp_path):
    content, path = (files / 'detector.pt2').read_bytes(), tmp_path / 'damaged.pt2'
    with zipfile.ZipFile(files / 'detector.pt2') as archive:
        entries = [info for info in archive.infolist() if info.file_size > 1000]
    places = [info.header_offset + 200 + info.file_size // 2 for info in entries]
    for position in [content.index(b'"task"') + 2, *places]:
        assert 'the checksum of its part' in refusal(path, flipped(content, position))
    for length in (0, 10, len(content) // 2, len(content) - 1):
        refusal(path, content[:length])


def test_damaged_metadata_are_refused_by_name(onnx_file, tmp_path):
    onnx = pytest.importorskip('onnx')
    model = onnx.load(onnx_file[1])
    onnx.checker.check_model(model)
    entries = {entry.key: entry.value for entry in model.metadata_props}
    assert set(entries) == {'cpvt_backbones'}
    metadata, path = json.loads(entries['cpvt_backbones']), tmp_path / 'file.onnx'

    def with_metadata(text):
        del model.metadata_props[:]
        model.metadata_props.add(key='cpvt_backbones', value=text)
        onnx.save(model, path)
        return path.read_bytes()

    path.write_bytes(with_metadata(json.dumps(metadata)))
    assert ExportedModel(path, device='cpu').metadata == metadata
    value_range = ValueRange(low=0, high=4095, dtype='uint16')
    ranged = dict(metadata, value_range=value_range.settings)
    path.write_bytes(with_metadata(json.dumps(ranged)))
    assert ExportedModel(path, device='cpu').value_range == value_range
    for text, message in (
        ('{"task"', 'it is not JSON'),
        ('[' * 10**5, 'it is nested too deeply'),
        ('[1]', 'it must hold a JSON object, got a list'),
        ('{}', 'its metadata lacks'),
    ):
        assert message in refusal(path, with_metadata(text))
    for key, value in (
        ('task', 'magic'),
        ('outputs', 5),
        ('classes', 5),
        ('classes', [1]),
        ('palette', [[1, 2]]),
        ('size_steps', 5),
        ('size_steps', [{}]),
        ('sizes', [1]),
        ('sizes', dict(low='1', high=1, side=1, zoom=1, metric='m')),
        ('value_range', dict(low=1, high=0, dtype='uint16')),
        ('value_range', [0, 1]),
        ('mean', 'x'),
        ('device', None),
    ):
        message = refusal(path, with_metadata(json.dumps({**metadata, key: value})))
        assert f'its metadata has {key}={value!r}' in message

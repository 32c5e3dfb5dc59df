"""ExportedModel: inputs, outputs, and its use as a predictor."""

import hashlib
import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch
from export_models import Toolbox, detector, segmentor
from tiny import column

from cpvt_backbones.export import Features, export, graph_of
from cpvt_backbones.export import exported as module
from cpvt_backbones.export.exported import ExportedModel, paste_mask
from cpvt_backbones.export.verification import match_boxes
from cpvt_backbones.inference import Inferencer

SEAL = 91  # bytes at the end of an ONNX file
PALETTE = [[10 * i, 0, 0] for i in range(5)]


def photos():
    rng = np.random.default_rng(0)
    return [
        rng.integers(0, 256, (*size, 3), np.uint8)
        for size in ((40, 60), (33, 17), (40, 60), (64, 64))
    ]


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
    for name, graph in graphs.items():
        settings = dict(classes=list('abcde'), palette=PALETTE)
        export(graph, folder / f'{name}.pt2', format='torch_export', settings=settings)
    return folder


def test_images_of_any_sizes_in_one_call(files):
    """Images of one size share a batch, the order is kept, and images are normalised for a file
    that expects it.
    """
    exported = ExportedModel(files / 'detector.pt2', device='cpu')
    assert exported.metadata['input'] == 'normalised' and exported.task == 'detection'
    toolbox = Toolbox(one_level_detector())
    for image, found in zip(photos(), exported.predict(photos()), strict=True):
        (expected,) = toolbox.predict([image])
        assert len(found['boxes']) == len(expected['boxes']) > 0
        assert match_boxes(found, expected) < 1e-2


def test_an_inferencer_runs_a_file(files):
    toolbox = Toolbox(segmentor('single'))
    for name in ('maps', 'logits'):
        inferencer = Inferencer(
            predictor=ExportedModel(files / f'{name}.pt2', device='cpu'), batch_size=2
        )
        for image, result in zip(photos(), inferencer.predict(photos()), strict=True):
            if result.error is not None:
                raise result.error
            expected = toolbox.to_classes(toolbox.logits([image])[0]).numpy()
            assert (result.prediction['seg_map'] == expected).mean() > 0.999


def test_class_maps_and_logits_agree(files):
    maps, logits = (
        ExportedModel(files / f'{name}.pt2', device='cpu') for name in ('maps', 'logits')
    )
    assert (maps.classes, maps.palette) == (list('abcde'), PALETTE)
    assert maps.fingerprint != logits.fingerprint
    for one, other in zip(maps.predict(photos()), logits.predict(photos()), strict=True):
        assert (one['seg_map'] == other['seg_map']).mean() > 0.999
    votes = maps.logits(photos()[:1])
    assert votes.shape == (1, 5, 40, 60) and torch.equal(votes.sum(1), torch.ones(1, 40, 60))
    assert torch.equal(
        maps.to_classes(votes[0]), torch.from_numpy(maps.predict(photos()[:1])[0]['seg_map'])
    )


@pytest.fixture(scope='module')
def onnx_file(tmp_path_factory):
    """A backbone and its file."""
    pytest.importorskip('onnxscript')
    pytest.importorskip('onnxruntime')
    backbone = column(arch=dict(embed_dims=24, depth=1, num_heads=2, mlp_ratio=2.0)).eval()
    path = tmp_path_factory.mktemp('onnx') / 'model.onnx'
    export(Features(backbone), path)
    return backbone, path


def test_features_from_onnx(onnx_file):
    backbone, path = onnx_file
    exported = ExportedModel(path, device='cpu')
    (found,) = exported.predict(photos()[:1])
    images = torch.from_numpy(photos()[0]).permute(2, 0, 1)[None].float()
    with torch.no_grad():
        (expected,) = backbone(images)
    np.testing.assert_allclose(found['features'][0], expected[0].numpy(), atol=1e-3)
    with pytest.raises(
        ValueError,
        match=r'images must be \(B, 3, H, W\) .* float32, got shape \(1, 3, 5, 5\), uint8',
    ):
        exported.run(np.zeros((1, 3, 5, 5), np.uint8))
    with pytest.raises(ValueError, match="device must be 'cpu' or 'cuda.*, got 'mps'"):
        ExportedModel(path, device='mps')


def test_runtimes_that_cannot_run_a_file(onnx_file, files, monkeypatch):
    with pytest.raises(
        ValueError, match=r"runtime must be one of \['onnxruntime'\], got 'openvino'"
    ):
        ExportedModel(files / 'maps.pt2', runtime='openvino')
    with pytest.raises(ValueError, match=r"runtime must be one of .*'openvino', .*got 'tensorrt'"):
        ExportedModel(onnx_file[1], runtime='tensorrt')
    monkeypatch.setattr(
        module, '_openvino_core', module._openvino_core.__wrapped__
    )  # it may be there
    monkeypatch.setitem(sys.modules, 'openvino', None)
    with pytest.raises(ImportError, match=r"runtime='openvino' needs `pip install openvino`"):
        ExportedModel(onnx_file[1], runtime='openvino')
    monkeypatch.setitem(sys.modules, 'openvino', object())
    with pytest.raises(
        ValueError, match=r"device must be 'cpu' with runtime='openvino', got 'cuda:0'"
    ):
        ExportedModel(onnx_file[1], runtime='openvino', device='cuda:0')


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
    pasted = paste_mask(np.ones((4, 4), np.float32), np.array([2, 1, 6, 3], np.float32), (5, 8))
    expected = np.zeros((5, 8), bool)
    expected[1:3, 2:6] = True
    np.testing.assert_array_equal(pasted >= 0.5, expected)
    assert not paste_mask(
        np.ones((4, 4), np.float32), np.array([8, 1, 8, 3], np.float32), (5, 8)
    ).any()


def refusal(path):
    """The error of opening a damaged file, which is one line that names the file."""
    with pytest.raises(ValueError) as error:
        ExportedModel(path, device='cpu')
    message = str(error.value)
    assert repr(str(path)) in message and '\n' not in message
    return message


def test_onnx_file_damaged_by_a_flipped_bit(onnx_file, tmp_path):
    content = onnx_file[1].read_bytes()
    damaged = tmp_path / 'damaged.onnx'
    assert content.endswith(hashlib.sha256(content[:-SEAL]).hexdigest().encode())
    metadata = content.index(b'"task"') + 2
    rng = np.random.default_rng(0)
    for position in [
        metadata,
        *rng.integers(0, len(content) - 64, 30),
        len(content) - 70,
        len(content) - 1,
    ]:
        damaged.write_bytes(
            content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]
        )
        assert 'is damaged' in refusal(damaged)


def test_onnx_file_damaged_by_truncation(onnx_file, tmp_path):
    content = onnx_file[1].read_bytes()
    damaged = tmp_path / 'damaged.onnx'
    for length in (0, 1, len(content) // 2, len(content) - SEAL + 1, len(content) - 1):
        damaged.write_bytes(content[:length])
        assert 'is damaged' in refusal(damaged)
    damaged.write_bytes(content[:-SEAL])
    assert refusal(damaged).endswith('the SHA-256 at its end is missing')


def test_metadata_of_another_kind_are_refused(onnx_file, tmp_path):
    """Each fault by itself, in a file whose SHA-256 is right."""
    onnx = pytest.importorskip('onnx')
    model = onnx.load(onnx_file[1])
    onnx.checker.check_model(model)
    entries = {entry.key: entry.value for entry in model.metadata_props}
    assert set(entries) == {'cpvt_backbones', 'cpvt_backbones_sha256'}
    metadata = json.loads(entries['cpvt_backbones'])

    def written(text):
        del model.metadata_props[:]
        model.metadata_props.add(key='cpvt_backbones', value=text)
        content = model.SerializeToString()
        (tmp_path / 'file.onnx').write_bytes(content + module.seal(content))
        return tmp_path / 'file.onnx'

    assert ExportedModel(written(json.dumps(metadata)), device='cpu').metadata == metadata
    for text, message in (
        ('{"task"', 'is damaged: it is not JSON'),
        ('[' * 10**5, 'is damaged: it is nested too deep'),
        ('[1]', 'is damaged: it must hold a JSON object, got a list'),
        ('{}', 'its metadata lacks'),
    ):
        assert message in refusal(written(text))
    for fault in (
        dict(task='magic'),
        dict(outputs=5),
        dict(classes=5),
        dict(classes=[1]),
        dict(palette=[[1, 2]]),
        dict(size_steps=5),
        dict(size_steps=[{}]),
        dict(sizes=[1]),
        dict(sizes=dict(low='1', high=1, side=1, zoom=1, metric='m')),
        dict(mean='x'),
        dict(device=None),
    ):
        ((key, value),) = fault.items()
        message = f'is damaged: its metadata has {key}={value!r}'
        assert message in refusal(written(json.dumps(metadata | fault)))


def test_pt2_file_damaged_by_a_flipped_bit_or_truncation(files, tmp_path):
    content = (files / 'detector.pt2').read_bytes()
    damaged = tmp_path / 'damaged.pt2'
    with zipfile.ZipFile(files / 'detector.pt2') as archive:
        entries = [info for info in archive.infolist() if info.file_size > 1000]
    metadata = content.index(b'"task"') + 2
    for position in [
        metadata,
        *(info.header_offset + 200 + info.file_size // 2 for info in entries),
    ]:
        damaged.write_bytes(
            content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]
        )
        assert 'is damaged: the checksum of its part' in refusal(damaged)
    for length in (0, 10, len(content) // 2, len(content) - 1):
        damaged.write_bytes(content[:length])
        assert 'is damaged' in refusal(damaged)


def test_other_arrays_are_refused(files):
    exported = ExportedModel(files / 'maps.pt2')
    with pytest.raises(
        ValueError, match=r'images must be \(H, W, 3\), uint8, got shape \(5, 5\), uint8'
    ):
        exported.predict([np.zeros((5, 5), np.uint8)])
    with pytest.raises(ValueError, match=r'uint8, got shape \(5, 5, 3\), float64'):
        exported.predict([np.zeros((5, 5, 3))])


def test_other_files_are_refused(files, tmp_path):
    with pytest.raises(FileNotFoundError, match="path: there is no file 'none.onnx'"):
        ExportedModel('none.onnx')
    (tmp_path / 'model.pth').write_bytes(b'')
    with pytest.raises(ValueError, match='path must end in .onnx or .pt2, got'):
        ExportedModel(tmp_path / 'model.pth')
    with pytest.raises(
        ValueError, match="device must be 'cpu', for which .* was exported, got 'cuda:1'"
    ):
        ExportedModel(files / 'maps.pt2', device='cuda:1')
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),))
    torch.export.save(program, tmp_path / 'foreign.pt2')
    with pytest.raises(
        ValueError, match='path must be a file that tools/export.py wrote; .* has no entry'
    ):
        ExportedModel(tmp_path / 'foreign.pt2')


def test_metadata_is_plain_data(files):
    metadata = ExportedModel(files / 'detector.pt2').metadata
    assert json.loads(json.dumps(metadata)) == metadata
    assert (
        metadata['mean'] == pytest.approx([123.675, 116.28, 103.53]) and metadata['flip_channels']
    )
    assert metadata['iou_threshold'] == 0.5 and metadata['max_per_img'] == 30

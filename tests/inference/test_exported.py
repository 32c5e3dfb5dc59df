"""ExportedModel: inputs, outputs, and its use as a predictor."""

import json

import numpy as np
import pytest
import torch
from export_models import Toolbox, detector, segmentor
from tiny import column

from cpvt_backbones.export import Features, export, graph_of
from cpvt_backbones.export.verification import match_boxes
from cpvt_backbones.inference import Inferencer
from cpvt_backbones.inference.exported import ExportedModel

PALETTE = [[10 * i, 0, 0] for i in range(5)]


def photos():
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (*size, 3), np.uint8) for size in ((40, 60), (33, 17), (40, 60), (64, 64))]


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
    """Images of one size share a batch, the order is kept, and images are normalised for a file that expects it."""
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
        inferencer = Inferencer(predictor=ExportedModel(files / f'{name}.pt2', device='cpu'), batch_size=2)
        for image, result in zip(photos(), inferencer.predict(photos()), strict=True):
            if result.error is not None:
                raise result.error
            expected = toolbox.to_classes(toolbox.logits([image])[0]).numpy()
            assert (result.prediction['seg_map'] == expected).mean() > 0.999


def test_class_maps_and_logits_agree(files):
    maps, logits = (ExportedModel(files / f'{name}.pt2', device='cpu') for name in ('maps', 'logits'))
    assert (maps.classes, maps.palette) == (list('abcde'), PALETTE)
    assert maps.fingerprint != logits.fingerprint
    for one, other in zip(maps.predict(photos()), logits.predict(photos()), strict=True):
        assert (one['seg_map'] == other['seg_map']).mean() > 0.999
    votes = maps.logits(photos()[:1])
    assert votes.shape == (1, 5, 40, 60) and torch.equal(votes.sum(1), torch.ones(1, 40, 60))
    assert torch.equal(maps.to_classes(votes[0]), torch.from_numpy(maps.predict(photos()[:1])[0]['seg_map']))


def test_features_from_onnx(tmp_path):
    pytest.importorskip('onnxscript')
    pytest.importorskip('onnxruntime')
    backbone = column(arch=dict(embed_dims=24, depth=1, num_heads=2, mlp_ratio=2.0)).eval()
    export(Features(backbone), tmp_path / 'model.onnx')
    exported = ExportedModel(tmp_path / 'model.onnx', device='cpu')
    (found,) = exported.predict(photos()[:1])
    images = torch.from_numpy(photos()[0]).permute(2, 0, 1)[None].float()
    with torch.no_grad():
        (expected,) = backbone(images)
    np.testing.assert_allclose(found['features'][0], expected[0].numpy(), atol=1e-3)
    with pytest.raises(ValueError, match=r'images must be \(B, 3, H, W\) .* float32, got shape \(1, 3, 5, 5\), uint8'):
        exported.run(np.zeros((1, 3, 5, 5), np.uint8))
    with pytest.raises(ValueError, match="device must be 'cpu' or 'cuda.*, got 'mps'"):
        ExportedModel(tmp_path / 'model.onnx', device='mps')


def test_other_arrays_are_refused(files):
    exported = ExportedModel(files / 'maps.pt2')
    with pytest.raises(ValueError, match=r'images must be \(H, W, 3\), uint8, got shape \(5, 5\), uint8'):
        exported.predict([np.zeros((5, 5), np.uint8)])
    with pytest.raises(ValueError, match=r'uint8, got shape \(5, 5, 3\), float64'):
        exported.predict([np.zeros((5, 5, 3))])


def test_other_files_are_refused(files, tmp_path):
    with pytest.raises(FileNotFoundError, match="path: there is no file 'none.onnx'"):
        ExportedModel('none.onnx')
    (tmp_path / 'model.pth').write_bytes(b'')
    with pytest.raises(ValueError, match='path must end in .onnx or .pt2, got'):
        ExportedModel(tmp_path / 'model.pth')
    with pytest.raises(ValueError, match="device must be 'cpu', for which .* was exported, got 'cuda:1'"):
        ExportedModel(files / 'maps.pt2', device='cuda:1')
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),))
    torch.export.save(program, tmp_path / 'foreign.pt2')
    with pytest.raises(ValueError, match='path must be a file that tools/export.py wrote; .* has no entry'):
        ExportedModel(tmp_path / 'foreign.pt2')


def test_metadata_is_plain_data(files):
    metadata = ExportedModel(files / 'detector.pt2').metadata
    assert json.loads(json.dumps(metadata)) == metadata
    assert metadata['mean'] == pytest.approx([123.675, 116.28, 103.53]) and metadata['flip_channels']
    assert metadata['iou_threshold'] == 0.5 and metadata['max_per_img'] == 30

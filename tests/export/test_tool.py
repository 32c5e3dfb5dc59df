"""tools/export.py: a verified file is renamed to its destination, others are deleted."""

import numpy as np
import pytest
import torch
from export_models import detector, trained_classifier

from cpvt import command_line as cli
from cpvt_backbones import export as package
from cpvt_backbones import inference
from cpvt_backbones.export.exported import ExportedModel
from cpvt_backbones.export.verification import MEASURES, Comparison


@pytest.fixture
def trained(tmp_path):
    """Config and checkpoint of a classifier."""
    return trained_classifier(tmp_path)


def test_verified_file_is_written(trained, tmp_path, call, capsys):
    def export(out, *words):
        call('export', *trained, '--format', 'torch_export', '--out', out, *words)
        assert [path.name for path in out.parent.iterdir()] == [out.name]
        return ExportedModel(out)

    exported = export(tmp_path / 'new' / 'model.pt2', '--verify-sizes', '9x21', '40x40')
    words = capsys.readouterr().out
    assert words.count('  agrees') == 4 and '9 x 21' in words and 'DIFFERS' not in words
    assert exported.task == 'classification' and exported.metadata['format'] == 'torch_export'
    options = ['--part', 'backbone', '--verify-sizes', '30x20']
    assert export(tmp_path / 'part' / 'features.pt2', *options).task == 'features'


@pytest.mark.full
def test_an_image_that_only_rasterio_reads_verifies_a_file(trained, tmp_path, call, capsys):
    """It is opened by windows, and all of it is used."""
    rasterio = pytest.importorskip('rasterio')
    pixels = np.random.default_rng(0).integers(0, 256, (3, 40, 50), np.uint8)
    options = dict(driver='JP2OpenJPEG', height=40, width=50, count=3, dtype='uint8')
    with rasterio.open(tmp_path / 'scene.jp2', 'w', **options) as file:
        file.write(pixels)
    words = ['--format', 'torch_export', '--out', tmp_path / 'model.pt2', '--verify-sizes', '30x20']
    call('export', *trained, *words, '--verify-images', tmp_path / 'scene.jp2')
    assert capsys.readouterr().out.count('  agrees') == 2


@pytest.mark.full
def test_differing_file_is_deleted(trained, tmp_path, call, capsys, monkeypatch):
    monkeypatch.setitem(MEASURES, 'classification', ('scores', -1.0))  # no difference is as small
    out = tmp_path / 'model.pt2'
    words = ['--format', 'torch_export', '--out', out, '--verify-sizes', '20x20']
    with pytest.raises(SystemExit, match='model.pt2 was not written'):
        call('export', *trained, *words)
    assert 'DIFFERS' in capsys.readouterr().out
    assert not list(tmp_path.glob('*.pt2'))


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ('--out model.pt2', "path must have the suffix .onnx for format='onnx'"),
        ('--out model.onnx --logits', 'logits must be False unless the model is a segmentor'),
        ('--out model.onnx --verify-sizes 20x', 'HEIGHTxWIDTH or SIDE in px is expected, such as'),
        ('--out model.onnx --verify-batches 0', '--verify-batches: an integer of at least 1'),
        ('--out model.onnx --verify-images none', "there is no file or folder 'none'"),
    ],
)
def test_wrong_arguments_end_in_one_line(
    arguments, message, trained, refused, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert message in refused('export', *trained, *arguments.split())
    assert not [*tmp_path.glob('*.onnx'), *tmp_path.glob('*.pt2')]


def test_checkpoint_of_another_model_is_refused(trained, tmp_path, refused):
    torch.save(dict(state_dict=dict(nothing=torch.zeros(1))), tmp_path / 'other.pth')
    line = refused('export', trained[0], tmp_path / 'other.pth', '--out', tmp_path / 'model.onnx')
    assert 'other.pth' in line and 'the checkpoint is none of' in line


def test_a_detector_that_finds_nothing_is_not_exported(tmp_path, call, monkeypatch):
    """It is told before the file is written; with a box, the file is."""
    pytest.importorskip('mmdet')
    model = detector('single', levels=1)
    found = []

    class Predictor:
        value_range = None
        classes = palette = size_steps = sizes = None

        def __init__(self, **_):
            self.model = model

        def predict(self, images):
            return [dict(boxes=found) for _ in images]

    monkeypatch.setattr(inference, 'ToolboxPredictor', Predictor)
    monkeypatch.setattr(cli, 'config_from', lambda *_: None)
    monkeypatch.setattr(package, 'export', lambda *_, **__: exit('written'))
    for name in ('a.py', 'a.pth'):
        (tmp_path / name).touch()
    files = [tmp_path / 'a.py', tmp_path / 'a.pth']
    given = ['export', *files, '--out', tmp_path / 'model.onnx']
    with pytest.raises(SystemExit, match='the model finds nothing in the generated images'):
        call(*given)
    found.append([0, 0, 1, 1])
    with pytest.raises(SystemExit, match='written'):
        call(*given)


def test_the_verdict_of_an_empty_comparison_is_not_agreement():
    case = (1, 20, 20, 'boxes, px', 0.0, 1e-2)
    assert Comparison(*case, 0).verdict == 'nothing was found, so nothing was compared'
    assert Comparison(*case, 3).verdict == 'agrees'
    assert Comparison(*case, 0, '1 boxes instead of 0').verdict == 'DIFFERS 1 boxes instead of 0'

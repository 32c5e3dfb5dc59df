"""tools/export.py: a verified file is renamed to its destination, others are deleted."""

import pytest
import torch
from export_models import detector, trained_classifier

from cpvt import command_line as cli
from cpvt_backbones import export as package
from cpvt_backbones import inference
from cpvt_backbones.export.exported import ExportedModel
from cpvt_backbones.export.verification import MEASURES


@pytest.fixture
def trained(tmp_path):
    """Config and checkpoint of a classifier."""
    return trained_classifier(tmp_path)


@pytest.mark.full
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
        ('--out model.pt2', "--out: must have the suffix .onnx for --format onnx, got 'model.pt2'"),
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

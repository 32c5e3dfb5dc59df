"""tools/export.py: a verified file is renamed to its destination, others are deleted."""

import command_line as cli
import pytest
import torch
from mmengine.runner import save_checkpoint

from cpvt_backbones.export.exported import ExportedModel
from cpvt_backbones.export.verification import MEASURES, Comparison

CONFIG = """
custom_imports = dict(imports=['cpvt_backbones'])
default_scope = 'mmpretrain'
model = dict(
    type='ImageClassifier',
    backbone=dict(type='CPVT', arch=dict(embed_dims=16, depth=1, num_heads=2, mlp_ratio=2),
        patch_size=8),
    neck=None,
    head=dict(type='LinearClsHead', num_classes=3, in_channels=16))
model['backbone'].update(with_cls_token=False, out_type='avg_featmap', position=dict(type='PEG',
    after_blocks=(0,)))
data_preprocessor = dict(mean=[127.5] * 3, std=[127.5] * 3, to_rgb=True, num_classes=3)
test_dataloader = dict(dataset=dict(
    type='CustomDataset', data_root='', pipeline=[dict(type='LoadImageFromFile'),
        dict(type='PackInputs')]))
"""


@pytest.fixture
def trained(tmp_path):
    """Config and checkpoint of a classifier."""
    pytest.importorskip('mmpretrain')
    from mmpretrain import get_model

    from cpvt_backbones.toolboxes import read_config

    (tmp_path / 'config.py').write_text(CONFIG)
    torch.manual_seed(0)
    model = get_model(read_config(tmp_path / 'config.py'))
    model.init_weights()
    save_checkpoint(dict(state_dict=model.state_dict(), meta={}), str(tmp_path / 'model.pth'))
    return tmp_path / 'config.py', tmp_path / 'model.pth'


def test_verified_file_is_written(trained, tmp_path, call, capsys):
    out = tmp_path / 'new' / 'model.pt2'
    call(
        'export',
        *trained,
        '--format',
        'torch_export',
        '--out',
        out,
        '--verify-sizes',
        '9x21',
        '40x40',
    )
    words = capsys.readouterr().out
    assert words.count('  agrees') == 4 and '9 x 21' in words and 'DIFFERS' not in words
    assert [path.name for path in out.parent.iterdir()] == ['model.pt2']
    exported = ExportedModel(out)
    assert exported.task == 'classification' and exported.metadata['format'] == 'torch_export'

    features = tmp_path / 'features.pt2'
    call(
        'export',
        *trained,
        '--format',
        'torch_export',
        '--out',
        features,
        '--part',
        'backbone',
        '--verify-sizes',
        '30x20',
    )
    assert ExportedModel(features).task == 'features'


def test_differing_file_is_deleted(trained, tmp_path, call, capsys, monkeypatch):
    monkeypatch.setitem(MEASURES, 'classification', ('scores', -1.0))  # no difference is as small
    with pytest.raises(SystemExit) as stop:
        call(
            'export',
            *trained,
            '--format',
            'torch_export',
            '--out',
            tmp_path / 'model.pt2',
            '--verify-sizes',
            '20x20',
        )
    assert 'model.pt2 was not written' in str(stop.value.code)
    assert 'DIFFERS' in capsys.readouterr().out
    assert not list(tmp_path.glob('*.pt2'))


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['--out', 'model.pt2'], "path must have the suffix .onnx for format='onnx'"),
        (
            ['--out', 'model.onnx', '--logits'],
            'logits must be False unless the model is a segmentor',
        ),
        (
            ['--out', 'model.onnx', '--verify-sizes', '20x'],
            'HEIGHTxWIDTH or SIDE in px is expected, such as',
        ),
        (
            ['--out', 'model.onnx', '--verify-batches', '0'],
            '--verify-batches: an integer of at least 1 is expected',
        ),
        (['--out', 'model.onnx', '--verify-images', 'none'], "there is no file or folder 'none'"),
    ],
)
def test_wrong_arguments_end_in_one_line(
    arguments, message, trained, refused, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert message in refused('export', *trained, *arguments)
    assert not [*tmp_path.glob('*.onnx'), *tmp_path.glob('*.pt2')]


def test_checkpoint_of_another_model_is_refused(trained, tmp_path, refused):
    torch.save(dict(state_dict=dict(nothing=torch.zeros(1))), tmp_path / 'other.pth')
    line = refused('export', trained[0], tmp_path / 'other.pth', '--out', tmp_path / 'model.onnx')
    assert 'does not fit the model' in line


def test_a_detector_that_finds_nothing_is_not_exported(tmp_path, call, monkeypatch):
    """It is told before the file is written; with a box, the file is."""
    pytest.importorskip('mmdet')
    from export_models import detector

    from cpvt_backbones import export as package
    from cpvt_backbones import inference

    model = detector('single', levels=1)
    found = []

    class Predictor:
        classes = palette = size_steps = sizes = None

        def __init__(self, **_):
            self.model = model

        def predict(self, images):
            return [dict(boxes=found) for _ in images]

    monkeypatch.setattr(inference, 'ToolboxPredictor', Predictor)
    monkeypatch.setattr(cli, 'config_from', lambda *_: None)
    written = []
    monkeypatch.setattr(package, 'export', lambda *_, **__: written.append(1) or exit('written'))
    given = ['export', 'a.py', 'a.pth', '--out', tmp_path / 'model.onnx']
    for stopped in ('the model finds nothing in the generated images', 'written'):
        with pytest.raises(SystemExit, match=stopped):
            call(*given)
        found.append([0, 0, 1, 1])
    assert written == [1]


def test_the_verdict_of_an_empty_comparison_is_not_agreement():
    case = (1, 20, 20, 'boxes, px', 0.0, 1e-2)
    assert Comparison(*case, 0).verdict == 'nothing was found, so nothing was compared'
    assert Comparison(*case, 3).verdict == 'agrees'
    assert Comparison(*case, 0, '1 boxes instead of 0').verdict == 'DIFFERS 1 boxes instead of 0'

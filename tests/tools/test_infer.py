"""The command line of infer.py."""

import hashlib
import json

import numpy as np
import pytest
import torch
from PIL import Image
from test_command_lines import classification

pytest.importorskip('mmpretrain')


@pytest.fixture(scope='module')
def model(tmp_path_factory):
    """Config and checkpoint of a tiny classifier."""
    from mmengine.runner import save_checkpoint
    from mmpretrain import get_model

    from cpvt_backbones.engine.launch import read_config

    folder = tmp_path_factory.mktemp('model')
    config, _ = classification(None, folder)
    save_checkpoint(dict(state_dict=get_model(read_config(config)).state_dict()), str(folder / 'model.pth'))
    return config, folder / 'model.pth'


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / 'photos'
    folder.mkdir()
    for i, size in enumerate([(31, 53), (97, 20), (31, 53)]):
        Image.fromarray(np.full((*size, 3), 80 * i, np.uint8)).save(folder / f'{i}.png')
    return folder


def infer(call, *arguments):
    """The exit code."""
    try:
        call('infer', *arguments)
    except SystemExit as stop:
        return stop.code
    return 0


def test_exit_code_tells_of_failures_only_if_asked(model, photos, tmp_path, call, capsys):
    out = ['--out-dir', tmp_path / 'out', '--device', 'cpu']
    assert infer(call, photos, *model, *out, '--strict') == 0
    (photos / 'bad.png').touch()
    assert infer(call, photos, *model, *out) == 0
    printed = capsys.readouterr().out
    assert f'not predicted: {photos / "bad.png"}: the file is empty' in printed
    assert '0 images predicted, 3 were there already, 1 could not be' in printed
    assert infer(call, photos, *model, *out, '--strict') == 1
    assert len(json.loads((tmp_path / 'out' / 'predictions.json').read_text())) == 3


def test_options_reach_the_model(model, photos, tmp_path, call, monkeypatch):
    from cpvt_backbones import CPVT

    seen = []
    forward = CPVT.forward
    monkeypatch.setattr(CPVT, 'forward', lambda self, x: seen.append(tuple(x.shape)) or forward(self, x))
    out = ['--out-dir', tmp_path / 'out', '--device', 'cpu', '--no-pictures', '--batch-size', '2']
    assert infer(call, f'{tmp_path}/**/*.png', *model, *out) == 0
    assert seen == [(2, 3, 31, 53), (1, 3, 97, 20)]
    assert not (tmp_path / 'out' / 'vis').exists()
    seen.clear()
    assert infer(call, photos, *model, *out, '--long-side', '53') == 2
    assert infer(call, photos, *model, *out, '--long-side', '53', '--fresh') == 0
    assert seen == [(2, 3, 31, 53), (1, 3, 53, 11)]
    seen.clear()
    assert infer(call, photos, *model, *out, '--scale', 'config', '--fresh') == 0
    assert {shape[2:] for shape in seen} == {(24, 24)}
    assert infer(call, photos, *model, *out, '--fresh', '--max-pixels', '1000', '--tile-size', '31') == 2
    assert infer(call, photos, *model, *out, '--fresh', '--read-limit', '1700', '--strict') == 1


def test_interrupted(model, photos, tmp_path, call, capsys, monkeypatch):
    from cpvt_backbones import CPVT

    def interrupt(self, x):
        raise KeyboardInterrupt

    monkeypatch.setattr(CPVT, 'forward', interrupt)
    assert infer(call, photos, *model, '--out-dir', tmp_path / 'out') == 130
    assert 'the same command goes on where this one was' in capsys.readouterr().out


def test_wrong_arguments_end_in_one_line(model, photos, tmp_path, call, capsys):
    config, checkpoint = model
    (tmp_path / 'none').mkdir()
    for arguments, message in (
        ((photos, checkpoint), 'CONFIG.py CHECKPOINT, a file that tools/export.py wrote'),
        (tuple(model), 'inputs: there is nothing to predict on'),
        ((photos, 'none.onnx'), "path: there is no file 'none.onnx'"),
        ((photos, 'none.onnx', '--cfg-options', 'a=1'), 'none.onnx is an exported file, which has no config'),
        ((photos, config, 'none.pth'), "checkpoint: there is no file 'none.pth'"),
        (('none.png', config, 'none.pth'), "inputs: there is no file or folder 'none.png'"),
        ((tmp_path / 'none', *model), 'inputs: no image'),
        (('https://example.org/a.jpg', *model), 'URLs are not fetched'),
        ((photos, *model, '--scale', '10by10'), 'native, config or WIDTHxHEIGHT is accepted'),
        ((photos, *model, '--scale', '10x10', '--long-side', '10'), 'not allowed with argument'),
        ((photos, *model, '--overlap', '-1'), 'overlap must be at least 0'),
    ):
        assert infer(call, *arguments) == 2
        assert message in capsys.readouterr().err


@pytest.fixture
def shipped(model, tmp_path, monkeypatch):
    """The tiny classifier as if it came with the package, as 'small-toys'."""
    from cpvt_backbones import weights
    from cpvt_backbones.checkpoints import write_checkpoint

    folder = tmp_path / 'package'
    monkeypatch.setattr(weights, 'FOLDER', folder)
    file = folder / 'small-toys.safetensors'
    write_checkpoint(torch.load(model[1], weights_only=False)['state_dict'], file, meta={})
    entry = dict(about='a toy', backbone={}, config=str(model[0]), sha256=hashlib.sha256(file.read_bytes()).hexdigest())
    (folder / 'index.json').write_text(json.dumps({'small-toys': entry}))
    return 'small-toys'


def test_a_name_is_a_model_and_so_is_a_name_behind_its_config(model, shipped, photos, tmp_path, call):
    found = []
    for given in (model, (shipped,), (model[0], shipped)):
        out = tmp_path / f'out{len(found)}'
        assert infer(call, photos, *given, '--out-dir', out, '--device', 'cpu', '--no-pictures', '--strict') == 0
        found.append(json.loads((out / 'predictions.json').read_text()))
    assert found[0] == found[1] == found[2] and len(found[0]) == 3


@pytest.mark.parametrize('arguments', [[], ['photos/']])
def test_without_a_model_it_names_what_there_is(shipped, call, capsys, arguments):
    assert infer(call, *arguments) == 2
    assert 'weights that come with the package:\n  small-toys: a toy' in capsys.readouterr().err

"""The command line of infer.py."""

import json
import logging

import numpy as np
import pytest
from PIL import Image
from tiny_configs import classification

from cpvt_backbones.weights import find_shipped, shipped_weights

pytest.importorskip('mmpretrain')


@pytest.fixture(scope='module')
def model(tmp_path_factory):
    """Config and checkpoint of a tiny classifier."""
    from mmengine.runner import save_checkpoint
    from mmpretrain import get_model

    from cpvt_backbones.toolboxes import read_config

    folder = tmp_path_factory.mktemp('model')
    config, _ = classification(None, folder)
    save_checkpoint(
        dict(state_dict=get_model(read_config(config)).state_dict()), str(folder / 'model.pth')
    )
    return config, folder / 'model.pth'


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / 'photos'
    folder.mkdir()
    for i, size in enumerate([(31, 53), (97, 20), (31, 53)]):
        Image.fromarray(np.full((*size, 3), 80 * i, np.uint8)).save(folder / f'{i}.png')
    return folder


def infer(call, *arguments):
    """Exit code."""
    try:
        call('infer', *arguments)
    except SystemExit as stop:
        return stop.code
    return 0


def test_exit_code_tells_of_failures_only_if_asked(model, photos, tmp_path, call, capsys):
    out = ['--out-dir', tmp_path / 'out', '--device', 'cpu']
    assert infer(call, *model, photos, *out, '--strict') == 0
    (photos / 'bad.png').touch()
    assert infer(call, *model, photos, *out) == 0
    printed = capsys.readouterr().out
    assert f'not predicted: {photos / "bad.png"}: the file is empty' in printed
    assert '0 images predicted, 3 found from earlier runs, 1 failed' in printed
    assert infer(call, *model, photos, *out, '--strict') == 1
    assert len(json.loads((tmp_path / 'out' / 'predictions.json').read_text())) == 3


def test_options_reach_the_model(model, photos, tmp_path, call, monkeypatch):
    from cpvt_backbones import CPVT

    seen = []
    forward = CPVT.forward
    monkeypatch.setattr(
        CPVT, 'forward', lambda self, x: seen.append(tuple(x.shape)) or forward(self, x)
    )
    out = ['--out-dir', tmp_path / 'out', '--device', 'cpu', '--no-vis', '--batch-size', '2']
    assert infer(call, *model, f'{tmp_path}/**/*.png', *out, '--scale', 'native') == 0
    assert seen == [(2, 3, 31, 53), (1, 3, 97, 20)]
    assert not (tmp_path / 'out' / 'vis').exists()
    seen.clear()
    assert infer(call, *model, photos, *out, '--long-side', '53') == 2
    assert infer(call, *model, photos, *out, '--long-side', '53', '--overwrite') == 0
    assert seen == [(2, 3, 31, 53), (1, 3, 53, 11)]
    seen.clear()
    assert infer(call, *model, photos, *out, '--scale', 'config', '--overwrite') == 0
    assert {shape[2:] for shape in seen} == {(24, 24)}
    tiled = ['--max-pixels', '1000', '--tile-size', '31']
    assert infer(call, *model, photos, *out, '--overwrite', *tiled) == 2
    assert infer(call, *model, photos, *out, '--overwrite', '--read-limit', '1700', '--strict') == 1


def test_interrupted(model, photos, tmp_path, call, capsys, monkeypatch):
    from cpvt_backbones import CPVT

    def interrupt(self, x):
        raise KeyboardInterrupt

    monkeypatch.setattr(CPVT, 'forward', interrupt)
    assert infer(call, *model, photos, '--out-dir', tmp_path / 'out') == 130
    assert capsys.readouterr().err.endswith('interrupted; the same command resumes\n')


def test_wrong_arguments_end_in_one_line(model, photos, tmp_path, refused):
    config, checkpoint = model
    (tmp_path / 'none').mkdir()
    for arguments, message in (
        ((checkpoint, photos), 'must be a model: CONFIG.py CHECKPOINT, an exported model (.onnx'),
        (model, 'images: none are given after the model'),
        (('none.onnx', photos), "path: there is no file 'none.onnx'"),
        (
            ('none.onnx', photos, '--cfg-options', 'a=1'),
            'the exported file none.onnx has no config',
        ),
        ((config, 'none.pth', photos), "checkpoint: there is no file or folder 'none.pth'"),
        ((config, 'none.pth', 'none.png'), "inputs: there is no file or folder 'none.png'"),
        ((*model, tmp_path / 'none'), 'inputs: no image'),
        ((*model, 'https://example.org/a.jpg'), 'URLs are not fetched'),
        (
            (*model, photos, '--scale', '10by10'),
            'config|native|FACTOR|HEIGHTxWIDTH or SIDE is expected',
        ),
        ((*model, photos, '--scale', '10x10', '--long-side', '10'), 'not allowed with argument'),
        ((*model, photos, '--overlap', '-1'), 'overlap must be at least 0'),
        ((*model, photos, '--out-dir', ''), "must be the path of a folder, got ''"),
        ((*model, photos, '--out-dir', 'a\0b'), "must be the path of a folder, got 'a\\x00b'"),
    ):
        assert message in refused('infer', *arguments)


@pytest.mark.parametrize('arguments', [['photos/'], ['photos/', 'more/']])
def test_without_a_model_it_lists_the_shipped_ones(refused, arguments):
    line = refused('infer', *arguments)
    assert all(f'{name} (' in line for name in shipped_weights())


def test_exit_code_if_no_image_could_be_predicted(model, tmp_path, call):
    (tmp_path / 'bad.png').touch()
    arguments = [*model, tmp_path / 'bad.png', '--out-dir', tmp_path / 'out', '--device', 'cpu']
    assert infer(call, *arguments) == 1
    (failed,) = json.loads((tmp_path / 'out' / 'failed.json').read_text())
    assert failed['reason'] == 'the file is empty'


def test_no_noise_of_the_toolboxes(model, photos, tmp_path, call, capfd, recwarn):
    """What is optional, registries and classes are no news to a user."""
    options = ['--out-dir', tmp_path / 'out', '--device', 'cpu', '--no-vis']
    assert infer(call, *model, photos, *options) == 0
    out, err = capfd.readouterr()
    assert [line for line in (out + err).splitlines() if not line.startswith('images ')] == [
        'scale: ResizeEdge 32, CenterCrop 24, as in its test pipeline',
        f'{tmp_path / "out"}: 3 images predicted, 0 found from earlier runs, 0 failed',
    ]
    assert not [warning for warning in recwarn if warning.category is UserWarning]
    assert logging.getLogger().manager.disable == logging.NOTSET


def test_weights_of_another_model_end_in_one_sentence(refused, photos, tmp_path):
    pytest.importorskip('mmdet')
    pytest.importorskip('mmseg')
    detector = next(name for name in shipped_weights() if name.startswith('retinanet'))
    segmentor = next(name for name in shipped_weights() if name.startswith('semantic'))
    out = ['--out-dir', tmp_path / 'out', '--device', 'cpu']
    line = refused('infer', find_shipped(detector).config_file, segmentor, photos, *out)
    assert 'it does not fit the model: ' in line and 'weights have other shapes ((' in line
    assert len(line) < 500


def test_shards_of_a_slurm_array_merge_to_one_run(
    model, photos, tmp_path, call, capsys, monkeypatch
):
    def run(name, *arguments):
        given = [*model, photos, '--device', 'cpu', '--out-dir', tmp_path / name, '--no-vis']
        return infer(call, *given, *arguments)

    assert run('one') == 0
    monkeypatch.setenv('SLURM_ARRAY_TASK_COUNT', '2')
    monkeypatch.setenv('SLURM_ARRAY_TASK_MIN', '1')
    monkeypatch.setenv('SLURM_ARRAY_TASK_ID', '1')
    assert run('out', '--shard', 'auto') == 0
    assert 'shard 0/2; when all have ended: --merge' in capsys.readouterr().out
    assert run('out', '--merge') == 2
    assert 'shard 1 of 2' in capsys.readouterr().err
    assert run('out', '--shard', '1/2') == 0
    monkeypatch.setattr('cpvt_backbones.inference.Inferencer', None)  # no model is loaded
    assert run('out', '--merge') == 0
    assert '0 images predicted, 3 found from earlier runs' in capsys.readouterr().out
    for file in ('predictions.json', 'images.json', 'failed.json'):
        assert (tmp_path / 'out' / file).read_bytes() == (tmp_path / 'one' / file).read_bytes()
    assert run('out', '--shard', '2/2') == run('out', '--merge', '--overwrite') == 2
    error = capsys.readouterr().err
    assert '--shard: I/N with I from 0 to N - 1' in error and '--merge: it joins' in error


def test_a_model_that_finds_nothing_says_so(photos, tmp_path, call, capsys, monkeypatch):
    """Now and from records, with the highest score."""

    class Blind:
        task, classes, palette, fingerprint = 'detection', ('a',), None, 'blind'
        scores = [0.07, 0.21]

        def __init__(self, **_):
            pass

        def predict(self, images):
            scores = np.array(self.scores)
            count = len(scores)
            one = dict(boxes=np.ones((count, 4)), scores=scores, labels=np.zeros(count, int))
            return [one] * len(images)

    monkeypatch.setattr('cpvt_backbones.inference.inferencer.ToolboxPredictor', Blind)
    monkeypatch.setattr('command_line.config_from', lambda *_: 'config')
    given = ['a.py', 'a.pth', photos, '--no-vis', '--out-dir']
    for _ in range(2):
        assert infer(call, *given, tmp_path / 'out') == 0
        message = 'nothing was found: no box has a score of --score-thr 0.3 or more, the highest'
        assert f'{message} is 0.21' in capsys.readouterr().out
    assert infer(call, *given, tmp_path / 'low', '--score-thr', '0.2') == 0
    assert 'nothing was found' not in capsys.readouterr().out
    Blind.scores = []
    assert infer(call, *given, tmp_path / 'none') == 0
    assert 'the model has no box in any image, of any score' in capsys.readouterr().out

"""The command line of infer.py."""

import argparse
import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny_configs import classification, lively_model, save

from cpvt_backbones import CPVT
from cpvt_backbones.weights import find_shipped, shipped_weights

pytest.importorskip('mmpretrain')


@pytest.fixture(scope='module')
def model(tmp_path_factory):
    """Config and checkpoint of a tiny classifier."""
    folder = tmp_path_factory.mktemp('model')
    config, _ = classification(None, folder)
    return config, save(lively_model(config), folder / 'model.pth')


@pytest.fixture(autouse=True)
def photos(tmp_path, monkeypatch):
    """The working directory has a folder of three photographs."""
    monkeypatch.chdir(tmp_path)
    Path('photos').mkdir()
    for i, (width, height) in enumerate([(53, 31), (20, 97), (53, 31)]):
        Image.new('RGB', (width, height), (80 * i,) * 3).save(f'photos/{i}.png')


@pytest.fixture
def infer(call, model):
    """Function that runs infer.py on photographs and returns the exit code."""

    def infer(*options, model=model, inputs='photos', out='out'):
        try:
            call('infer', *model, inputs, '--device', 'cpu', '--out-dir', out, *options)
        except SystemExit as stop:
            return stop.code
        return 0

    return infer


def test_the_file_that_is_taken_from_a_work_directory_is_named(infer, model, capsys):
    config, file = model
    Path('work').mkdir()
    for name in ('iter_2.pth', 'best_accuracy_iter_1.pth'):
        shutil.copy(file, f'work/{name}')
    assert infer(model=(config, 'work')) == 0
    assert 'checkpoint: work/best_accuracy_iter_1.pth\n' in capsys.readouterr().out
    assert infer() == 0  # the same weights, from a file: the folder has the results
    assert 'checkpoint:' not in capsys.readouterr().out


def test_predictions_are_a_table(infer, capsys):
    assert infer('--csv') == 0
    assert 'table: out/predictions.csv\n' in capsys.readouterr().out
    found = json.loads(Path('out/predictions.json').read_text())
    header, *rows = csv.reader(Path('out/predictions.csv').read_text().splitlines())
    assert header == ['image', 'class', 'score']
    assert rows == [
        [f'photos/{i}.png', one['class'], str(one['score'])] for i, one in enumerate(found)
    ]
    assert infer('--overwrite') == 0 and not Path('out/predictions.csv').exists()


def test_exit_code_tells_of_failures_only_if_asked(infer, capsys):
    assert infer('--strict') == 0
    scale = 'scale: ResizeEdge 32, CenterCrop 24, as in its test pipeline\n'
    printed = capsys.readouterr().out
    assert scale in printed and re.search(r'^time: [\d.]+ s on cpu$', printed, re.MULTILINE)
    one_or_two = r'^classes: \w+ \(3\)$|^classes: \w+ \(2\), \w+ \(1\)$'
    assert re.search(one_or_two, printed, re.MULTILINE)
    assert printed.endswith('pictures: out/vis\nout: 3 images predicted\n')
    Path('photos/bad.png').touch()
    assert infer() == 0
    printed = capsys.readouterr().out
    assert 'time:' not in printed
    assert 'not predicted: photos/bad.png: the file is empty' in printed
    assert 'out: 3 images already predicted by earlier runs, 1 failed' in printed
    assert infer('--strict') == 1
    assert len(json.loads(Path('out/predictions.json').read_text())) == 3


def test_images_of_kinds_that_are_not_read_are_counted(infer, capsys):
    for name in ('b.heic', 'c.HEIC', 'd.heif', 'e.avif', 'f.dng'):
        Path('photos', name).write_bytes(b'\0\0\0 ftypheic' + bytes(100))
    line = 'left out: 5 files of unsupported formats (.avif, .dng, .heic, .heif): convert'
    for inputs, code in (('photos', 0), ('photos/*', 0), ('photos', 1)):
        assert infer(*['--strict'] * code, inputs=inputs) == code
        printed = capsys.readouterr().out
        assert printed.count(line) == 1 and '3 images' in printed
    assert infer('--strict', inputs='photos/*.png') == 0
    assert 'left out' not in capsys.readouterr().out
    for file in Path('photos').glob('*.png'):
        file.unlink()
    assert infer(inputs='photos') == 2
    assert '5 files of unsupported formats' in capsys.readouterr().err


def test_exit_code_if_no_image_could_be_predicted(infer):
    Path('bad.png').touch()
    assert infer(inputs='bad.png') == 1
    (failed,) = json.loads(Path('out/failed.json').read_text())
    assert failed['reason'] == 'the file is empty'


def test_exit_code_of_an_interruption(infer, capsys, monkeypatch):
    def interrupt(self, x):
        raise KeyboardInterrupt

    monkeypatch.setattr(CPVT, 'forward', interrupt)
    assert infer() == 130
    assert capsys.readouterr().err.endswith('interrupted; the same command resumes\n')


def test_options_reach_the_model(infer, monkeypatch):
    seen = []
    forward = CPVT.forward
    monkeypatch.setattr(
        CPVT, 'forward', lambda self, x: seen.append(tuple(x.shape)) or forward(self, x)
    )
    options = ['--no-vis', '--batch-size', '2']
    assert infer(*options, '--scale', 'native', inputs='**/*.png') == 0
    assert seen == [(2, 3, 31, 53), (1, 3, 97, 20)]
    assert not Path('out/vis').exists()
    seen.clear()
    assert infer(*options, '--long-side', '53') == 2
    assert infer(*options, '--long-side', '53', '--overwrite') == 0
    assert seen == [(2, 3, 31, 53), (1, 3, 53, 11)]
    seen.clear()
    assert infer(*options, '--scale', 'config', '--overwrite') == 0
    assert {shape[2:] for shape in seen} == {(24, 24)}
    options += ['--overwrite']
    assert infer(*options, '--max-pixels', '1000', '--tile-size', '31') == 2
    assert infer(*options, '--read-limit', '1700', '--strict') == 1


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ('{1} photos', 'is not a model; names: docs/weights.md and docs/models.md; or give'),
        ('{0} {1}', 'images: none are given after the model'),
        ('none.onnx photos', "checkpoint: there is no file or folder 'none.onnx'"),
        ('empty.onnx photos --cfg-options a=1', 'the exported file empty.onnx has no config'),
        ('{0} none.pth photos', "checkpoint: there is no file or folder 'none.pth'"),
        ('{0} none.pth none.png', "inputs: there is no file or folder 'none.png'"),
        ('{0} {1} none', 'inputs: no image'),
        ('{0} {1} https://example.org/a.jpg', 'URLs are not fetched'),
        ('{0} {1} photos --scale 10by10', 'config|native|FACTOR|SIDE|HEIGHTxWIDTH is expected'),
        ('{0} {1} photos --scale 2', '--scale: 2.0 is a factor, 2 a side of 2 px'),
        ('{0} {1} photos --out x', 'unrecognized arguments: --out x; did you mean --out-dir?'),
        ('{0} {1} photos --overite', 'did you mean --overwrite?'),
        ('{0} {1} photos --scale 10x10 --long-side 10', 'not allowed with argument'),
        ('{0} {1} photos --overlap -1', 'an integer of at least 0 is expected'),
        ('{0} {1} photos --long-side 0', 'an integer of at least 1 is expected'),
        ('{0} {1} photos --out-dir ', "error: --out-dir must be the path of a folder, got ''"),
        ('{0} {1} photos --out-dir empty.onnx', "--out-dir: 'empty.onnx' is a file, not a folder"),
        ('{0} {1} photos --out-dir a\0b', "must be the path of a folder, got 'a\\x00b'"),
        ('{0} {1} photos --shard 2/2', '--shard: I/N with I from 0 to N - 1'),
        ('{0} {1} photos --merge --overwrite', '--merge: it joins'),
    ],
)
def test_wrong_arguments_are_refused(model, refused, arguments, message):
    Path('none').mkdir()
    Path('empty.onnx').touch()
    assert message in refused('infer', *arguments.format(*model).split(' '))


def test_a_whole_number_is_a_side_and_never_a_tiny_one():
    from cpvt.infer import parse_scale

    assert parse_scale('16') == (16, 16) and parse_scale('2x2') == (2, 2)
    assert parse_scale('2.0') == 2.0 and parse_scale('480x640') == (640, 480)
    for text in ('1', '15'):
        with pytest.raises(argparse.ArgumentTypeError, match=f'{text}.0 is a factor'):
            parse_scale(text)


@pytest.mark.parametrize('arguments', [['photos/'], ['photos/', 'more/']])
def test_without_a_model_it_says_where_the_names_stand(refused, arguments):
    line = refused('infer', *arguments)
    assert "'photos/' is not a model; names: docs/weights.md and docs/models.md;" in line


def test_weights_of_another_model_are_refused_in_one_sentence(refused):
    pytest.importorskip('mmdet')
    pytest.importorskip('mmseg')
    detector = next(name for name in shipped_weights() if name.startswith('retinanet'))
    segmentor = next(name for name in shipped_weights() if name.startswith('semantic'))
    line = refused('infer', find_shipped(detector).config_file, segmentor, 'photos')
    assert 'it does not fit the model: ' in line and 'weights have other shapes ((' in line
    assert len(line) < 500


def test_shards_of_a_slurm_array_merge_to_one_run(infer, capsys, monkeypatch):
    assert infer('--no-vis', out='one') == 0
    for name, value in dict(COUNT='2', MIN='1', ID='1').items():
        monkeypatch.setenv(f'SLURM_ARRAY_TASK_{name}', value)
    assert infer('--no-vis', '--shard', 'auto') == 0
    assert 'shard 0/2; when all have ended: --merge' in capsys.readouterr().out
    assert infer('--no-vis', '--merge') == 2
    assert 'shard 1 of 2' in capsys.readouterr().err
    assert infer('--no-vis', '--shard', '1/2') == 0
    monkeypatch.setattr('cpvt_backbones.inference.Inferencer', None)  # no model is loaded
    assert infer('--no-vis', '--merge') == 0
    assert 'out: 3 images already predicted by earlier runs' in capsys.readouterr().out
    for file in ('predictions.json', 'images.json', 'failed.json'):
        assert Path('out', file).read_bytes() == Path('one', file).read_bytes()


def test_a_model_that_finds_nothing_says_so(infer, capsys, monkeypatch):
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
    monkeypatch.setattr('cpvt.command_line.config_from', lambda *_: 'config')
    blind = dict(model=['a.py', 'a.pth'])
    for name in blind['model']:
        Path(name).touch()
    for _ in range(2):
        assert infer('--no-vis', **blind) == 0
        message = 'nothing was found: no box has a score of --score-thr 0.3 or more, the highest'
        assert f'{message} is 0.21' in capsys.readouterr().out
    assert infer('--no-vis', '--score-thr', '0.2', **blind, out='low') == 0
    printed = capsys.readouterr().out
    assert 'nothing was found' not in printed and 'pictures' not in printed
    assert 'boxes with a score of 0.2 or more: a (3)\n' in printed
    Blind.scores = []
    assert infer('--no-vis', **blind, out='none') == 0
    assert 'the model has no box in any image, of any score' in capsys.readouterr().out

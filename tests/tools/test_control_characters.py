"""Text of files reaches the terminal on one line, without control characters."""

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_configs import classification, lively_model

from cpvt.command_line import UsageError, run
from cpvt_backbones.errors import InputError

TITLE = '\x1b]0;title\x07'  # sets the title of a terminal
LINE = 'bad\r\nerror: all is well\x9b2J'


def is_plain(text):
    return not any(character < ' ' or '\x7f' <= character < '\xa0' for character in text)


@pytest.fixture
def model(tmp_path):
    """Config, and content of a checkpoint that fits it."""
    pytest.importorskip('mmpretrain')
    config, _ = classification(None, tmp_path)
    weights = lively_model(config).state_dict()
    return config, dict(state_dict=weights, meta=dict(dataset_meta=dict(classes=['dark', 'light'])))


@pytest.mark.parametrize('kind', [InputError, UsageError, OSError])
def test_the_line_of_an_error(kind, capsys):
    def main():
        raise kind(f'{TITLE} has {LINE}')

    with pytest.raises(SystemExit):
        run(main)
    (line,) = capsys.readouterr().err.splitlines()
    assert is_plain(line)
    assert line == r'error: \x1b]0;title\x07 has bad error: all is well\x9b2J'


@pytest.mark.parametrize('key', [f'{TITLE}.weight', LINE])
def test_keys_of_a_checkpoint(key, model, tmp_path, refused, call, capsys):
    config, content = model
    weights = content['state_dict']
    files = (tmp_path / 'own.pth', tmp_path / 'new.pth', '--config', config)
    torch.save(dict(state_dict={**weights, f'backbone.{key}': torch.ones(2)}), files[0])
    line = refused('convert_checkpoint', *files)
    assert is_plain(line) and repr(key)[1:4] in line
    trunk = {
        name.removeprefix('backbone.'): value
        for name, value in weights.items()
        if name.startswith('backbone.')
    }
    torch.save({**trunk, f'head.{key}': torch.ones(2)}, files[0])  # the report names what it drops
    call('convert_checkpoint', *files)
    printed = capsys.readouterr().out
    assert all(map(is_plain, printed.split('\n'))) and repr(key)[1:5] in printed


@pytest.mark.parametrize('name', [TITLE, LINE])
def test_classes_of_a_checkpoint(name, model, tmp_path, call, refused, capsys):
    config, content = model
    content['meta']['dataset_meta']['classes'] = ['dark', name]
    torch.save(content, tmp_path / 'other.pth')
    assert is_plain(refused('test', config, tmp_path / 'other.pth', '--work-dir', tmp_path / 'w'))
    options = [f'load_from={tmp_path / "other.pth"}']
    call('train', config, '--work-dir', tmp_path / 'work', '--cfg-options', *options)
    printed = capsys.readouterr().out
    assert all(map(is_plain, printed.split('\n'))) and 'starts from random weights' in printed


@pytest.mark.parametrize('name', [TITLE, LINE])
def test_classes_and_folders_of_a_prediction(name, model, tmp_path, call, capsys):
    config, content = model
    content['meta']['dataset_meta']['classes'] = [f'{name}0', f'{name}1']
    torch.save(content, tmp_path / 'own.pth')
    noise = np.random.default_rng(0).integers(0, 255, (40, 32, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / 'photo.png')
    options = ['--out-dir', tmp_path / f'out{name}', '--device', 'cpu']
    options += ['--cfg-options', 'test_dataloader.dataset.classes=None']
    call('infer', config, tmp_path / 'own.pth', tmp_path / 'photo.png', *options)
    printed = capsys.readouterr().out.split('\n')
    assert all(map(is_plain, printed))
    assert any(line.startswith('classes: ') and repr(name)[1:5] in line for line in printed)

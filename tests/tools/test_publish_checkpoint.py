"""publish_checkpoint.py: weights alone, under a name with their hash."""

import hashlib
import re

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer

from cpvt_backbones.checkpoints import read_checkpoint


@pytest.fixture
def training_checkpoint(tmp_path):
    """As mmengine's Runner leaves it."""
    state = {
        'backbone.blocks.0.weight': torch.randn(4, 4),
        'backbone.bn.num_batches_tracked': torch.tensor(7),
        'head.weight': torch.randn(2, 4),
    }
    content = dict(state_dict=state, meta=dict(epoch=12, iter=48, seed=np.int64(3)))
    content['optimizer'] = dict(state={0: dict(exp_avg=torch.randn(64, 64))}, param_groups=[])
    hub = dict(log_scalars=dict(loss=HistoryBuffer()), runtime_info={}, resumed_keys={})
    content['message_hub'] = hub
    path = tmp_path / 'epoch_12.pth'
    torch.save(content, path)
    (tmp_path / 'last_checkpoint').write_text(str(path))
    return path, state


def published(folder):
    (path,) = folder.iterdir()
    assert path.stem.rpartition('-')[2] == hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    return path


@pytest.mark.parametrize('from_folder', [False, True])
def test_publishing_keeps_the_weights_alone(
    training_checkpoint, from_folder, tmp_path, call, capsys
):
    source, state = training_checkpoint
    folder = tmp_path / 'out'
    call('publish_checkpoint', source.parent if from_folder else source, folder / 'model.pth')
    path = published(folder)
    assert re.fullmatch(r'model-[0-9a-f]{8}\.pth', path.name)
    assert str(path) in capsys.readouterr().out
    content = torch.load(path, weights_only=True)
    assert content.keys() == {'state_dict', 'meta'}
    assert content['state_dict'].keys() == state.keys()
    assert all(torch.equal(content['state_dict'][key], value) for key, value in state.items())
    assert path.stat().st_size < source.stat().st_size - 4 * 64 * 64 / 2


@pytest.mark.parametrize('suffix', ['.pth', '.pt', '.safetensors'])
def test_publishing_half_a_backbone(training_checkpoint, suffix, tmp_path, call):
    source, state = training_checkpoint
    call('publish_checkpoint', source, tmp_path / 'out' / f'model{suffix}', '--backbone', '--half')
    content = read_checkpoint(published(tmp_path / 'out'))
    weights = content if suffix == '.safetensors' else content['state_dict']
    assert weights.keys() == {'blocks.0.weight', 'bn.num_batches_tracked'}
    assert torch.equal(weights['blocks.0.weight'], state['backbone.blocks.0.weight'].half())
    assert weights['bn.num_batches_tracked'] == 7
    assert weights['bn.num_batches_tracked'].dtype == torch.int64


def test_publishing_twice_gives_one_name_and_other_weights_another(
    training_checkpoint, tmp_path, call
):
    source, state = training_checkpoint
    folder = tmp_path / 'out'
    call('publish_checkpoint', source, folder / 'model.pth')
    call('publish_checkpoint', source, folder / 'model.pth')
    published(folder)
    state['head.weight'] += 1
    torch.save(dict(state_dict=state), source)
    call('publish_checkpoint', source, folder / 'model.pth')
    assert len(list(folder.iterdir())) == 2


def test_publishing_leaves_files_of_that_name_alone(training_checkpoint, call):
    source, _ = training_checkpoint
    before = source.read_bytes()
    other = source.with_name('epoch_12-unnamed.pth')
    other.write_bytes(b'of the user')
    call('publish_checkpoint', source, source)
    assert source.read_bytes() == before and other.read_bytes() == b'of the user'
    assert len([*source.parent.glob('epoch_12-*.pth')]) == 2
    assert not [*source.parent.glob('.publish-*')]


@pytest.mark.parametrize(
    ('source', 'words', 'message'),
    [
        ('head.pth', 'out.pth --backbone', 'has no weights under backbone.'),
        ('empty.pth', 'out.pth', 'holds no weights'),
        ('head.pth', 'out.zip', 'destination must end in one of .pth, .pt'),
        ('none.pth', 'out.pth', 'there is no file or folder'),
    ],
)
def test_nothing_to_publish(source, words, message, tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    torch.save(dict(state_dict={'head.weight': torch.ones(1)}), 'head.pth')
    torch.save(dict(state_dict={}), 'empty.pth')
    assert message in refused('publish_checkpoint', source, *words.split())
    assert not list(tmp_path.glob('out*'))

"""Resuming runs nothing that a checkpoint holds, and deletes only files that the training wrote."""

import os
import shutil

import pytest
import torch
from short_runs import run

from cpvt_backbones.checkpoints import CheckpointError, newest_checkpoint, read_checkpoint

# The loss falls in every epoch, so the newest weights are the best.
OPTIONS = dict(
    validate=True,
    optimizer=dict(type='SGD', lr=0.01),
    checkpoint=dict(max_keep_ckpts=1, save_best='score', rule='greater'),
)


def train(folder, epochs, **options):
    return run(folder, epochs=epochs, **OPTIONS, **options)


@pytest.fixture
def trained(tmp_path):
    """The work directory of a training of one epoch, with its best checkpoint."""
    folder = tmp_path / 'A'
    train(folder, 1)
    assert (folder / 'best_score_epoch_1.pth').is_file()
    return folder


def edit(file, change):
    content = torch.load(file, weights_only=False)
    change(content)
    torch.save(content, file)


@pytest.mark.parametrize('key', ['config', 'cfg'])
def test_resuming_does_not_run_a_stored_config(key, trained, tmp_path):
    ran = tmp_path / 'ran'
    code = f'open({str(ran)!r}, "w").close()\n'
    edit(trained / 'epoch_1.pth', lambda content: content['meta'].update({key: code}))
    train(trained, 2, resume=True)
    assert (trained / 'epoch_2.pth').is_file() and not ran.exists()


@pytest.mark.parametrize('place', ['message_hub', 'meta'])
def test_an_inferencer_does_not_run_a_stored_config(place, trained, tmp_path):
    apis = pytest.importorskip('mmdet.apis')
    ran = tmp_path / 'ran'
    code = f'open({str(ran)!r}, "w").close()\nmodel = dict()\n'

    def change(content):
        content['meta']['cfg'] = code
        if place == 'message_hub':
            content['message_hub']['runtime_info']['cfg'] = code
        else:
            del content['message_hub']

    edit(trained / 'epoch_1.pth', change)
    wanted = 'never run; name the config' if place == 'message_hub' else 'Cannot find the config'
    with pytest.raises(ValueError, match=wanted):
        apis.DetInferencer(model=None, weights=str(trained / 'epoch_1.pth'), device='cpu')
    assert not ran.exists()


def test_reading_keeps_everything_but_configs_and_best_paths(trained):
    file = trained / 'epoch_1.pth'
    stored = torch.load(file, weights_only=False)
    content = read_checkpoint(file)
    assert stored['meta'].keys() - content['meta'].keys() <= {'cfg', 'config'}
    info, read = stored['message_hub']['runtime_info'], content['message_hub']['runtime_info']
    assert 'best_ckpt' in info
    assert info.keys() - read.keys() <= {'cfg', 'best_ckpt'}
    with pytest.raises(CheckpointError, match='never run'):
        read['cfg']
    with pytest.raises(KeyError):
        read['other']


def test_a_copied_training_does_not_delete_the_best_file_of_the_first(trained, tmp_path):
    copy = tmp_path / 'B'
    shutil.copytree(trained, copy)
    train(copy, 3, resume=True)
    assert (trained / 'best_score_epoch_1.pth').is_file()
    assert sorted(path.name for path in copy.glob('best_*')) == ['best_score_epoch_3.pth']


@pytest.mark.parametrize('kind', ['file', 'folder'])
def test_resuming_does_not_delete_what_a_checkpoint_names(kind, trained, tmp_path):
    foreign = tmp_path / 'photos'
    if kind == 'folder':
        foreign.mkdir()
        (foreign / 'a.jpg').write_bytes(b'a')
    else:
        foreign.write_bytes(b'a')

    def change(content):
        info = content['message_hub']['runtime_info']
        info.update(best_ckpt=str(foreign), best_score=-1.0)
        info['keep_ckpt_ids'] = [f'/../../{foreign.name}', '../x', 10**9, None, 1]

    edit(trained / 'epoch_1.pth', change)
    train(trained, 2, resume=True)
    assert foreign.exists() and len(list(tmp_path.rglob('a.jpg'))) == (kind == 'folder')


def test_a_folder_with_the_name_of_a_checkpoint_is_kept(trained):
    (trained / 'epoch_2.pth').mkdir()
    with pytest.raises(FileExistsError, match=r'epoch_2\.pth.* is a folder'):
        train(trained, 2, resume=True)
    assert (trained / 'epoch_2.pth').is_dir() and (trained / 'epoch_1.pth').is_file()


@pytest.mark.parametrize(
    'pointer',
    ['..', '/', '.', '../..', '', 'A', '{folder}', '{folder}/', 'x' * 5000, 'a\0b', '/etc'],
)
def test_a_pointer_to_no_checkpoint_is_not_followed(pointer, trained):
    (trained / 'last_checkpoint').write_text(pointer.format(folder=trained))
    assert newest_checkpoint(trained) == trained / 'epoch_1.pth'


def test_a_newer_checkpoint_is_found_though_the_pointer_is_later_by_the_clock(trained):
    old = (trained / 'epoch_1.pth').read_bytes()
    train(trained, 2, resume=True)
    (trained / 'epoch_1.pth').write_bytes(old)
    (trained / 'last_checkpoint').write_text(str(trained / 'epoch_1.pth'))
    assert newest_checkpoint(trained) == trained / 'epoch_2.pth'
    # Of several later files the highest iteration counts, not the clock.
    content = torch.load(trained / 'epoch_2.pth', weights_only=False)
    content['meta']['iter'] += 1
    torch.save(content, trained / 'epoch_3.pth')
    os.utime(trained / 'epoch_3.pth', (1, 1))
    for pointer in (str(trained / 'epoch_1.pth'), 'nothing.pth'):
        (trained / 'last_checkpoint').write_text(pointer)
        assert newest_checkpoint(trained) == trained / 'epoch_3.pth'
    (trained / 'epoch_3.pth').unlink()
    (trained / 'epoch_2.pth').rename(trained / 'interrupted.pth')
    (trained / 'last_checkpoint').write_text(str(trained / 'epoch_1.pth'))
    assert newest_checkpoint(trained) == trained / 'interrupted.pth'

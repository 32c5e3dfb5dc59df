"""Reading of every kind of file, and the message for every kind that is refused."""

import errno
import gzip
import io
import os
import pathlib
import shutil
import zipfile
from argparse import Namespace
from collections import OrderedDict

import numpy as np
import pytest
import torch
from hostile import refused
from mmengine.logging import HistoryBuffer
from mmengine.model import BaseModel
from safetensors.torch import save
from test_mmengine_loader import make_runner
from tiny import COLUMN, randomise

from cpvt_backbones import CPVT, convert_state_dict
from cpvt_backbones.checkpoints import (
    locate_checkpoint,
    newest_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from cpvt_backbones.checkpoints.reading import writing

WEIGHTS = {'a.weight': torch.arange(6.0).view(2, 3), 'b.bias': torch.ones(4, dtype=torch.float16)}


def assert_same(got, wanted=WEIGHTS):
    assert got.keys() == wanted.keys()
    for key, value in wanted.items():
        assert got[key].dtype == value.dtype and torch.equal(got[key], value)


@pytest.mark.parametrize('zipped', [True, False])
def test_files_of_torch_save_under_any_suffix(zipped, tmp_path):
    for suffix in ('.pth', '.bin', ''):
        torch.save(WEIGHTS, tmp_path / f'w{suffix}', _use_new_zipfile_serialization=zipped)
        assert_same(read_checkpoint(tmp_path / f'w{suffix}'))


@pytest.mark.parametrize('suffix', ['.pth', '.safetensors'])
def test_write_and_read(suffix, tmp_path):
    if suffix == '.safetensors':
        pytest.importorskip('safetensors')
    big = torch.randn(100, 100)
    weights = {**WEIGHTS, 'part': big[:2], 'transposed': big[:3].T}
    write_checkpoint(weights, tmp_path / 'new' / f'w{suffix}', meta=dict(source='somewhere'))
    assert (tmp_path / 'new' / f'w{suffix}').stat().st_size < 8000
    content = read_checkpoint(str(tmp_path / 'new' / f'w{suffix}'))
    assert_same(content if suffix == '.safetensors' else content['state_dict'], weights)
    plain = tmp_path / 'plain'
    plain.touch()
    assert (
        tmp_path / 'new' / f'w{suffix}'
    ).stat().st_mode == plain.stat().st_mode  # others may read it, as any file
    with pytest.raises(
        ValueError, match=r"destination must end in one of .pth, .pt, .safetensors, got 'w.h5'"
    ):
        write_checkpoint(weights, 'w.h5', meta={})
    with pytest.raises(TypeError, match='destination must be a path, .* got 3'):
        write_checkpoint({}, 3, meta={})


class Model(BaseModel):
    def __init__(self):
        super().__init__()
        self.backbone = randomise(CPVT(arch=COLUMN, img_size=32))

    def forward(self, inputs, mode):
        images = inputs[:, :, None, None].expand(-1, -1, 32, 32)
        return dict(loss=self.backbone(images)[0].square().mean())


def test_work_directory(tmp_path):
    runner = make_runner(tmp_path / 'run', 2, model=Model())
    runner.train()
    content = read_checkpoint(tmp_path / 'run')
    assert content['meta']['iter'] == 2
    assert isinstance(content['message_hub']['log_scalars']['train/loss'], HistoryBuffer)
    # The optimizer steps once more before the hook stores: EMAHook swaps the two on saving.
    trained, averaged = (content[key] for key in ('ema_state_dict', 'state_dict'))
    weight = runner.model.backbone.norm.weight
    assert torch.equal(weight, trained['module.backbone.norm.weight'])
    assert not torch.equal(weight, averaged['backbone.norm.weight'])
    for ema in (False, True):
        state_dict, _ = convert_state_dict(content, CPVT(arch=COLUMN, img_size=32), ema=ema)
        assert torch.equal(state_dict['norm.weight'], averaged['backbone.norm.weight'])
    (tmp_path / 'run').rename(tmp_path / 'moved')
    assert read_checkpoint(tmp_path / 'moved')['meta']['iter'] == 2


@pytest.mark.parametrize('damage', ['empty', 'half', 'noise'])
def test_an_unreadable_checkpoint_of_a_run_is_passed_over(damage, tmp_path):
    for iteration in (2, 4):
        content = dict(state_dict=WEIGHTS, meta=dict(iter=iteration))
        torch.save(content, tmp_path / f'iter_{iteration}.pth')
    assert read_checkpoint(tmp_path)['meta']['iter'] == 4
    (tmp_path / 'last_checkpoint').write_text(str(tmp_path / 'iter_4.pth'))
    newest = (tmp_path / 'iter_4.pth').read_bytes()
    damages = dict(empty=b'', half=newest[: len(newest) // 2], noise=bytes(range(200)))
    (tmp_path / 'iter_4.pth').write_bytes(damages[damage])
    with pytest.warns(UserWarning, match=r'iter_4.pth is skipped: '):
        assert read_checkpoint(tmp_path)['meta']['iter'] == 2
    (tmp_path / 'iter_2.pth').write_bytes(damages[damage])
    with pytest.warns(UserWarning):
        refused(tmp_path, 'none of the checkpoints in .* can be read')


def test_atomic_write_flushes_before_it_renames(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(
        writing.os,
        'fsync',
        lambda handle: flushed.append(sorted(p.name for p in tmp_path.iterdir())),
    )
    with writing.atomic_write(tmp_path / 'w') as file:
        file.write(b'content')
        assert not (tmp_path / 'w').exists()
    (part,), folder = flushed
    assert (
        part.endswith('.part') and folder == ['w'] and (tmp_path / 'w').read_bytes() == b'content'
    )
    with pytest.raises(KeyboardInterrupt), writing.atomic_write(tmp_path / 'w') as file:
        file.write(b'half')
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ['w'] and (
        tmp_path / 'w'
    ).read_bytes() == b'content'


def test_a_full_disk_is_named_by_the_file(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(writing.os, 'fsync', full)
    with (
        pytest.raises(OSError, match='No space left') as error,
        writing.atomic_write(tmp_path / 'w'),
    ):
        pass
    assert error.value.filename == str(tmp_path / 'w') and not [*tmp_path.iterdir()]


def test_other_content_of_training_scripts(tmp_path):
    """Command lines (DeiT, Twins), numpy scalars and arrays, paths."""
    beside = dict(
        args=Namespace(lr=1.0, out=pathlib.PurePosixPath('x').name),
        best=np.float64(1.5),
        seed=np.arange(3),
    )
    beside |= dict(where=pathlib.Path('x'), epoch=3, name='deit', size=torch.Size([1]))
    log = dict(loss=np.float64(0.5))
    beside |= dict(logs=(log, log))
    torch.save(dict(model=WEIGHTS, **beside), tmp_path / 'w.pth')
    before = set(torch.serialization.get_safe_globals())
    content = read_checkpoint(tmp_path / 'w.pth')
    assert set(torch.serialization.get_safe_globals()) == before
    assert_same(content['model'])
    assert (content['epoch'], content['name'], content['size']) == (3, 'deit', torch.Size([1]))
    assert (content['args'], content['best'], content['where']) == (None, 1.5, 'x')
    assert np.array_equal(content['seed'], np.arange(3))
    assert content['logs'] == (dict(loss=0.5), dict(loss=0.5))


def test_state_dict_of_python_2(tmp_path):
    """It stores an ordered dict as a list of pairs."""

    class Ordered:
        def __init__(self, *pairs):
            self.pairs = pairs

        def __reduce__(self):
            return OrderedDict, ([list(pair) for pair in self.pairs],)

    torch.save(Ordered(('a', torch.ones(2)), ('b', torch.zeros(1))), tmp_path / 'w.pth')
    found = read_checkpoint(tmp_path / 'w.pth')
    assert list(found) == ['a', 'b'] and torch.equal(found['a'], torch.ones(2))


def test_another_protocol_than_that_of_torch_save_is_named(tmp_path):
    torch.save(WEIGHTS, tmp_path / 'w.pth', pickle_protocol=4)
    refused(tmp_path / 'w.pth', 'is refused: its pickle is of protocol 4 or later; torch.sav')


def test_stored_module_is_refused_by_class_name(tmp_path):
    torch.save(dict(model=torch.nn.Linear(2, 2)), tmp_path / 'w.pth')
    refused(tmp_path / 'w.pth', r'refused: .* import torch.nn.modules.linear.Linear,')


@pytest.mark.parametrize('suffix', ['.pth', '.safetensors', 'legacy.pth'])
@pytest.mark.parametrize('part', [0.001, 0.5, 0.999])
def test_truncated(suffix, part, tmp_path):
    file = tmp_path / f'w{suffix}'
    weights = {**WEIGHTS, 'long': torch.randn(2000)}
    if suffix == '.safetensors':
        pytest.importorskip('safetensors')
        write_checkpoint(weights, file, meta={})
    else:
        torch.save(weights, file, _use_new_zipfile_serialization=suffix == '.pth')
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * part)])
    refused(file, r"checkpoint: '.*' is (truncated|no checkpoint, or) ")


def saved(content):
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def archive(name):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, 'w') as file:
        file.writestr(name, 'hello')
    return buffer.getvalue()


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (b'', r"the file '.*w.pth' is empty"),
        (b'version https://git-lfs.github.com/spec/v1\noid sha256:4d\n', 'a Git LFS pointer: '),
        (b'\n <!DOCTYPE html><html>404</html>', 'a web page: the download failed'),
        (gzip.compress(saved(dict(w=torch.ones(2)))), 'compressed by gzip: unpack it'),
        (b'\x89HDF\r\n\x1a\n' + bytes(50), 'HDF5, as Keras writes it'),
        (b'hello world, this is text', r'is truncated or damaged \(a value is missing\)'),
        (save(dict(w=torch.ones(2))), r'a safetensors file: rename it to \*.safetensors'),
        (archive('readme.txt'), 'is truncated or damaged'),
        (saved(torch.ones(2)), "'.*w.pth' holds a Tensor, not a dict of weights"),
    ],
    ids=['empty', 'pointer', 'page', 'gzip', 'hdf5', 'text', 'safetensors', 'archive', 'tensor'],
)
def test_not_a_checkpoint(content, message, tmp_path):
    (tmp_path / 'w.pth').write_bytes(content)
    refused(tmp_path / 'w.pth', message)


def test_a_file_of_torch_save_under_another_suffix(tmp_path):
    (tmp_path / 'w.safetensors').write_bytes(saved(dict(w=torch.ones(2))))
    refused(tmp_path / 'w.safetensors', r'a file of torch.save: rename it to \*.pth')


def test_lengths_of_safetensors_that_look_like_another_format(tmp_path):
    """A file begins with the length of its header: 640 bytes are a pickle's first two."""
    for length in (640, 0x4B50):  # b'\x80\x02', b'PK'
        file = tmp_path / 'w.safetensors'
        file.write_bytes(save(dict(w=torch.ones(2)), metadata=dict(note='')))
        missing = length - int.from_bytes(file.read_bytes()[:8], 'little')
        file.write_bytes(save(dict(w=torch.ones(2)), metadata=dict(note='x' * missing)))
        assert int.from_bytes(file.read_bytes()[:8], 'little') == length
        assert_same(read_checkpoint(file), dict(w=torch.ones(2)))


def test_archives_of_other_formats_are_named(tmp_path):
    torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)).save(tmp_path / 'script.pt')
    np.savez_compressed(tmp_path / 'arrays.npz', weight=np.ones(2))
    for name, kind in {
        'script.pt': 'a TorchScript archive, .* torch.jit.load and save its state_dict',
        'arrays.npz': r'an archive of NumPy \(.npz\)',
    }.items():
        refused(tmp_path / name, f"{name}' is refused: it is {kind}")


def test_a_pointer_to_a_missing_file(tmp_path):
    (tmp_path / 'last_checkpoint').write_text('/elsewhere/iter_3.pth\n')
    with pytest.raises(FileNotFoundError, match="names '/elsewhere/iter_3.pth', which is not"):
        read_checkpoint(tmp_path)
    (tmp_path / 'last_checkpoint').write_bytes(bytes(range(128, 256)))  # no text
    with pytest.raises(FileNotFoundError, match='which is not there'):
        read_checkpoint(tmp_path)


def test_the_newest_checkpoint_needs_no_pointer(tmp_path):
    contents = (None, b'', b'\xff\x00\x80', b'/elsewhere/iter_12.pth', b'iter_99.pth')
    for content in (*contents, str(tmp_path).encode()):
        torch.save(dict(state_dict=WEIGHTS, meta=dict(iter=12)), tmp_path / 'iter_12.pth')
        (tmp_path / 'last_checkpoint').unlink(missing_ok=True)
        if content is not None:
            (tmp_path / 'last_checkpoint').write_bytes(content)
        assert newest_checkpoint(tmp_path).name == 'iter_12.pth'
    # An older training's file with more iterations in its name.
    (tmp_path / 'last_checkpoint').write_text('iter_12.pth')
    shutil.copy(tmp_path / 'iter_12.pth', tmp_path / 'iter_400.pth')
    os.utime(tmp_path / 'iter_400.pth', (1, 1))
    assert newest_checkpoint(tmp_path).name == 'iter_12.pth'
    assert newest_checkpoint(tmp_path / 'new') is None


def test_of_a_work_directory_the_only_best_checkpoint_is_read(tmp_path):
    for name in ('iter_12.pth', 'best_mIoU_iter_8.pth', 'best_mAcc_iter_9.pth'):
        torch.save(dict(state_dict=WEIGHTS, meta=dict(iter=12)), tmp_path / name)
    assert locate_checkpoint(tmp_path).name == 'iter_12.pth'
    (tmp_path / 'best_mAcc_iter_9.pth').unlink()
    assert locate_checkpoint(tmp_path).name == 'best_mIoU_iter_8.pth'
    assert newest_checkpoint(tmp_path).name == 'iter_12.pth'  # to resume from

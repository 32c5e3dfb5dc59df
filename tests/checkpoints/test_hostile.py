"""No checkpoint runs anything, whichever door it comes through.

Damaged ones end in one error that names the file.
"""

import copyreg
import hashlib
import os
import pickle
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from hostile import Call, hostile_pickles, refused, write_hostile_files
from mmengine.config import Config
from mmengine.logging import HistoryBuffer
from mmengine.registry import MODELS
from mmengine.runner import CheckpointLoader
from test_mmengine_loader import make_runner
from tiny import COLUMN
from torch import nn

from cpvt_backbones import CPVT
from cpvt_backbones.checkpoints import (
    CheckpointError,
    load_checkpoint,
    load_weights,
    read_checkpoint,
)

ARGUMENTS = dict(arch=COLUMN, img_size=32)


def load_by_init_cfg(file):
    MODELS.build(
        dict(type='CPVT', init_cfg=dict(type='Pretrained', checkpoint=str(file)), **ARGUMENTS)
    ).init_weights()


DOORS = dict(
    read_checkpoint=read_checkpoint,
    load_weights=lambda file: load_weights(nn.Linear(2, 2), file),
    load_checkpoint=lambda file: load_checkpoint(CPVT(**ARGUMENTS), file),
    init_cfg=load_by_init_cfg,
    mmengine=lambda file: CheckpointLoader.load_checkpoint(
        str(file), map_location='cpu', logger='silent'
    ),
)


# Archives with a harmless pickle, which torch reads, and another one, which nothing opens.
NEVER_OPENED = {'second_pickle', 'second_of_one_name', 'after_the_end'}


@pytest.fixture
def extensions():
    """What the opcodes EXT1, EXT2 and EXT4 name."""
    codes = [(os.system.__module__, 'system', 0xF0), ('os', 'system', 0x1F0)]
    for code in codes:
        copyreg.add_extension(*code)
    yield
    for code in codes:
        copyreg.remove_extension(*code)


def test_the_corpus_runs_commands_where_pickles_are_trusted(tmp_path, extensions):
    ran = set()
    for name, data in hostile_pickles(f'touch {tmp_path / "trace"}').items():
        try:
            pickle.loads(data)
        except Exception:
            pass
        if (tmp_path / 'trace').exists():
            (tmp_path / 'trace').unlink()
            ran.add(name)
    assert len(ran) >= 24
    assert {'global_reduce', 'stack_global', 'inst', 'obj', 'build', 'newobj', 'newobj_ex'} <= ran
    assert {'ext1', 'ext2', 'ext4', 'binpersid_of_a_call', 'popped', 'in_a_key', 'partial'} <= ran


@pytest.mark.parametrize('door', DOORS)
def test_nothing_runs(door, tmp_path, extensions):
    trace = tmp_path / 'trace'
    files = write_hostile_files(tmp_path, f'touch {trace}')
    assert len(files) >= 50
    for file in files:
        try:
            DOORS[door](file)
            assert file.stem in NEVER_OPENED, file.name
        except CheckpointError as error:
            assert file.name in str(error) and '\n' not in str(error)
        assert not trace.exists(), file.name


@pytest.mark.parametrize('zipped', [True, False], ids=['zip', 'legacy'])
def test_state_that_takes_the_place_of_a_method(zipped, tmp_path):
    """Attributes of tensors and dicts are not read, except for the versions in a state dict."""
    weight, parameter = torch.ones(2, 2), nn.Parameter(torch.zeros(2))
    for tensor in (weight, parameter):
        tensor.isfinite = tensor.tolist = tensor.is_floating_point = 1
    shadows = dict(items=1, keys=1, values=1, _metadata={'': dict(version=1)})
    state = Call(OrderedDict, [['weight', weight], ['bias', parameter]], state=shadows)
    content = dict(state_dict=state, milestones=Call(Counter, dict(a=1), state=shadows))
    torch.save(content, tmp_path / 'w.pth', _use_new_zipfile_serialization=zipped)
    found = read_checkpoint(tmp_path / 'w.pth')
    assert vars(found['state_dict']) == dict(_metadata={'': dict(version=1)})
    assert list(found['milestones'].items()) == [('a', 1)]
    model = nn.Linear(2, 2)
    load_weights(model, tmp_path / 'w.pth')
    assert torch.equal(model.weight, torch.ones(2, 2)) and torch.equal(model.bias, torch.zeros(2))


def test_log_buffers_change_no_method_of_their_class(tmp_path):
    """mmengine's own ``__setstate__`` writes the functions in a file into the class."""
    HistoryBuffer()  # registers its methods
    before = dict(HistoryBuffer._statistics_methods)
    log = dict(_log_history=np.ones(2), _count_history=np.ones(2))
    state = dict(log, statistics_methods=dict(mean='replaced', other='added'), update='replaced')
    buffer = Call(HistoryBuffer, state=state)
    torch.save(dict(state_dict={}, message_hub=dict(log_scalars=dict(loss=buffer))), tmp_path / 'w')
    found = read_checkpoint(tmp_path / 'w')['message_hub']['log_scalars']['loss']
    assert HistoryBuffer._statistics_methods == before
    assert found.mean() == 1 and callable(found.update)


def test_arrays_of_objects_are_not_built(tmp_path):
    """NumPy builds them from what a file says of their memory."""
    objects = np.array([{}, None])
    arrays = dict(objects=objects, fields=np.zeros(2, [('a', 'O')]), number=np.int64(3))
    torch.save(dict(state_dict={}, **arrays), tmp_path / 'w.pth')
    found = read_checkpoint(tmp_path / 'w.pth')
    assert found == dict(state_dict={}, objects=None, fields=None, number=3)


@pytest.mark.parametrize('resume', [False, True], ids=['load_from', 'resume'])
def test_nothing_runs_in_training(resume, tmp_path):
    trace = tmp_path / 'trace'
    file = write_hostile_files(tmp_path, f'touch {trace}')[0]
    runner = make_runner(tmp_path / 'run', 1, load_from=str(file), resume=resume)
    with pytest.raises(CheckpointError, match=r'is refused: opening it would import posix.system'):
        runner.train()
    assert not trace.exists()


# -- damaged files
# --------------------------------------------------------------------------------------------------


def recursive():
    content = dict(state_dict={})
    content['state_dict']['again'] = content
    return content


DAMAGED = {
    'list': [torch.ones(2)],
    'number': 5,
    'state_dict_of_a_number': dict(state_dict=5),
    'numbers_for_names': dict(state_dict={0: torch.ones(2)}),
    'bare_numbers_for_names': {0: torch.ones(2)},
    'nothing': {},
    'recursive': recursive(),
    'sparse': dict(state_dict=dict(weight=torch.eye(2).to_sparse())),
    'meta': dict(state_dict=dict(weight=torch.empty(2, 2, device='meta'))),
    'quantized': dict(
        state_dict=dict(weight=torch.quantize_per_tensor(torch.ones(2, 2), 0.1, 0, torch.qint8))
    ),
}


@pytest.mark.parametrize('zipped', [True, False], ids=['zip', 'legacy'])
@pytest.mark.parametrize('content', DAMAGED)
def test_content_that_is_no_checkpoint(content, zipped, tmp_path):
    file = tmp_path / 'damaged.pth'
    if content == 'meta' and not zipped:
        pytest.skip('torch does not write it')
    torch.save(DAMAGED[content], file, _use_new_zipfile_serialization=zipped)
    for name, door in DOORS.items():
        if content == 'nothing' and name in ('read_checkpoint', 'mmengine'):
            continue
        with pytest.raises(CheckpointError) as error:
            door(file)
        assert 'damaged.pth' in str(error.value) and '\n' not in str(error.value)


def damaged_copies(data, file, places):
    """Write the file with one bit flipped, for each place; yield what is read of it."""
    for place in places:
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << place % 8
        file.write_bytes(damaged)
        try:
            yield place, read_checkpoint(file)
        except CheckpointError:
            continue


@pytest.mark.parametrize('zipped', [True, False], ids=['zip', 'legacy'])
def test_flipped_bits(zipped, tmp_path):
    """In an archive no flip stays unseen.

    In the older format a pickle may turn into anything but code.
    """
    file = tmp_path / 'w.pth'
    weights = dict(weight=torch.randn(2, 2), bias=torch.randn(2))
    torch.save(weights, file, _use_new_zipfile_serialization=zipped)
    data = file.read_bytes()
    generator = torch.Generator().manual_seed(0)
    places = torch.randint(8 * len(data), (200,), generator=generator).tolist()
    for _, found in damaged_copies(data, file, places):
        if zipped:  # of the archive's own fields only those without a meaning, such as the time
            assert found.keys() == weights.keys()
            assert all(torch.equal(found[key], weights[key]) for key in weights)


@pytest.mark.full
def test_every_flipped_bit_in_the_list_of_files(tmp_path):
    """One of them marks a record as a folder: torch then returns memory that it has not written."""
    file = tmp_path / 'w.pth'
    weight = torch.full((2, 2), 0.5)
    torch.save(dict(weight=weight), file)
    data = file.read_bytes()
    start = zipfile.ZipFile(file).start_dir
    read = 0
    for place, found in damaged_copies(data, file, range(8 * start, 8 * len(data))):
        assert torch.equal(found['weight'], weight), (place // 8 - start, place % 8)
        read += 1
    assert read > 0  # the time of a record has no meaning


def test_what_names_the_newest_checkpoint_is_no_text(tmp_path):
    (tmp_path / 'last_checkpoint').write_bytes(bytes(range(128, 256)))
    with pytest.raises(FileNotFoundError, match='which is not there'):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    'data',
    [
        b'\x80\x01' + bytes(6) + b'x',
        (1 << 60).to_bytes(8, 'little') + b'{}',
        b'\x10' + bytes(7) + b'{"a": {"dtype":}',
        b'\x3c'
        + bytes(7)
        + b'{"a":{"dtype":"F32","shape":[1000000],"data_offsets":[0,4]}}'
        + bytes(4),
    ],
    ids=['no_header', 'long_header', 'bad_header', 'shape_beyond_the_data'],
)
def test_safetensors_that_are_damaged(data, tmp_path):
    pytest.importorskip('safetensors')
    file = tmp_path / 'damaged.safetensors'
    file.write_bytes(data)
    for door in DOORS.values():
        with pytest.raises(
            CheckpointError, match=r"damaged.safetensors' is truncated or no safetensors file"
        ):
            door(file)


def test_sha256(tmp_path):
    torch.save(dict(weight=torch.ones(2)), tmp_path / 'w.pth')
    content = (tmp_path / 'w.pth').read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    other = digest[::-1]
    for name, beside, message in (
        (f'w-{digest[:8]}.pth', '', ''),
        (f'w-{digest}.pth', '', ''),
        ('a.pth', f'{digest.upper()}  a.pth\n', ''),
        (f'v-{other[:8]}.pth', digest, ''),  # the name has another meaning
        (f'w-{other[:8]}.pth', '', f'is {digest}, not {other[:8]} .* a commit, rename it or write'),
        (f'w-{other}.pth', '', f'is {digest}, not {other} as in its name; fetch it again$'),
        ('b.pth', other, f"is {digest}, not {other} as in '.*b.pth.sha256'; fetch it again$"),
        ('c.pth', digest[:2], "c.pth.sha256' must begin with a SHA-256 of 64 hexadecimal digits"),
        ('d.pth', '\n', 'must begin with a SHA-256'),
    ):
        file = tmp_path / name
        file.write_bytes(content)
        if beside:
            Path(f'{file}.sha256').write_text(beside)
        if not message:
            assert torch.equal(read_checkpoint(file)['weight'], torch.ones(2))
            continue
        refused(file, message)


@pytest.mark.parametrize(
    'name', ['run-20201122', 'run-abcdef0', 'run-0123456789ab', 'run', '12345678']
)
def test_names_without_a_hash(name, tmp_path):
    torch.save(dict(weight=torch.ones(2)), tmp_path / f'{name}.pth')
    assert read_checkpoint(tmp_path / f'{name}.pth')


@pytest.mark.parametrize(
    ('value', 'message'),
    [
        (torch.tensor([[1.0, float('nan')]] * 2), 'weight has values that are NaN or infinite'),
        (torch.full((2, 2), float('inf')), 'weight has values that are NaN or infinite'),
        (
            torch.ones(2, 2, dtype=torch.int64),
            'weight is of type torch.int64, the model has torch.float32',
        ),
        (
            torch.ones(2, 2, dtype=torch.bool),
            'weight is of type torch.bool, the model has torch.float32',
        ),
    ],
)
def test_weights_that_are_no_numbers(value, message, tmp_path):
    torch.save(dict(state_dict=dict(weight=value, bias=torch.zeros(2))), tmp_path / 'w.pth')
    with pytest.raises(CheckpointError, match=f"w.pth': {message}"):
        load_weights(nn.Linear(2, 2), tmp_path / 'w.pth')
    model = CPVT(**ARGUMENTS)
    state = model.state_dict()
    key = 'blocks.0.attn.proj.weight'
    state[key] = torch.full_like(state[key], value[0, 1].item(), dtype=value.dtype)
    torch.save(state, tmp_path / 'backbone.pth')
    with pytest.raises(
        CheckpointError, match=message.partition(' ')[2].replace('torch.float32', '')
    ):
        load_checkpoint(model, tmp_path / 'backbone.pth')


def test_infinite_values_that_the_model_has_itself(tmp_path):
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer('mask', torch.full((2, 2), float('-inf')).triu(1))

    torch.save(Masked().state_dict(), tmp_path / 'w.pth')
    load_weights(Masked(), tmp_path / 'w.pth')


def test_toolbox_inferencers_open_nothing_themselves(tmp_path):
    """mmpretrain's ``get_model`` stands for the three: all ask mmengine's loader."""
    apis = pytest.importorskip('mmpretrain.apis')
    trace = tmp_path / 'trace'
    file = write_hostile_files(tmp_path, f'touch {trace}')[0]
    head = dict(type='LinearClsHead', num_classes=2, in_channels=32)
    model = dict(
        type='ImageClassifier',
        backbone=dict(type='CPVT', out_type='avg_featmap', **ARGUMENTS),
        head=head,
    )
    with pytest.raises(CheckpointError, match='is refused'):
        apis.get_model(Config(dict(model=model, default_scope='mmpretrain')), pretrained=str(file))
    assert not trace.exists()

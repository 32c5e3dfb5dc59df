"""No checkpoint runs anything, whichever door it comes through.

Damaged ones end in one error that names the file.
"""

import contextlib
import copyreg
import hashlib
import os
import pickle
import zipfile
from collections import Counter, OrderedDict
from functools import partial

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
NEVER_OPENED = {'second_pickle', 'after_the_end'}


@pytest.fixture
def extension():
    """What the opcode EXT1 names in a pickle of the corpus."""
    code = (os.system.__module__, 'system', 0xF0)
    copyreg.add_extension(*code)
    yield
    copyreg.remove_extension(*code)


def test_the_corpus_runs_commands_where_pickles_are_trusted(tmp_path, extension):
    trace = tmp_path / 'trace'
    for name, data in hostile_pickles(f'touch {trace}').items():
        with contextlib.suppress(Exception):
            pickle.loads(data)
        assert trace.exists() or name in ('getattr_of_a_stand_in', 'torch_load'), name
        trace.unlink(missing_ok=True)


@pytest.mark.parametrize('door', DOORS)
def test_nothing_runs(door, tmp_path, extension):
    trace = tmp_path / 'trace'
    for file in write_hostile_files(tmp_path, f'touch {trace}'):
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


@pytest.mark.parametrize('content', DAMAGED)
def test_content_that_is_no_checkpoint(content, tmp_path):
    file = tmp_path / 'damaged.pth'
    torch.save(DAMAGED[content], file)
    for name, door in DOORS.items():
        if content == 'nothing' and name in ('read_checkpoint', 'mmengine'):
            continue
        assert 'damaged.pth' in refused(file, '', read=door)


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


def test_a_record_marked_as_a_folder_is_refused(tmp_path):
    """torch would return memory that it has not written."""
    torch.save(dict(weight=torch.full((2, 2), 0.5)), tmp_path / 'w.pth')
    with (
        zipfile.ZipFile(tmp_path / 'w.pth') as source,
        zipfile.ZipFile(tmp_path / 'v.pth', 'w') as target,
    ):
        for member in source.infolist():
            content = source.read(member)
            member.external_attr |= 0x10 if member.filename.endswith('/data/0') else 0
            target.writestr(member, content)
    refused(tmp_path / 'v.pth', 'a record in it is marked as a folder')


def test_safetensors_that_are_damaged(tmp_path):
    file = tmp_path / 'damaged.safetensors'
    header = b'{"a":{"dtype":"F32","shape":[1000000],"data_offsets":[0,4]}}'  # beyond the data
    for start, text in ((len(header), header), (1 << 60, b'{}'), (16, b'{"a": {"dtype":}')):
        file.write_bytes(start.to_bytes(8, 'little') + text + bytes(4))
        refused(file, r"damaged.safetensors' is truncated or not a safetensors file")


def test_sha256(tmp_path):
    torch.save(dict(weight=torch.ones(2)), tmp_path / 'w.pth')
    content = (tmp_path / 'w.pth').read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    other = digest[::-1]
    for name, message in (
        (f'w-{digest[:8]}.pth', ''),
        (f'w-{digest}.pth', ''),
        (f'w-{other[:8]}.pth', f'is {digest}, not {other[:8]} .*, or rename it if these digits'),
        (f'w-{other}.pth', f'is {digest}, not {other} as in its name; fetch it again$'),
    ):
        file = tmp_path / name
        file.write_bytes(content)
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
        (torch.tensor([1.0, float('nan')]), 'has values that are NaN or infinite'),
        (torch.full((2,), float('inf')), 'has values that are NaN or infinite'),
        (torch.ones(2, dtype=torch.int64), 'is of type torch.int64, the model has torch.float32'),
        (torch.ones(2, dtype=torch.bool), 'is of type torch.bool, the model has torch.float32'),
    ],
)
def test_weights_that_are_no_numbers(value, message, tmp_path):
    backbone, layer = CPVT(**ARGUMENTS), nn.Linear(2, 2)
    for model, key, load in (
        (layer, 'bias', load_weights),
        (backbone, 'blocks.0.norm1.bias', load_checkpoint),
    ):
        state = model.state_dict()
        state[key] = value.repeat(len(state[key]) // 2)
        torch.save(state, tmp_path / 'w.pth')
        refused(tmp_path / 'w.pth', f"w.pth': {key} {message}", read=partial(load, model))


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

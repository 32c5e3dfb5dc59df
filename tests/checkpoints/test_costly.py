"""Small files that crash, stop or fill a process that reads them carelessly.

Each ends in one line, in bounds.
"""

import json
import re
import sys
import zipfile
from collections import Counter, OrderedDict

import pytest
import torch

if sys.platform != 'linux':
    pytest.skip('the harness forks', allow_module_level=True)

from hostile import Call, costly_pickles, refused, with_two_directories, write_costly_files
from limits import run_limited
from safetensors.torch import save_file
from torch import nn

from cpvt_backbones.checkpoints import (
    CheckpointError,
    check_loaded,
    load_weights,
    read_checkpoint,
)
from cpvt_backbones.checkpoints.reading import opcodes

pytestmark = pytest.mark.full


def refuse(file):
    """Fail unless a file is refused by one line with its name."""
    assert len(refused(file, re.escape(file.name))) < 1000


@pytest.fixture(scope='module')
def files(tmp_path_factory):
    return {file.stem: file for file in write_costly_files(tmp_path_factory.mktemp('costly'))}


NAMES = [
    *costly_pickles(),
    'nested_key_legacy',
    'doubled_key_legacy',
    'nested_hex_legacy',
    'many_members',
]


@pytest.mark.parametrize('name', NAMES)
def test_small_files_end_in_one_line_within_bounds(name, files, tmp_path):
    assert run_limited(lambda: refuse(files[name]), tmp_path / 'log') == 0, (
        tmp_path / 'log'
    ).read_text()


def test_an_archive_with_two_lists_of_files(tmp_path):
    file = tmp_path / 'w.pth'
    file.write_bytes(with_two_directories(dict(weight=1), dict(weight=2)))
    with zipfile.ZipFile(file) as archive:
        assert archive.namelist() == ['archive/data.pkl', 'archive/version', 'archive/byteorder']
    assert torch.load(file, weights_only=True) == dict(weight=1)
    refused(file, r"w.pth' is truncated or damaged \(its list of files is not at its end")
    torch.save(dict(weight=torch.ones(2)), file)
    for more in (b'PK\x05\x06' + bytes(18), bytes(1), bytes(200)):
        (tmp_path / 'more.pth').write_bytes(file.read_bytes() + more)
        refused(tmp_path / 'more.pth', r"more.pth' is truncated or damaged")


@pytest.mark.parametrize('zipped', [True, False], ids=['zip', 'legacy'])
def test_state_that_takes_the_place_of_a_method(zipped, tmp_path):
    """The attributes of tensors and dicts are not read, but for the versions in a state dict."""
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
    for name in ('weight', 'bias'):
        assert torch.isfinite(found['state_dict'][name]).all()
        assert not vars(found['state_dict'][name])
    model = nn.Linear(2, 2)
    load_weights(model, tmp_path / 'w.pth')
    assert torch.equal(model.weight, torch.ones(2, 2)) and torch.equal(model.bias, torch.zeros(2))


def test_an_archive_compressed_by_a_method_that_torch_does_not_know(tmp_path):
    with zipfile.ZipFile(tmp_path / 'w.pth', 'w', zipfile.ZIP_BZIP2) as archive:
        archive.writestr('archive/data.pkl', bytes(10**6))
    refused(tmp_path / 'w.pth', 'it is compressed by a method that torch does not know')


def test_dimensions(tmp_path):
    torch.save(dict(weight=torch.ones(1).view((1,) * 64)), tmp_path / 'w.pth')
    assert read_checkpoint(tmp_path / 'w.pth')['weight'].dim() == 64
    torch.save(dict(weight=torch.ones(1).view((1,) * 100_000)), tmp_path / 'w.pth')
    refused(tmp_path / 'w.pth', 'is refused: weight has 100000 dimensions; at most 64 are read')


def test_keys_that_are_read(tmp_path):
    content = {'a': 1, 2: 'b', -(2**63): 3, None: 5, True: 6, 0.5: 7}
    torch.save(dict(state_dict={}, meta=content, ids={1, 'a', 2**62}), tmp_path / 'w.pth')
    assert read_checkpoint(tmp_path / 'w.pth')['meta'] == content
    assert read_checkpoint(tmp_path / 'w.pth')['ids'] == {1, 'a', 2**62}
    for key, kind in {
        (1, 2): 'a tuple',
        2**63: 'an integer of more',
        torch.float32: 'an object',
        b'c': 'an object',
    }.items():
        torch.save(dict(state_dict={}, meta={key: 1}), tmp_path / 'w.pth')
        refused(tmp_path / 'w.pth', f'is refused: a key of a dict is {kind}')


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


def test_large_checkpoints_are_within_the_limits(tmp_path):
    """5,000 parameters with their optimizer's state, and the logs of a long training."""
    from mmengine.logging import HistoryBuffer

    shared = torch.zeros(1)
    weights = {f'backbone.blocks.{i}.weight': shared for i in range(5000)}
    states = {i: dict(step=shared, exp_avg=shared, exp_avg_sq=shared) for i in range(5000)}
    hub = dict(
        log_scalars={name: HistoryBuffer([0.1] * 160_000, [1] * 160_000) for name in 'abcdefgh'}
    )
    content = dict(
        state_dict=weights, optimizer=dict(state=states, param_groups=[]), message_hub=hub
    )
    torch.save(content, tmp_path / 'w.pth')
    assert read_checkpoint(tmp_path / 'w.pth')['state_dict'].keys() == weights.keys()
    scan = opcodes.PickleScan()
    with zipfile.ZipFile(tmp_path / 'w.pth') as archive, archive.open('w/data.pkl') as stream:
        scan.check(stream)
    assert scan.opcodes < opcodes.MAX_OPCODES / 2 and scan.calls < opcodes.MAX_CALLS / 2


# -- safetensors
# --------------------------------------------------------------------------------------------------


def safetensors(header, data=b''):
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(header).to_bytes(8, 'little') + header + data


def tensor(shape, start=0, stop=0):
    return dict(dtype='F32', shape=shape, data_offsets=[start, stop])


MANY, NESTED = range(150_000), b'[' * 10**6
SAFETENSORS = {
    'many_tensors': lambda: safetensors({f't{number}': tensor([0]) for number in MANY}),
    'long_header': lambda: safetensors({f'tensor_{number}' * 10: tensor([0]) for number in MANY}),
    'many_dimensions': lambda: safetensors({'weight': tensor([1] * 100_000, 0, 4)}, bytes(4)),
    'many_dimensions_of_nothing': lambda: safetensors({'weight\n': tensor([0] * 65)}),
    'nested': lambda: safetensors(NESTED),
    'nested_metadata': lambda: safetensors(
        b'{"__metadata__":{"a":' + NESTED + b']' * 10**6 + b'}}'
    ),
    'nested_tensor': lambda: safetensors(b'{"a":' * 10**6 + b'}' * 10**6),
    'product_of_zero': lambda: safetensors({'weight': tensor([2**62, 2**62], 0, 4)}, bytes(4)),
    'negative': lambda: safetensors({'weight': tensor([-1], 0, 4)}, bytes(4)),
    'large_empty': lambda: safetensors({'weight': tensor([2**63, 0])}),
}


@pytest.mark.parametrize('name', SAFETENSORS)
def test_small_safetensors_files_end_in_one_line_within_bounds(name, tmp_path):
    file = tmp_path / f'{name}.safetensors'
    file.write_bytes(SAFETENSORS[name]())
    assert run_limited(lambda: refuse(file), tmp_path / 'log', mebibytes=256) == 0, (
        tmp_path / 'log'
    ).read_text()


def test_dimensions_of_safetensors(tmp_path):
    file = tmp_path / 'w.safetensors'
    weights = {
        'scalar': torch.tensor(1.5),
        'empty': torch.zeros(0, 3),
        'deep': torch.ones(1).view((1,) * 64),
    }
    save_file(weights, file)
    found = read_checkpoint(file)
    assert found.keys() == weights.keys() and all(
        torch.equal(found[key], weights[key]) for key in weights
    )
    save_file({'deep': torch.ones(1).view((1,) * 65)}, file)
    refused(file, 'is refused: deep has 65 dimensions; at most 64 are read')


def test_shapes_are_checked_before_values(tmp_path):
    save_file(
        {'weight': torch.full((3, 2), float('nan')), 'bias': torch.zeros(2)},
        tmp_path / 'w.safetensors',
    )
    with pytest.raises(CheckpointError, match=r'have other shapes \(\(3, 2\), not \(2, 2\)\)'):
        load_weights(nn.Linear(2, 2), tmp_path / 'w.safetensors')
    with pytest.raises(CheckpointError, match='it does not fit the model: other shapes of weight'):
        check_loaded(read_checkpoint(tmp_path / 'w.safetensors'), nn.Linear(2, 2), 'w.safetensors')

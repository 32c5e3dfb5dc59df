"""Files that would run something if they were unpickled, or that are damaged.

None of them may do more than fail.
"""

import io
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cpvt_backbones.checkpoints import CheckpointError, read_checkpoint

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # of torch's format before zip archives


def refused(checkpoint, message, *, read=read_checkpoint) -> str:
    """The one line of the error with which a checkpoint must be refused."""
    with pytest.raises(CheckpointError, match=message) as error:
        read(checkpoint)
    assert '\n' not in str(error.value)
    return str(error.value)


class Call:
    """Calls a function when it is unpickled."""

    def __init__(self, function: Callable[..., Any], *arguments: Any, state: Any = None) -> None:
        self.parts = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.parts


class Built:
    """Has a state that is set on unpickling, by BUILD."""

    def __setstate__(self, state: dict[str, str]) -> None:
        os.system(state['command'])


class New:
    """Runs on creation, by NEWOBJ or, with keywords, by NEWOBJ_EX."""

    def __new__(cls, command: str = 'true') -> 'New':
        os.system(command)
        return super().__new__(cls)


def _text(value: str) -> bytes:
    return b'X' + len(value.encode()).to_bytes(4, 'little') + value.encode()


def _short(value: str) -> bytes:
    return b'\x8c' + bytes([len(value)]) + value.encode()


def _as_archive(data: bytes, *, inner: str = 'data.pkl', **more: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, 'w') as archive:
        archive.writestr(f'archive/{inner}', data)
        archive.writestr('archive/version', b'3\n')
        archive.writestr('archive/byteorder', b'little')
        for name, part in more.items():
            archive.writestr(f'archive/{name}', part)
    return buffer.getvalue()


def _as_legacy(data: bytes) -> bytes:
    system = dict(protocol_version=PROTOCOL, little_endian=True, type_sizes={})
    return b''.join(
        (*(pickle.dumps(part, 2) for part in (MAGIC, PROTOCOL, system)), data, pickle.dumps([], 2))
    )


def _as_tar(data: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode='w') as archive:
        for name in ('storages', 'tensors', 'pickle'):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


_START, _END = b'\x80\x02}' + _text('state_dict'), b's.'


def _held(*parts: bytes) -> bytes:
    """Pickle of a dict with what the opcodes leave on the stack."""
    return _START + b''.join(parts) + _END


def _held_4(*parts: bytes) -> bytes:
    """The same by protocol 4."""
    return b'\x80\x04}' + _short('state_dict') + b''.join(parts) + _END


def hostile_pickles(command: str) -> dict[str, bytes]:
    """One pickle for each way that the format knows to get at code.

    Each runs ``command`` if ``pickle`` loads it.
    """
    module = os.system.__module__  # posix
    call = f'c{module}\nsystem\n'.encode()
    argument = _text(command) + b'\x85'  # TUPLE1
    run = argument + b'R'
    new = f'c{New.__module__}\nNew\n'.encode()
    built = f'c{Built.__module__}\nBuilt\n'.encode()
    names = _short(module) + b'\x94' + _short('system') + b'\x94'
    getattr_, importing = b'c__builtin__\ngetattr\n(', b'c__builtin__\n__import__\n'
    buffer = b'cmmengine.logging.history_buffer\nHistoryBuffer\n'
    instance = f'i{module}\nsystem\n'.encode()
    system = Call(os.system, command)
    by_protocol = {
        f'protocol_{number}': pickle.dumps(dict(state_dict=system), number)
        for number in (0, 1, 3, 4, 5)
    }
    code = f'__import__("os").system({command!r})'
    return {
        'global_reduce': _held(call, run),
        'stack_global': _held_4(_short(module), _short('system'), b'\x93', run),
        'stack_global_of_memoized_names': b'\x80\x04'
        + names
        + b'00}'
        + _short('torch')
        + _short('Size')
        + b'0h\x00h\x01\x93'
        + run
        + b's.',
        'inst': _held(b'(', _text(command), instance),
        'obj': _held(b'(', call, _text(command), b'o'),
        'build': _held(built, b')\x81}', _text('command'), _text(command), b'sb'),
        'build_of_a_global': _held(call, run, b'}b'),
        'newobj': _held(new, argument, b'\x81'),
        'newobj_ex': _held_4(new, b')}', _short('command'), _text(command), b's\x92'),
        'ext1': _held(b'\x82\xf0', run),
        'ext2': _held(b'\x83\xf0\x01', run),
        'ext4': _held(b'\x84\xf0\x01\x00\x00', run),
        'persid': _held(f'P{command}\n'.encode()),
        'binpersid': _held(_text(command), b'Q'),
        'binpersid_of_a_call': _held(call, run, b'Q'),
        'eval': pickle.dumps(dict(state_dict=Call(eval, code)), 2),
        'exec': pickle.dumps(dict(state_dict=Call(exec, code)), 2),
        'in_a_key': pickle.dumps({system: 1}, 2),
        'in_a_tuple': pickle.dumps(dict(state_dict={}, meta=(1, [system])), 2),
        'popped': _held(call, run, b'0}'),
        'import': pickle.dumps(dict(a=Call(__import__, 'colorsys')), 2),
        'getattr_of_a_module': _held(
            getattr_, importing, _text('os'), b'\x85R', _text('system'), b'tR', run
        ),
        'getattr_of_an_allowed_class': _held(getattr_, buffer, _text('__init__'), b'tR', run),
        'getattr_of_globals': _held(
            getattr_, getattr_, buffer, _text('mean'), b'tR', _text('__globals__'), b'tR'
        ),
        'torch_load': pickle.dumps(dict(a=Call(torch.load, command)), 2),
        'codec': _held(b'c_codecs\ndecode\n', run),
        'partial': _held(b'cfunctools\npartial\n', call, b'\x85R', run),
        'rebuild_function': _held(
            b'ctorch._tensor\n_rebuild_from_type_v2\n(', call, b'ctorch\nTensor\n', argument, b'}tR'
        ),
        'rebuild_parameter': _held(
            b'ctorch._utils\n_rebuild_parameter_with_state\n(', call, b'\x88}}tR'
        ),
        'dotted_name': _held(b'ctorch\nserialization.os.system\n', run),
        'dotted_module': _held(b'ctorch.serialization.os\nsystem\n', run),
        'type': _held(b'c__builtin__\ntype\n(', _text('T'), b')}tR'),
        'module': pickle.dumps(dict(model=nn.Linear(1, 1)), 2),
    } | by_protocol


def write_hostile_files(folder: Path, command: str) -> list[Path]:
    """Each pickle in torch's zip archive, some in older formats too, and archives in archives."""
    pickles = hostile_pickles(command)
    files = {f'{name}-zip-case': _as_archive(data) for name, data in pickles.items()}
    for kind, wrap in dict(bare=bytes, legacy=_as_legacy, tar=_as_tar).items():
        for name in ('global_reduce', 'stack_global', 'build', 'inst'):
            files[f'{name}-{kind}-case'] = wrap(pickles[name])
    evil, good = pickles['global_reduce'], pickle.dumps(dict(state_dict={}), 2)
    files['archive_in_archive'] = _as_archive(_as_archive(evil))
    files['second_pickle'] = _as_archive(good, **{'extra.pkl': evil})
    files['second_of_one_name'] = _as_archive(good, **{'data.pkl': evil})
    files['constants'] = _as_archive(good, **{'constants.pkl': evil})
    files['after_the_end'] = _as_archive(good + evil)
    script = {'constants.pkl': evil, 'code/__torch__.py': b'import os'}
    files['script'] = _as_archive(evil, **script)
    return _write(folder, files)


def _write(folder: Path, files: dict[str, bytes]) -> list[Path]:
    for name, data in files.items():
        (folder / f'{name}.pth').write_bytes(data)
    return [folder / f'{name}.pth' for name in files]


# -- small files of large cost
# -----------------------------------------------------------------------------------------


def _long(value: int) -> bytes:
    data = value.to_bytes(value.bit_length() // 8 + 1, 'little', signed=True)
    return b'\x8a' + bytes([len(data)]) + data


def _encoded(value: bytes, codec: str) -> bytes:
    return b'c_codecs\nencode\n' + value + _text(codec) + b'\x86R'


def _nested_hex(levels: int) -> bytes:
    value = _encoded(_text('a' * 100), 'latin1')
    for _ in range(levels):
        value = _encoded(value, 'hex')
    return value


def costly_pickles() -> dict[str, bytes]:
    """Pickles that take the interpreter's stack, minutes or gigabytes where they are loaded as they
    are.
    """
    nested = b')' + b'\x85' * 200_000
    doubled = b')' + b'q\x00h\x00\x86' * 60
    collisions = [_long((2**61 - 1) * (number + 8) + 1) for number in range(30_000)]
    long_keys = b''.join(collisions)
    pairs = [key + b'K\x01' for key in collisions]
    rebuild = b'ctorch._tensor\n_rebuild_from_type_v2\n('
    tensor, storage = b'ctorch\nTensor\n', b'ctorch.storage\nUntypedStorage\n'
    ordered, counter = b'ccollections\nOrderedDict\n', b'ccollections\nCounter\n'
    set_, huge = b'c__builtin__\nset\n', _long(10**11) + b'\x85'
    chinese = _text(''.join(map(chr, range(0x4E00, 0x9E00))) * 3)
    by_memo = (_text('latin1'), b'q\x07', _text('hex'), b'q\x07\x86R')
    pairs_of_long = b''.join(pair + b'\x86' for pair in pairs)
    return {
        'nested_key': b'\x80\x02}' + nested + b'K\x01s.',
        'doubled_key': b'\x80\x02}' + doubled + b'K\x01s.',
        'key_of_one_tuple': b'\x80\x02})K\x01s.',
        'long_keys': b'\x80\x02}(' + b''.join(pairs) + b'u.',
        'long_keys_one_by_one': b'\x80\x02}' + b's'.join(pairs) + b's.',
        'nested_value_of_a_call': _held(rebuild, nested, b'}}}tR'),
        'doubled_value_of_a_call': _held(rebuild, doubled, b'}}}tR'),
        'doubled_value': _held(doubled),
        'nested_value': _held(nested),
        'set_of_nested': _held(set_, b'](', nested, b'e\x85R'),
        'set_of_doubled': _held(set_, b'](', doubled, b'e\x85R'),
        'set_of_long': _held(set_, b'](', long_keys, b'e\x85R'),
        'set_of_a_tuple': _held(set_, doubled, b'\x85\x85R'),
        'counted_tuples': _held(counter, b'](', doubled, b'e\x85R'),
        'pairs_of_tuples': _held(ordered, b'](', doubled, b'K\x01\x86e\x85R'),
        'pairs_of_long': _held(ordered, b'](', pairs_of_long, b'e\x85R'),
        'set_by_newobj': _held(set_, b'](', doubled, b'e\x85\x81'),
        'punycode': _held(_encoded(chinese, 'punycode')),
        'nested_hex': _held(_nested_hex(24)),
        'encoding_by_memo': _held(b'c_codecs\nencode\n', *by_memo),
        'tensor_of_a_size': _held(tensor, huge, b'R'),
        'tensor_by_newobj': _held(tensor, huge, b'\x81'),
        'storage_of_a_size': _held(storage, huge, b'R'),
        'empty_sets': b'\x80\x02](' + b'\x8f' * 2_000_000 + b'e.',
        'empty_dicts': b'\x80\x02](' + b'}' * 2_000_000 + b'e.',
        'many_calls': b'\x80\x02](' + ordered + b'q\x00)R' + b'h\x00)R' * 300_000 + b'e.',
        'long_name': b'\x80\x02c' + b'a' * 10**7 + b'\nb\n.',
    }


def write_costly_files(folder: Path) -> list[Path]:
    """Each costly pickle in torch's archive, and archives that cost much by themselves."""
    pickles = costly_pickles()
    files = {name: _as_archive(data) for name, data in pickles.items()}
    for name in ('nested_key', 'doubled_key', 'nested_hex'):
        files[f'{name}_legacy'] = _as_legacy(pickles[name])
    files['many_members'] = _with_members(300_000)
    return _write(folder, files)


def _with_members(count: int) -> bytes:
    """An archive whose list of files names its last one often."""
    data = _as_archive(b'\x80\x02}.')
    start = data.rindex(b'PK\x01\x02')
    entry, end = data[start:-22], bytearray(data[-22:])
    listed = data[data.index(b'PK\x01\x02') : -22] + entry * count
    end[12:16] = len(listed).to_bytes(4, 'little')
    return data[: data.index(b'PK\x01\x02')] + listed + bytes(end)


def with_two_directories(first: dict[str, Any], second: dict[str, Any]) -> bytes:
    """An archive in which Python's reader finds the second content and torch's the first.

    Both are of one size.
    """
    one, two = (_as_archive(pickle.dumps(content, 2)) for content in (first, second))
    return one[:-22] + two

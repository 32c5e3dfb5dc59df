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

import torch
from torch import nn

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # of torch's format before zip archives


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


def hostile_pickles(command: str) -> dict[str, bytes]:
    """One pickle for each way that the format knows to get at code.

    Each runs ``command`` if ``pickle`` loads it.
    """
    module = os.system.__module__  # posix
    call = f'c{module}\nsystem\n'.encode()
    argument = _text(command) + b'\x85'  # TUPLE1
    end = b's.'  # SETITEM, STOP
    start = b'\x80\x02}' + _text('state_dict')
    code = f'__import__("os").system({command!r})'
    return {
        'global_reduce': start + call + argument + b'R' + end,
        'stack_global': b'\x80\x04}'
        + _short('state_dict')
        + _short(module)
        + _short('system')
        + b'\x93'
        + argument
        + b'R'
        + end,
        'stack_global_of_memoized_names': b'\x80\x04'
        + _short(module)
        + b'\x94'
        + _short('system')
        + b'\x94'
        + b'00}'
        + _short('torch')
        + _short('Size')
        + b'0h\x00h\x01\x93'
        + argument
        + b'Rs.',
        'inst': start + b'(' + _text(command) + f'i{module}\nsystem\n'.encode() + end,
        'obj': start + b'(' + call + _text(command) + b'o' + end,
        'build': start
        + f'c{Built.__module__}\nBuilt\n'.encode()
        + b')\x81}'
        + _text('command')
        + _text(command)
        + b'sb'
        + end,
        'build_of_a_global': start + call + argument + b'R}b' + end,
        'newobj': start + f'c{New.__module__}\nNew\n'.encode() + argument + b'\x81' + end,
        'newobj_ex': b'\x80\x04}'
        + _short('state_dict')
        + f'c{New.__module__}\nNew\n'.encode()
        + b')}'
        + _short('command')
        + _text(command)
        + b's\x92'
        + end,
        'ext1': b'\x80\x02}' + _text('state_dict') + b'\x82\xf0' + argument + b'R' + end,
        'ext2': b'\x80\x02}' + _text('state_dict') + b'\x83\xf0\x01' + argument + b'R' + end,
        'ext4': b'\x80\x02}'
        + _text('state_dict')
        + b'\x84\xf0\x01\x00\x00'
        + argument
        + b'R'
        + end,
        'persid': b'\x80\x02}' + _text('state_dict') + f'P{command}\n'.encode() + end,
        'binpersid': start + _text(command) + b'Q' + end,
        'binpersid_of_a_call': start + call + argument + b'RQ' + end,
        'eval': pickle.dumps(dict(state_dict=Call(eval, code)), 2),
        'exec': pickle.dumps(dict(state_dict=Call(exec, code)), 2),
        'protocol_0': pickle.dumps(dict(state_dict=Call(os.system, command)), 0),
        'protocol_1': pickle.dumps(dict(state_dict=Call(os.system, command)), 1),
        'protocol_3': pickle.dumps(dict(state_dict=Call(os.system, command)), 3),
        'protocol_4': pickle.dumps(dict(state_dict=Call(os.system, command)), 4),
        'protocol_5': pickle.dumps(dict(state_dict=Call(os.system, command)), 5),
        'in_a_key': pickle.dumps({Call(os.system, command): 1}, 2),
        'in_a_tuple': pickle.dumps(dict(state_dict={}, meta=(1, [Call(os.system, command)])), 2),
        'popped': start + call + argument + b'R0' + b'}' + end,
        'import': pickle.dumps(dict(a=Call(__import__, 'colorsys')), 2),
        'getattr_of_a_module': start
        + b'c__builtin__\ngetattr\n(c__builtin__\n__import__\n'
        + _text('os')
        + b'\x85R'
        + _text('system')
        + b'tR'
        + argument
        + b'R'
        + end,
        'getattr_of_an_allowed_class': start
        + b'c__builtin__\ngetattr\n(cmmengine.logging.history_buffer\nHistoryBuffer\n'
        + _text('__init__')
        + b'tR'
        + argument
        + b'R'
        + end,
        'getattr_of_globals': start + b'c__builtin__\ngetattr\n(c__builtin__\ngetattr\n'
        b'(cmmengine.logging.history_buffer\nHistoryBuffer\n'
        + _text('mean')
        + b'tR'
        + _text('__globals__')
        + b'tR'
        + end,
        'torch_load': pickle.dumps(dict(a=Call(torch.load, command)), 2),
        'codec': start + b'c_codecs\ndecode\n' + _text(command) + b'\x85R' + end,
        'partial': start + b'cfunctools\npartial\n' + call + b'\x85R' + argument + b'R' + end,
        'rebuild_function': start
        + b'ctorch._tensor\n_rebuild_from_type_v2\n('
        + call
        + b'ctorch\nTensor\n'
        + argument
        + b'}tR'
        + end,
        'rebuild_parameter': start
        + b'ctorch._utils\n_rebuild_parameter_with_state\n('
        + call
        + b'\x88}}tR'
        + end,
        'dotted_name': start + b'ctorch\nserialization.os.system\n' + argument + b'R' + end,
        'dotted_module': start + b'ctorch.serialization.os\nsystem\n' + argument + b'R' + end,
        'type': start + b'c__builtin__\ntype\n(' + _text('T') + b')}tR' + end,
        'module': pickle.dumps(dict(model=nn.Linear(1, 1)), 2),
    }


def write_hostile_files(folder: Path, command: str) -> list[Path]:
    """Each pickle bare, in torch's zip archive, in its older format and in a tar.

    And archives in archives.
    """
    wraps = dict(bare=bytes, zip=_as_archive, legacy=_as_legacy, tar=_as_tar)
    files = {}
    for name, data in hostile_pickles(command).items():
        # Every pickle goes into the format of today; the older ones read pickles in one way.
        kinds = (
            wraps
            if name in ('global_reduce', 'stack_global', 'build', 'inst')
            else dict(zip=_as_archive)
        )
        files |= {f'{name}-{kind}-case': wrap(data) for kind, wrap in kinds.items()}
    evil = hostile_pickles(command)['global_reduce']
    good = pickle.dumps(dict(state_dict={}), 2)
    files['archive_in_archive'] = _as_archive(_as_archive(evil))
    files['second_pickle'] = _as_archive(good, **{'extra.pkl': evil})
    files['second_of_one_name'] = _as_archive(good, **{'data.pkl': evil})
    files['constants'] = _as_archive(good, **{'constants.pkl': evil})
    files['after_the_end'] = _as_archive(good + evil)
    files['script'] = _as_archive(
        evil, **{'constants.pkl': evil, 'code/__torch__.py': b'import os'}
    )
    paths = []
    for name, data in files.items():
        paths.append(folder / f'{name}.pth')
        paths[-1].write_bytes(data)
    return paths


# -- small files of large cost
# -----------------------------------------------------------------------------------------

_START, _END = b'\x80\x02}' + _text('state_dict'), b's.'


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
    call = {
        name: f'c{name}\n'.encode() for name in ('torch\nTensor', 'torch.storage\nUntypedStorage')
    }
    call |= {
        'ordered': b'ccollections\nOrderedDict\n',
        'counter': b'ccollections\nCounter\n',
        'set': b'c__builtin__\nset\n',
    }
    huge = _long(10**11) + b'\x85'
    pickles = {
        'nested_key': b'\x80\x02}' + nested + b'K\x01s.',
        'doubled_key': b'\x80\x02}' + doubled + b'K\x01s.',
        'key_of_one_tuple': b'\x80\x02})K\x01s.',
        'long_keys': b'\x80\x02}(' + b''.join(key + b'K\x01' for key in collisions) + b'u.',
        'long_keys_one_by_one': b'\x80\x02}'
        + b''.join(key + b'K\x01s' for key in collisions)
        + b'.',
        'nested_value_of_a_call': _START
        + b'ctorch._tensor\n_rebuild_from_type_v2\n('
        + nested
        + b'}}}tR'
        + _END,
        'doubled_value_of_a_call': _START
        + b'ctorch._tensor\n_rebuild_from_type_v2\n('
        + doubled
        + b'}}}tR'
        + _END,
        'doubled_value': _START + doubled + _END,
        'nested_value': _START + nested + _END,
        'set_of_nested': _START + call['set'] + b'](' + nested + b'e\x85R' + _END,
        'set_of_doubled': _START + call['set'] + b'](' + doubled + b'e\x85R' + _END,
        'set_of_long': _START + call['set'] + b'](' + b''.join(collisions) + b'e\x85R' + _END,
        'set_of_a_tuple': _START + call['set'] + doubled + b'\x85\x85R' + _END,
        'counted_tuples': _START + call['counter'] + b'](' + doubled + b'e\x85R' + _END,
        'pairs_of_tuples': _START + call['ordered'] + b'](' + doubled + b'K\x01\x86e\x85R' + _END,
        'pairs_of_long': _START
        + call['ordered']
        + b']('
        + b''.join(c + b'K\x01\x86' for c in collisions)
        + b'e\x85R'
        + _END,
        'set_by_newobj': _START + call['set'] + b'](' + doubled + b'e\x85\x81' + _END,
        'punycode': _START
        + _encoded(_text(''.join(map(chr, range(0x4E00, 0x9E00))) * 3), 'punycode')
        + _END,
        'nested_hex': _START + _nested_hex(24) + _END,
        'encoding_by_memo': _START
        + b'c_codecs\nencode\n'
        + _text('latin1')
        + b'q\x07'
        + _text('hex')
        + b'q\x07\x86R'
        + _END,
        'tensor_of_a_size': _START + call['torch\nTensor'] + huge + b'R' + _END,
        'tensor_by_newobj': _START + call['torch\nTensor'] + huge + b'\x81' + _END,
        'storage_of_a_size': _START + call['torch.storage\nUntypedStorage'] + huge + b'R' + _END,
        'empty_sets': b'\x80\x02](' + b'\x8f' * 2_000_000 + b'e.',
        'empty_dicts': b'\x80\x02](' + b'}' * 2_000_000 + b'e.',
        'many_calls': b'\x80\x02]('
        + b'ccollections\nOrderedDict\nq\x00)R'
        + b'h\x00)R' * 300_000
        + b'e.',
        'long_name': b'\x80\x02c' + b'a' * 10**7 + b'\nb\n.',
    }
    return pickles


def write_costly_files(folder: Path) -> list[Path]:
    """Each costly pickle in torch's archive, and archives that cost much by themselves."""
    files = {name: _as_archive(data) for name, data in costly_pickles().items()}
    files |= {
        f'{name}_legacy': _as_legacy(costly_pickles()[name])
        for name in ('nested_key', 'doubled_key', 'nested_hex')
    }
    files['many_members'] = _with_members(300_000)
    paths = []
    for name, data in files.items():
        paths.append(folder / f'{name}.pth')
        paths[-1].write_bytes(data)
    return paths


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

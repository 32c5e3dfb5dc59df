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

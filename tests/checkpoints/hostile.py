"""Files that would run something if they were unpickled. None of them may do more than fail."""

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


def _text(value: str) -> bytes:
    return b'X' + len(value.encode()).to_bytes(4, 'little') + value.encode()


def _held(*parts: bytes) -> bytes:
    """Pickle of a dict with what the opcodes leave on the stack."""
    return b'\x80\x02}' + _text('state_dict') + b''.join(parts) + b's.'


def hostile_pickles(command: str) -> dict[str, bytes]:
    """Pickles that run ``command`` if ``pickle`` loads them, by the way that they take."""
    module = os.system.__module__  # posix
    call = f'c{module}\nsystem\n'.encode()
    run = _text(command) + b'\x85R'  # TUPLE1, REDUCE
    built = f'c{Built.__module__}\nBuilt\n'.encode()
    buffer = b'cmmengine.logging.history_buffer\nHistoryBuffer\n'
    getattr_, importing = b'c__builtin__\ngetattr\n(', b'c__builtin__\n__import__\n'
    system = Call(os.system, command)
    return {
        'reduce': _held(call, run),
        'protocol_0': pickle.dumps(dict(state_dict=system), 0),
        'protocol_4': pickle.dumps(dict(state_dict=system), 4),
        'inst': _held(b'(', _text(command), f'i{module}\nsystem\n'.encode()),
        'obj': _held(b'(', call, _text(command), b'o'),
        'build': _held(built, b')\x81}', _text('command'), _text(command), b'sb'),
        'extension': _held(b'\x82\xf0', run),
        'persistent': _held(call, run, b'Q'),
        'in_a_key': pickle.dumps({system: 1}, 2),
        'popped': _held(call, run, b'0}'),
        'partial': _held(b'cfunctools\npartial\n', call, b'\x85R', run),
        'getattr_of_a_module': _held(
            getattr_, importing, _text('os'), b'\x85R', _text('system'), b'tR', run
        ),
        # These two run nothing, and get at what could.
        'getattr_of_a_stand_in': _held(getattr_, buffer, _text('__init__'), b'tR', run),
        'torch_load': pickle.dumps(dict(a=Call(torch.load, command)), 2),
    }


def _as_archive(data: bytes, **more: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, 'w') as archive:
        archive.writestr('archive/data.pkl', data)
        archive.writestr('archive/version', b'3\n')
        archive.writestr('archive/byteorder', b'little')
        for name, part in more.items():
            archive.writestr(f'archive/{name}', part)
    return buffer.getvalue()


def _as_legacy(data: bytes) -> bytes:
    system = dict(protocol_version=PROTOCOL, little_endian=True, type_sizes={})
    head = b''.join(pickle.dumps(part, 2) for part in (MAGIC, PROTOCOL, system))
    return head + data + pickle.dumps([], 2)


def _as_tar(data: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode='w') as archive:
        for name in ('storages', 'tensors', 'pickle'):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def write_hostile_files(folder: Path, command: str) -> list[Path]:
    """Each pickle in torch's zip archive and as it is, one in older formats too, and archives in
    archives.
    """
    pickles = hostile_pickles(command)
    files = {name: _as_archive(data) for name, data in pickles.items()}
    evil, good = pickles['reduce'], pickle.dumps(dict(state_dict={}), 2)
    files |= dict(bare=evil, legacy=_as_legacy(evil), tar=_as_tar(evil))
    files['archive_in_archive'] = _as_archive(_as_archive(evil))
    files['second_pickle'] = _as_archive(good, **{'extra.pkl': evil})
    files['after_the_end'] = _as_archive(good + evil)
    script = {'constants.pkl': evil, 'code/__torch__.py': b'import os'}
    files['script'] = _as_archive(evil, **script)
    contents = {f'{name}.pth': data for name, data in files.items()}
    contents |= {f'{name}.pkl': data for name, data in pickles.items()}  # as detectron2's files
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    return [folder / name for name in contents]

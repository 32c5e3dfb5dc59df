"""Weights-only reading of ``torch.save``: tensors, numbers, logs and plain data, and
nothing else.
"""

import io
import os
import pickle
import re
import struct
import threading
import zipfile
from _codecs import encode
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from torch import Tensor, nn

from cpvt_backbones.errors import InputError

from ..report import CheckpointError
from .opcodes import STAND_INS, PickleScan, Refused

MAX_PICKLE = 256 << 20  # bytes; mmengine's logs of 10 losses over 1,000,000 iterations take 200 MB
MAX_DIRECTORY = 16 << 20  # bytes of an archive's list of files
FOLDER = 0x10  # attribute of a file in an archive; torch leaves the memory of its tensor as it is
MAX_DIMS = 64  # torch's own operations take no more
MAX_DEPTH = 100
MAX_VALUES = 1_000_000
_NUMBERS = re.compile('b1|[iufc](1|2|4|8|16)')
_PLAIN = (str, bytes, int, float, complex, bool, torch.Size, torch.dtype, torch.device)
_BUILT = (np.ndarray, np.generic, np.dtype, HistoryBuffer, slice)  # of stand-ins, by _build
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# Bytes of Python 2's protocol, and sets; torch allows them from 2.5 on.
_ALLOWED_LATER: list[Any] = [encode, set]
_LOCK = threading.Lock()


class StandIn:
    """Placeholder for an object of a checkpoint; records its arguments and state."""

    arguments: tuple[Any, ...]
    state: Any = None

    def __new__(cls, *arguments: Any) -> 'StandIn':
        self = super().__new__(cls)
        self.arguments = arguments
        return self

    def __setstate__(self, state: Any) -> None:
        self.state = state


_CLASSES: list[Any] = [
    type(path.rpartition('.')[2], (StandIn,), {'__module__': path.rpartition('.')[0]})
    for path in STAND_INS
]


def read_pickled(file: Path) -> Any:
    """Read a file of ``torch.save``: tensors (on the CPU), plain data, numpy arrays and numbers,
    log buffers.

    Raises:
        CheckpointError: The file is damaged or of another format, needs another import or more than
            the limits of this module and of :mod:`.opcodes`, holds tensors that are not dense or
            need more memory than the file has, or refers to itself.
    """
    name = f'checkpoint: {str(file)!r}'
    try:
        _check_pickles(file)
        return _Cleaner(file.stat().st_size).clean(_load(file))
    except Exception as error:  # damage can raise anything in a zip reader and an unpickler
        reason = (str(error).strip() or type(error).__name__).split('\n')[0][:300]
        if file.suffix == '.pkl':
            reason += (
                '; a .pkl file of NumPy arrays (detectron2): if you trust it, open it by'
                ' pickle.load, and save its model by torch.save as a dict of tensors'
            )
        if isinstance(error, Refused):
            raise CheckpointError(f'{name} is refused: {reason}') from error
        fault = 'truncated or damaged'
        if isinstance(error, pickle.UnpicklingError):
            fault = 'no checkpoint, or damaged'
        raise CheckpointError(f'{name} is {fault} ({reason.split(". ")[0]})') from error


def _load(file: Path) -> Any:
    """Load with stand-ins for the classes in ``STAND_INS``, and without the classes that the user's
    code allows.
    """
    with _LOCK:
        before = torch.serialization.get_safe_globals()
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals([*_CLASSES, *_ALLOWED_LATER])
        try:
            return torch.load(file, map_location='cpu', weights_only=True)
        finally:
            torch.serialization.clear_safe_globals()
            torch.serialization.add_safe_globals(before)


def _check_pickles(file: Path) -> None:
    """Check all pickles of a file, and the checksums of an archive, which torch does not."""
    scan = PickleScan()
    with file.open('rb') as stream:
        if stream.read(4) != b'PK\x03\x04':  # torch's test of an archive
            stream.seek(0)
            for _ in range(5):  # torch's old format: five pickles, then raw storages
                scan.check(stream)
            return
        _check_directory(stream)
        with zipfile.ZipFile(stream) as archive:
            members = archive.infolist()
            _check_kind([member.filename for member in members])
            if any(member.compress_type not in _COMPRESSIONS for member in members):
                raise InputError('it is compressed by a method that torch does not know')
            if any(member.external_attr & FOLDER for member in members):
                raise InputError('a record in it is marked as a folder, which torch does not read')
            if sum(member.file_size for member in members) > file.stat().st_size:
                raise InputError('it would unpack to more than its size')
            if damaged := archive.testzip():
                raise InputError(f'wrong checksum of {damaged}')
            pickles = [member for member in members if member.filename.lower().endswith('.pkl')]
            if sum(member.file_size for member in pickles) > MAX_PICKLE:
                raise Refused(f'its pickle has more than {MAX_PICKLE >> 20} MiB')
            for member in pickles:
                content = io.BytesIO(archive.read(member))
                scan.check(content)
                if content.read(1):
                    raise Refused('a pickle in it has something after its end')


def _check_kind(names: list[str]) -> None:
    """Refuse archives of other formats by their name."""
    if names and all(name.endswith('.npy') for name in names):
        raise Refused(
            'it is an archive of NumPy (.npz): load it into a model of the package that reads it,'
            ' and save its state_dict'
        )
    if any(name.endswith('/constants.pkl') for name in names):
        raise Refused(
            'it is a TorchScript archive, which has code: if you trust it, open it by'
            ' torch.jit.load and save its state_dict'
        )


def _check_directory(stream: IO[bytes]) -> None:
    """Check that an archive ends in its list of files and nothing else.

    Otherwise Python's reader, which checks the pickle, and torch's, which loads it, may use two
    different lists.
    """
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - 98))
    tail = stream.read().rjust(98, b'\0')
    if tail[-22:-18] != b'PK\x05\x06' or tail[-2:] != b'\0\0':
        raise InputError(_NO_END)
    if tail[-42:-38] == b'PK\x06\x07':  # torch writes the records of large archives always
        if tail[:4] != b'PK\x06\x06' or struct.unpack('<Q', tail[-34:-26]) != (size - 98,):
            raise InputError(_NO_END)
        end = size - 98
        length, start = struct.unpack('<2Q', tail[40:56])
    else:
        end = size - 22
        length, start = struct.unpack('<2L', tail[-10:-2])
    if start + length != end:
        raise InputError('its list of files is not at its end')
    if length > MAX_DIRECTORY:
        raise Refused(f'its list of files has more than {MAX_DIRECTORY >> 20} MiB')


_NO_END = 'its end is no end of an archive of torch.save'


class _Cleaner:
    """Checks the content of a file of ``size`` bytes, and replaces its stand-ins."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._repeated = 0
        self._values = 0

    def clean(self, value: Any, path: tuple[Any, ...] = ()) -> Any:
        """Return plain data and dense tensors.

        Raise ``ValueError`` or :class:`Refused` for others. ``path`` are the keys to the value.
        """
        self._values += 1  # parts that are shared count as often as they are met
        if self._values > MAX_VALUES:
            raise Refused(f'it has more than {MAX_VALUES:,} values')
        if len(path) > MAX_DEPTH:
            raise InputError(f'it is nested more than {MAX_DEPTH} levels deep, or refers to itself')
        if isinstance(value, Tensor):
            return self._checked(value, '.'.join(map(str, path))[:200] or 'the tensor')
        if isinstance(value, StandIn):
            arguments, state = self.clean((value.arguments, value.state), path)
            return _build(type(value).__name__, arguments, state)
        if isinstance(value, dict):
            return self._clean_dict(value, path)
        if type(value) in (list, tuple, set):
            parts = [self.clean(part, (*path, i)) for i, part in enumerate(value)]
            if type(value) is not list:
                return type(value)(parts)
            value[:] = parts  # other values may share it, as they may a dict
            return value
        return value if isinstance(value, (*_PLAIN, *_BUILT)) else None

    def _clean_dict(self, value: dict[Any, Any], path: tuple[Any, ...]) -> dict[Any, Any]:
        for key in value:
            value[key] = self.clean(value[key], (*path, key))
        if type(value) is not dict:  # any other attribute could take the place of a method
            versions = vars(value).get('_metadata')
            vars(value).clear()
            if versions is not None:
                vars(value).update(_metadata=self.clean(versions, path))
        return value

    def _checked(self, tensor: Tensor, name: str) -> Tensor:
        if type(tensor) not in (Tensor, nn.Parameter):
            raise InputError(f'{name} is a {type(tensor).__name__}, not a tensor')
        tensor = Tensor.detach(tensor)  # without attributes, which could take the place of methods
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != 'cpu':
            raise InputError(f'{name} is no dense tensor')
        if tensor.dim() > MAX_DIMS:
            raise Refused(f'{name} has {tensor.dim()} dimensions; at most {MAX_DIMS} are read')
        # A repeated value takes four bytes in a file, and any amount once it is copied.
        stored = tensor.untyped_storage().nbytes()
        self._repeated += max(0, tensor.numel() * tensor.element_size() - stored)
        if stored > self._size or self._repeated > self._size:
            raise InputError(
                f'{name} of shape {tuple(tensor.shape)} takes more memory than the file has'
            )
        return tensor


def _build(name: str, arguments: Any, state: Any) -> Any:
    match name, arguments, state:
        case 'dtype', [str(kind), *_], [_, str(order), *_] if (
            _NUMBERS.fullmatch(kind) and order in '<>|='
        ):
            return np.dtype(order + kind)
        case 'scalar', [np.dtype() as dtype, bytes(data)], None:
            return np.frombuffer(data, dtype)[0]
        case '_reconstruct', _, [_, tuple(shape), np.dtype() as dtype, fortran, bytes(data)]:
            return (
                np.frombuffer(data, dtype)
                .reshape(shape, order='F' if fortran else 'C')
                .copy(order='A')
            )
        case (
            'HistoryBuffer',
            _,
            {
                '_log_history': np.ndarray() as log,
                '_count_history': np.ndarray() as count,
            },
        ):
            buffer = HistoryBuffer(max_length=int(state.get('max_length', 1_000_000)))
            buffer._log_history, buffer._count_history = log, count
            return buffer
        case 'bytes', [], _:
            return b''
        case 'slice', [_, _, _], _:
            return slice(*arguments)
        case 'ConfigDict', [dict() as plain], _:
            return plain
        case (('PosixPath' | 'WindowsPath' | 'Path'), parts, _) if all(
            isinstance(part, str) for part in parts
        ):
            return str(Path(*parts))
    return None

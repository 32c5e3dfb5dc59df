"""Weights-only reading of ``torch.save``: tensors, numbers, logs and plain data.

torch's weights-only loader imports nothing that a file names. Classes that training frameworks
store beside the weights are read as :class:`StandIn`, never as themselves: ``getattr`` and the
methods of mmengine's log buffers could otherwise be replaced by a file.
"""

import pickle
import re
import tarfile
import threading
import warnings
import zipfile
from _codecs import encode
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from torch import Tensor, nn

from ..report import CheckpointError

# Logs and random states of mmengine's Runner, command line arguments of the authors' scripts, parts
# of configs.
STAND_INS = (
    'argparse.Namespace',
    'builtins.bytes',
    'builtins.getattr',
    'builtins.slice',
    'mmengine.config.config.ConfigDict',
    'mmengine.logging.history_buffer.HistoryBuffer',
    'numpy._core.multiarray._reconstruct',
    'numpy._core.multiarray.scalar',
    'numpy.core.multiarray._reconstruct',
    'numpy.core.multiarray.scalar',
    'numpy.dtype',
    'numpy.ndarray',
    'pathlib.Path',
    'pathlib.PosixPath',
    'pathlib.WindowsPath',
    'pathlib._local.Path',
    'pathlib._local.PosixPath',
    'pathlib._local.WindowsPath',
)
FOLDER = 0x10  # attribute of a file in an archive; torch leaves the memory of its tensor as it is
_NUMBERS = re.compile('b1|[iufc](1|2|4|8|16)')
_PLAIN = (str, bytes, int, float, complex, bool, torch.Size, torch.dtype, torch.device)
_BUILT = (np.ndarray, np.generic, np.dtype, HistoryBuffer, slice)  # of stand-ins, by _build
# How torch's loader names what it does not import.
_UNKNOWN_CLASS = re.compile(r'GLOBAL ([^\s]+) w')
# Bytes of Python 2's protocol, and sets; torch allows them from 2.5 on.
_ALLOWED_LATER: list[Any] = [encode, set]
_LOCK = threading.Lock()


class Refused(ValueError):
    """A file that is not read; the reason completes "the file is refused: "."""


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
        CheckpointError: The file is damaged or of another format, needs an import, or holds tensors
            that are not dense.
    """
    name = f'checkpoint: {str(file)!r}'
    try:
        _check_archive(file)
        return _plain(_load(file))
    except Exception as error:  # damage can raise anything in a zip reader and an unpickler
        reason = _reason(error)
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
        raise CheckpointError(f'{name} is {fault} ({reason})') from error


def _reason(error: Exception) -> str:
    """The first sentence of an error."""
    if isinstance(error, RecursionError):
        return 'it is nested too deep, or refers to itself'
    message = str(error)
    if isinstance(error, Refused):
        return message
    if isinstance(error, LookupError):  # its text is a position or key alone
        return 'a value is missing'
    message = message.rpartition('WeightsUnpickler error: ')[2].strip() or type(error).__name__
    return message.split('\n')[0][:300].split('. ')[0]


def _load(file: Path) -> Any:
    """Load with stand-ins for the classes in ``STAND_INS``, and without the classes that the user's
    code allows.
    """
    with _LOCK, warnings.catch_warnings():
        warnings.filterwarnings('ignore', 'Detected pickle protocol')
        before = torch.serialization.get_safe_globals()
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals([*_CLASSES, *_ALLOWED_LATER])
        try:
            return torch.load(file, map_location='cpu', weights_only=True)
        except pickle.UnpicklingError as error:
            _explain(str(error))
            raise
        finally:
            torch.serialization.clear_safe_globals()
            torch.serialization.add_safe_globals(before)


def _explain(message: str) -> None:
    """Raise :class:`Refused` for what the weights-only loader does not read."""
    if unknown := _UNKNOWN_CLASS.search(message):
        raise Refused(
            f'opening it would import {ascii(unknown[1])[1:-1]:.100}, and a checkpoint needs only'
            ' dense tensors and plain data; if you trust it, save its state dict alone'
        )
    if 'Unsupported operand 149' in message:  # FRAME, the first opcode after the protocol
        raise Refused('its pickle is of protocol 4 or later; torch.save writes protocol 2')


def _check_archive(file: Path) -> None:
    """Refuse archives of other formats, and compare the checksums, which torch does not."""
    with file.open('rb') as stream:
        is_zip = stream.read(4) == b'PK\x03\x04'  # torch's own test
    if not is_zip:
        # Before 2.6, torch's weights-only loader ran code in tar files (CVE-2025-32434).
        if tarfile.is_tarfile(file):
            raise Refused('it is a tar archive: unpack it, or save its weights by torch.save')
        return
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        _check_kind([member.filename for member in members])
        if any(member.external_attr & FOLDER for member in members):
            raise ValueError('a record in it is marked as a folder, which torch does not read')
        if damaged := archive.testzip():
            raise ValueError(f'wrong checksum of {damaged}')


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


def _plain(value: Any, path: tuple[Any, ...] = ()) -> Any:
    """Plain data and dense tensors; ``path`` are the keys to the value.

    Raises:
        ValueError: A tensor is not dense.
    """
    if isinstance(value, Tensor):
        return _dense(value, '.'.join(map(str, path))[:200] or 'the tensor')
    if isinstance(value, StandIn):
        arguments, state = _plain((value.arguments, value.state), path)
        return _build(type(value).__name__, arguments, state)
    if isinstance(value, dict):
        return _plain_dict(value, path)
    if type(value) in (list, tuple, set):
        parts = [_plain(part, (*path, i)) for i, part in enumerate(value)]
        if type(value) is not list:
            return type(value)(parts)
        value[:] = parts  # other values may share it, as they may a dict
        return value
    return value if isinstance(value, (*_PLAIN, *_BUILT)) else None


def _plain_dict(value: dict[Any, Any], path: tuple[Any, ...]) -> dict[Any, Any]:
    for key in value:
        value[key] = _plain(value[key], (*path, key))
    if type(value) is not dict:  # any other attribute could take the place of a method
        versions = vars(value).get('_metadata')
        vars(value).clear()
        if versions is not None:
            vars(value).update(_metadata=_plain(versions, path))
    return value


def _dense(tensor: Tensor, name: str) -> Tensor:
    if type(tensor) not in (Tensor, nn.Parameter):
        raise ValueError(f'{name} is a {type(tensor).__name__}, not a tensor')
    tensor = Tensor.detach(tensor)  # without attributes, which could take the place of methods
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != 'cpu':
        raise ValueError(f'{name} is no dense tensor')
    return tensor


def _build(name: str, arguments: Any, state: Any) -> Any:
    """The object that a stand-in stands for, as plain data; ``None`` for those without a use."""
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

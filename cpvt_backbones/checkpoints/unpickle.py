"""Weights-only unpickling: builds tensors, numbers, logs and plain data, and nothing else."""

import pickle
import pickletools
import re
import threading
import zipfile
from _compat_pickle import IMPORT_MAPPING
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from torch import Tensor, nn

from .report import CheckpointError

# Stored beside the weights by training frameworks: logs and random states of mmengine's Runner, command line arguments
# of the authors' scripts, parts of configs. A stand-in records the arguments of each; none is imported or called.
STAND_INS = (
    *('argparse.Namespace', 'builtins.bytes', 'builtins.getattr', 'builtins.slice', 'numpy.dtype', 'numpy.ndarray'),
    *('mmengine.config.config.ConfigDict', 'mmengine.logging.history_buffer.HistoryBuffer'),
    *(f'numpy.{core}.multiarray.{name}' for core in ('_core', 'core') for name in ('_reconstruct', 'scalar')),
    *(f'pathlib.{local}{name}' for local in ('', '_local.') for name in ('Path', 'PosixPath', 'WindowsPath')),
)
# The part of torch's allow-list that weights need; `bytearray`, in the rest, allocates any amount of memory.
_BUILT = re.compile(
    r'collections\.(OrderedDict|Counter)|_codecs\.encode|builtins\.(set|complex)|torch\.serialization\._get_layout'
    r'|torch\.(_utils\._rebuild_\w+|_tensor\._rebuild_from_type_v2|Tensor|\w+Storage|storage\.\w+Storage|Size|device'
    r'|nn\.parameter\.Parameter'
    r'|b?float\d\w*|u?int\d+|complex\d+|long|half|double|bool|per_(tensor|channel)_\w+)'
)
_NUMBERS = re.compile('b1|[iufc](1|2|4|8|16)')
_MAX_DEPTH = 100
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
    type(path.rpartition('.')[2], (StandIn,), {'__module__': path.rpartition('.')[0]}) for path in STAND_INS
]


def load_pickled(file: Path) -> Any:
    """Read a file of ``torch.save``: tensors (on the CPU), plain data, numpy arrays and numbers, log buffers.

    Raises:
        CheckpointError: The file is damaged or of another format, needs another import, holds tensors that are not
            dense or need more memory than the file has, or refers to itself.
    """
    name = f'checkpoint: {str(file)!r}'
    try:
        wanted = sorted(path for path in _imports(file) if path not in STAND_INS and not _BUILT.fullmatch(path))
        if wanted:
            advice = 'a checkpoint needs only tensors and plain data; if you trust it, save its state dict alone'
            raise CheckpointError(f'{name} is refused: opening it would import {", ".join(wanted)}, and {advice}')
        return _clean(_load(file), file.stat().st_size)
    except CheckpointError:
        raise
    except Exception as error:  # damage can raise anything in a zip reader and an unpickler
        fault = 'no checkpoint, or damaged' if isinstance(error, pickle.UnpicklingError) else 'truncated or damaged'
        first_line = (str(error).strip() or type(error).__name__).split('\n')[0].split('. ')[0]
        raise CheckpointError(f'{name} is {fault} ({first_line})') from error


def _load(file: Path) -> Any:
    """Load with stand-ins for the classes in ``STAND_INS``, and without the classes that the user's code allows."""
    with _LOCK:
        before = torch.serialization.get_safe_globals()
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(_CLASSES)
        try:
            return torch.load(file, map_location='cpu', weights_only=True)
        finally:
            torch.serialization.clear_safe_globals()
            torch.serialization.add_safe_globals(before)


def _imports(file: Path) -> set[str]:
    """Dotted names that unpickling a file would import; checks the checksums of an archive, which torch does not."""
    with file.open('rb') as stream:
        if stream.read(4) != b'PK\x03\x04':  # torch's test of an archive
            stream.seek(0)
            return set(_imports_of_pickles(stream))
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > file.stat().st_size:
            raise ValueError('it would unpack to more than its size')
        if damaged := archive.testzip():
            raise ValueError(f'wrong checksum of {damaged}')
        pickles = (archive.open(member) for member in members if member.filename.endswith('.pkl'))
        return {name for part in pickles for name in _imports_of_pickles(part)}


def _imports_of_pickles(stream: IO[bytes]) -> Iterator[str]:
    strings = ['', '']
    with suppress(ValueError, EOFError):
        for _ in range(5):  # torch's old format is five pickles, then raw storage
            for opcode, argument, _ in pickletools.genops(stream):
                if opcode.name == 'GLOBAL':
                    module, name = str(argument).split(' ', 1)
                    yield f'{IMPORT_MAPPING.get(module, module)}.{name}'  # torch.save writes the names of Python 2
                elif opcode.name == 'STACK_GLOBAL':
                    yield '.'.join(strings)
                elif isinstance(argument, str):
                    strings = [strings[1], argument]


def _clean(content: Any, size: int) -> Any:
    """Check the content of a file of ``size`` bytes, and replace its stand-ins."""
    done: dict[int, tuple[Any, Any]] = {}  # by id; holds the value too, so that its id is not reused
    repeated = 0

    def clean(value: Any, *path: Any) -> Any:
        if isinstance(value, Tensor):
            check(value, '.'.join(map(str, path)) or 'the tensor')
        if type(value) not in (list, tuple, set) and not isinstance(value, (dict, StandIn)):
            return value
        if id(value) in done:
            return done[id(value)][1]
        if len(path) > _MAX_DEPTH:
            raise ValueError(f'it is nested more than {_MAX_DEPTH} levels deep, or refers to itself')
        result = value
        if isinstance(value, dict):
            for items in (value, getattr(value, '__dict__', {})):  # the latter has `_metadata` of a state dict
                for key, child in items.items():
                    items[key] = clean(child, *path, key)
        elif isinstance(value, StandIn):
            result = _build(type(value).__name__, *clean((value.arguments, value.state), *path))
        else:
            result = type(value)(clean(child, *path, index) for index, child in enumerate(value))
        done[id(value)] = (value, result)
        return result

    def check(tensor: Tensor, name: str) -> None:
        nonlocal repeated
        if type(tensor) not in (Tensor, nn.Parameter):
            raise ValueError(f'{name} is a {type(tensor).__name__}, not a tensor')
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != 'cpu':
            kind = 'quantized' if tensor.is_quantized else 'meta' if tensor.is_meta else 'sparse'
            raise ValueError(f'{name} is a {kind} tensor, not a dense one')
        # A repeated value takes four bytes in a file, and any amount once it is copied.
        stored = tensor.untyped_storage().nbytes()
        repeated += max(0, tensor.numel() * tensor.element_size() - stored)
        if stored > size or repeated > size:
            raise ValueError(f'{name} of shape {tuple(tensor.shape)} takes more memory than the file has')

    return clean(content)


def _build(name: str, arguments: Any, state: Any) -> Any:
    match name, arguments, state:
        case 'dtype', [str(kind), *_], [_, str(order), *_] if _NUMBERS.fullmatch(kind) and order in '<>|=':
            return np.dtype(order + kind)
        case 'scalar', [np.dtype() as dtype, bytes(data)], None:
            return np.frombuffer(data, dtype)[0]
        case '_reconstruct', _, [_, tuple(shape), np.dtype() as dtype, fortran, bytes(data)]:
            return np.frombuffer(data, dtype).reshape(shape, order='F' if fortran else 'C').copy(order='A')
        case 'HistoryBuffer', _, {'_log_history': np.ndarray() as log, '_count_history': np.ndarray() as count}:
            buffer = HistoryBuffer(max_length=int(state.get('max_length', 1_000_000)))
            buffer._log_history, buffer._count_history = log, count
            return buffer
        case 'bytes', [], _:
            return b''
        case 'slice', [_, _, _], _:
            return slice(*arguments)
        case 'ConfigDict', [dict() as plain], _:
            return plain
        case (('PosixPath' | 'WindowsPath' | 'Path'), parts, _) if all(isinstance(part, str) for part in parts):
            return str(Path(*parts))
    return None

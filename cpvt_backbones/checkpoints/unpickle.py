"""Weights-only unpickling: tensors, numbers, logs and plain data are built, and nothing else."""

import _compat_pickle
import pickle
import pickletools
import re
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from torch import Tensor, nn

from .report import CheckpointError

# What training frameworks store beside the weights: logs and random states of mmengine's Runner, command line arguments
# of the authors' scripts, parts of configs. A stand-in records each, and none is imported or called.
STAND_INS = (
    'argparse.Namespace',
    'builtins.bytes',
    'builtins.getattr',
    'builtins.slice',
    'mmengine.config.config.ConfigDict',
    'mmengine.logging.history_buffer.HistoryBuffer',
    'numpy.dtype',
    'numpy.ndarray',
    *(f'numpy.{core}.multiarray.{name}' for core in ('_core', 'core') for name in ('_reconstruct', 'scalar')),
    *(f'pathlib.{local}{name}' for local in ('', '_local.') for name in ('Path', 'PosixPath', 'WindowsPath')),
)
# The part of torch's own allow-list that weights need. Another part, as `bytearray`, fills any amount of memory.
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
    """Placeholder for an object of a checkpoint; records the arguments and the state that it would be built from."""

    arguments: tuple[Any, ...] = ()
    state: Any = None

    def __new__(cls, *arguments: Any) -> 'StandIn':
        self = super().__new__(cls)
        self.arguments = arguments
        return self

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _stand_in(path: str) -> type[StandIn]:
    module, _, name = path.rpartition('.')
    return type(name, (StandIn,), {'__module__': module, '__qualname__': name})


_CLASSES: dict[str, type[StandIn]] = {path: _stand_in(path) for path in STAND_INS}


def load_pickled(file: Path) -> Any:
    """Read a file of ``torch.save``: tensors (on the CPU), plain data, numpy arrays and numbers, log buffers.

    Objects of another class in ``STAND_INS`` come out as ``None``.

    Raises:
        CheckpointError: The file is damaged, holds something else, or asks for another import; tensors that are not
            dense, or that need more memory than the file has; content that refers to itself.
    """
    name = f'checkpoint: {str(file)!r}'
    try:
        _check_archive(file)
        wanted = sorted({path for path in _imports(file) if path not in STAND_INS and not _BUILT.fullmatch(path)})
        if wanted:
            raise CheckpointError(
                f'{name} is refused: opening it would import {", ".join(wanted)}, and a checkpoint needs nothing but '
                'tensors and plain data; save its state dict alone where you trust it'
            )
        with _only_stand_ins():
            content = torch.load(file, map_location='cpu', weights_only=True)
        _check_content(content, file)
        return _replace_stand_ins(content)
    except CheckpointError:
        raise
    except pickle.UnpicklingError as error:
        raise CheckpointError(f'{name} is no checkpoint, or damaged ({_first_line(error)})') from error
    except Exception as error:  # what a zip reader and an unpickler run into depends on where a file is damaged
        raise CheckpointError(f'{name} is truncated or damaged ({_first_line(error)})') from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).split('\n')[0].split('. ')[0]


@contextmanager
def _only_stand_ins() -> Iterator[None]:
    """Within this context weights-only loading accepts the names in ``STAND_INS``, and no others of the user's."""
    with _LOCK:
        before = torch.serialization.get_safe_globals()
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(list(_CLASSES.values()))
        try:
            yield
        finally:
            torch.serialization.clear_safe_globals()
            torch.serialization.add_safe_globals(before)


def _is_archive(file: Path) -> bool:
    with file.open('rb') as stream:
        return stream.read(4) == b'PK\x03\x04'  # torch decides by these, too


def _check_archive(file: Path) -> None:
    """Check the checksums of a zip archive, which torch does not, and that it unpacks to no more than its own size."""
    if not _is_archive(file):
        return
    with zipfile.ZipFile(file) as archive:
        if sum(member.file_size for member in archive.infolist()) > file.stat().st_size:
            raise ValueError('it would unpack to more than its size')
        if damaged := archive.testzip():
            raise ValueError(f'wrong checksum of {damaged}')


def _imports(file: Path) -> Iterator[str]:
    """Dotted names that unpickling a file would import, found without unpickling it."""
    if not _is_archive(file):
        with file.open('rb') as stream:
            yield from _imports_of_pickle(stream)
        return
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            if name.endswith('.pkl'):
                with archive.open(name) as part:
                    yield from _imports_of_pickle(part)


def _imports_of_pickle(stream: IO[bytes]) -> Iterator[str]:
    strings = ['', '']
    try:
        for _ in range(5):  # a file of torch's old format is as many pickles in a row, then raw storage
            for opcode, argument, _ in pickletools.genops(stream):
                if opcode.name in ('GLOBAL', 'INST'):
                    yield _python_3_name(*str(argument).split(' ', 1))
                elif opcode.name == 'STACK_GLOBAL':
                    yield '.'.join(strings)
                elif isinstance(argument, str):
                    strings = [strings[1], argument]
    except (ValueError, EOFError, UnicodeDecodeError):
        return


def _python_3_name(module: str, name: str) -> str:
    """Dotted name of an import; torch.save writes those of Python 2."""
    module, name = _compat_pickle.NAME_MAPPING.get((module, name), (module, name))
    return f'{_compat_pickle.IMPORT_MAPPING.get(module, module)}.{name}'


def _check_content(content: Any, file: Path) -> None:
    """Check what a file held: dense tensors on the CPU within the size of the file, and containers that end.

    A tensor of one value repeated, which takes four bytes in a file, may fill any memory once something copies it.

    Raises:
        ValueError: Naming the key.
    """
    size = file.stat().st_size
    seen: dict[int, bool] = {}  # by id: whether all of it has been looked at
    repeated = 0

    def visit(value: Any, path: tuple[Any, ...]) -> None:
        nonlocal repeated
        if isinstance(value, Tensor):
            name = '.'.join(map(str, path)) or 'the tensor'
            if type(value) not in (Tensor, nn.Parameter):
                raise ValueError(f'{name} is a {type(value).__name__}, not a tensor')
            if value.layout != torch.strided or value.is_quantized or value.device.type != 'cpu':
                kind = 'quantized' if value.is_quantized else 'meta' if value.is_meta else 'sparse'
                raise ValueError(f'{name} is a {kind} tensor, not a dense one')
            stored = value.untyped_storage().nbytes()
            repeated += max(0, value.numel() * value.element_size() - stored)
            if stored > size or repeated > size:
                raise ValueError(f'{name} of shape {tuple(value.shape)} takes more memory than the file has')
            return
        items: list[tuple[Any, Any]]
        if isinstance(value, Mapping):
            items = list(value.items())
            if type(value).__name__ == 'OrderedDict':
                items += list(vars(value).items())  # `_metadata` of a state dict
        elif isinstance(value, (list, tuple, set)):
            items = list(enumerate(value))
        elif isinstance(value, StandIn):
            items = list(vars(value).items())
        else:
            return
        if id(value) in seen:
            if not seen[id(value)]:
                raise ValueError(f'{".".join(map(str, path))} refers to itself')
            return
        if len(path) > _MAX_DEPTH:
            raise ValueError(f'it is nested more than {_MAX_DEPTH} levels deep')
        seen[id(value)] = False
        for key, child in items:
            visit(child, (*path, key))
        seen[id(value)] = True

    visit(content, ())


def _replace_stand_ins(content: Any) -> Any:
    """Build what the stand-ins of plain data, numpy arrays and log buffers recorded; ``None`` for any other."""
    done: dict[int, tuple[Any, Any]] = {}  # by id; with the value itself, so that no other one gets its id

    def replace(value: Any) -> Any:
        if id(value) in done:
            return done[id(value)][1]
        result = value
        if isinstance(value, dict):
            for key, child in value.items():
                value[key] = replace(child)
        elif isinstance(value, StandIn):
            result = _build(type(value).__name__, replace(value.arguments), replace(value.state))
        elif type(value) in (list, tuple, set):
            result = type(value)(map(replace, value))
        else:
            return value
        done[id(value)] = (value, result)
        return result

    return replace(content)


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

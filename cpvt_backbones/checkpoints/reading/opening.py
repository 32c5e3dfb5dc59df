"""Opens a checkpoint as tensors and plain data, without running anything in it.

torch's weights-only loader imports nothing that a file names. Classes that training frameworks
store beside the weights are read as :class:`StandIn`, never as themselves. Otherwise a file could
replace ``getattr`` and the methods of mmengine's log buffers. ``.pkl`` files of detectron2, which
hold NumPy arrays, are read with the same stand-ins only.
"""

import pickle
import re
import tarfile
import threading
import warnings
import zipfile
from _codecs import encode
from collections import OrderedDict, defaultdict
from numbers import Real
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from cpvt_backbones.weights import hash_in_name, sha256_of

from ..report import CheckpointError, shorten
from .json_files import read_json

_BEST = 'best_ckpt'  # key of mmengine's CheckpointHook; best_ckpt_<metric> for several metrics
INDEX = '.index.json'  # end of the name of the file that lists the files of sharded weights
MAX_SHARDS = 1000
_SHARD = re.compile(r'-\d{5}-of-(\d{5})\.(?:safetensors|bin)$')  # as huggingface_hub names them
_SHA256 = re.compile(r'[0-9a-f]{64}')
_OTHER_FORMATS = [
    (b'version https://git-lfs', 'a Git LFS pointer: run git lfs pull in its clone'),
    (b'\x1f\x8b', 'compressed by gzip: unpack it'),
    (b'\x89HDF', 'HDF5, as Keras writes it: load it there, and save its weights by torch.save'),
    (b'BZh', 'compressed by bzip2: unpack it'),
    (b'\xfd7zXZ', 'compressed by xz: unpack it'),
    (b'Rar!', 'a RAR archive: unpack it'),
    (b'7z\xbc\xaf', 'a 7z archive: unpack it'),
]
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
FOLDER = 0x10  # attribute of a file in an archive; torch does not change the memory of its tensor
_NUMBERS = re.compile('b1|[iufc](1|2|4|8|16)')
_PLAIN = (str, bytes, int, float, complex, bool, torch.Size, torch.dtype, torch.device)
_BUILT = (np.ndarray, np.generic, np.dtype, HistoryBuffer, slice)  # of stand-ins, by _build
# How torch's loader names classes that it does not import.
_UNKNOWN_CLASS = re.compile(r'GLOBAL ([^\s]+) w')
# Bytes in Python 2's protocol, and sets; torch allows them since 2.5.
_ALLOWED_LATER: list[Any] = [encode, set]
_LOCK = threading.Lock()
# Start of files of torch.save before zip archives.
_LEGACY = pickle.dumps(0x1950A86A20F9469CFC6C, 2)


class Refused(ValueError):
    """Raised for a refused file; the reason completes "the file is refused: "."""


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


def open_checkpoint(file: Path) -> dict[str, Any]:
    """Read the file of a checkpoint; the errors are those of :func:`read_checkpoint`."""
    if (shard := _SHARD.search(file.name)) and int(shard[1]) > 1:
        raise CheckpointError(
            f'checkpoint: {str(file)!r} is one of {int(shard[1])} files of a model: pass their'
            f' folder, or its file *{INDEX}'
        )
    content = _read(file)
    _remove_instructions(content)
    return content


def stored_source(file: Path) -> str:
    """Return the config that mmengine stored in a checkpoint as text; ``''`` without one.

    Parse it as data and never run it, because the file may come from someone else.
    """
    source = file_metadata(file).get('cfg')
    return source if isinstance(source, str) else ''


def file_metadata(file: Path) -> dict[str, Any]:
    """Return ``meta`` of a file of ``torch.save``, or the metadata of a safetensors file.

    Unlike in :func:`open_checkpoint`, it contains the stored config, which must never be run. The
    weights stay on the disk, unread and unchecked.

    Raises:
        CheckpointError: The file cannot be read.
    """
    if file.suffix == '.safetensors':
        _check_format(file)
        try:
            with safe_open(file, 'pt') as stream:
                return dict(stream.metadata() or {})
        except (SafetensorError, OSError) as error:
            reason = str(error).split('\n')[0][:300]
            fault = f'is truncated or not a safetensors file ({reason})'
            raise CheckpointError(f'checkpoint: {str(file)!r} {fault}') from error
    meta = _read(file, whole=False).get('meta')
    return meta if isinstance(meta, dict) else {}


def saved_state(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return ``meta`` of a training's checkpoint, and its stored best checkpoints and scores.

    Paths become names. Both are empty if the file cannot be read, because reading its weights
    reports the error.
    """
    try:
        content = _read(file, whole=False)
    except (CheckpointError, OSError):
        return {}, {}
    meta, hub = content.get('meta'), content.get('message_hub')
    info = hub.get('runtime_info') if isinstance(hub, dict) else None
    best: dict[str, Any] = {}
    for key, value in info.items() if isinstance(info, dict) else ():
        if isinstance(key, str) and key.startswith(_BEST):
            best[key] = PurePath(value).name if isinstance(value, str) else None
        elif isinstance(key, str) and key.startswith('best_score') and isinstance(value, Real):
            best[key] = float(value)
    return meta if isinstance(meta, dict) else {}, best


def _read(file: Path, *, whole: bool = True) -> dict[str, Any]:
    """Read a file; without ``whole``, for what is stored beside the weights."""
    if file.stat().st_size == 0:
        raise CheckpointError(f'checkpoint: the file {str(file)!r} is empty')
    if file.name.endswith(INDEX):
        return _read_shards(file)
    if whole:
        _check_hash(file)
    _check_format(file)
    content: Any = None
    if file.suffix == '.safetensors':
        content = _read_safetensors(file)
    else:
        content = read_pickled(file, whole=whole)
    weights = content.get('state_dict', content) if isinstance(content, dict) else content
    if not isinstance(weights, dict) or not all(isinstance(key, str) for key in weights):
        found = f'a {type(weights).__name__}, not a dict of weights by name'
        raise CheckpointError(f'checkpoint: {str(file)!r} holds {found}')
    return content


def _check_format(file: Path) -> None:
    """Raise CheckpointError with advice for other formats, recognised by their first bytes."""
    with file.open('rb') as stream:
        head = stream.read(64)
    safetensors = head[8:9] == b'{' and int.from_bytes(head[:8], 'little') < file.stat().st_size
    found = None
    for start, advice in _OTHER_FORMATS:
        if head.startswith(start):
            found = advice
    if head.lstrip()[:9].lower().startswith((b'<!doctype', b'<html')):
        found = 'a web page: the download failed, or needs a login'
    elif safetensors:
        if file.suffix != '.safetensors':
            found = 'a safetensors file: rename it to *.safetensors'
    elif file.suffix == '.safetensors' and head.startswith((b'PK\x03\x04', b'\x80\x02')):
        found = 'a file of torch.save: rename it to *.pth'
    if found:
        raise CheckpointError(f'checkpoint: {str(file)!r} is {found}')


def _read_shards(index: Path) -> dict[str, Any]:
    """Read the tensors of all files that an index lists."""
    weights: dict[str, Any] = {}
    for name, keys in shards_of(index).items():
        shard = index.with_name(name)
        if not shard.is_file():
            fault = f'{str(index)!r} names {name!r}, which is not beside it'
            raise FileNotFoundError(f'checkpoint: {fault}')
        content = _read(shard)
        found = set(content)
        for fault, others in (('lacks', keys - found), ('has other keys,', found - keys)):
            if others:
                raise CheckpointError(
                    f'checkpoint: {str(shard)!r} is not the file of {index.name!r}: it {fault}'
                    f' {shorten(sorted(others))}'
                )
        weights |= content
    return weights


def shards_of(index: Path) -> dict[str, set[str]]:
    """Return the names of the files that an index lists, with the keys of each.

    Raises:
        CheckpointError: The index is damaged, or names other paths than files beside it.
    """
    name = f'checkpoint: {str(index)!r}'
    try:
        found: Any = read_json(index).get('weight_map')
    except ValueError as error:
        raise CheckpointError(f'checkpoint: {error}') from error
    if not isinstance(found, dict) or not found:
        raise CheckpointError(
            f'{name} must have a weight_map of keys and files, got {found!r:.100}'
        )
    shards: dict[str, set[str]] = defaultdict(set)
    for key, file in found.items():
        if not isinstance(file, str) or not _is_file_name(file):
            fault = 'must name .safetensors or .bin files of its folder'
            raise CheckpointError(f'{name} {fault}, got {file!r:.100}')
        shards[file].add(key)
    if len(shards) > MAX_SHARDS:
        raise CheckpointError(f'{name} is refused: it names more than {MAX_SHARDS} files')
    return dict(shards)


def _is_file_name(name: str) -> bool:
    """``True`` for the name of a file of weights without a folder."""
    return name.endswith(('.safetensors', '.bin')) and not set(name) & set('/\\:\0')


def _check_hash(file: Path) -> None:
    """Compare the file with the SHA-256 in its name, 64 or 8 digits."""
    wanted = file.resolve().name  # as huggingface_hub's cache names its files
    if not _SHA256.fullmatch(wanted):
        wanted = hash_in_name(file.stem)
    if wanted and not (found := sha256_of(file)).startswith(wanted):
        advice = 'fetch it again'
        if len(wanted) == 8:
            advice += ', or rename it if these digits have another meaning, such as a commit'
        fault = f'its SHA-256 is {found}, not {wanted} as in its name; {advice}'
        raise CheckpointError(f'checkpoint: {str(file)!r} is damaged: {fault}')


def _read_safetensors(file: Path) -> dict[str, Any]:
    try:
        return dict(load_file(file))
    except (SafetensorError, OSError, KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).split('\n')[0][:300]
        fault = f'is truncated or not a safetensors file ({reason})'
        raise CheckpointError(f'checkpoint: {str(file)!r} {fault}') from error


class _RuntimeInfo(dict[str, Any]):
    """``message_hub.runtime_info`` of a checkpoint without its config.

    mmengine's inferencers run the stored config as Python if they get no other config.
    """

    def __missing__(self, key: str) -> Any:
        if key == 'cfg':
            advice = 'name the config, such as model="CONFIG.py" of an inferencer'
            raise CheckpointError(
                f'checkpoint: a config stored in a checkpoint is never run; {advice}'
            )
        raise KeyError(key)


def _remove_instructions(content: dict[str, Any]) -> None:
    """Remove entries with which a checkpoint makes mmengine run code or delete files, in place.

    mmengine's ``Runner.resume`` and ``FlexibleRunner.resume`` run ``meta.config``. Its inferencers
    run ``meta.cfg`` and ``message_hub.runtime_info.cfg``. Its ``CheckpointHook`` deletes the path
    in ``runtime_info.best_ckpt`` (``best_ckpt_<metric>`` for several metrics) at the next better
    score.
    """
    meta = content.get('meta')
    if isinstance(meta, dict):
        meta.pop('cfg', None)
        meta.pop('config', None)
    hub = content.get('message_hub')
    info = hub.get('runtime_info') if isinstance(hub, dict) else None
    if isinstance(hub, dict) and isinstance(info, dict):
        hub['runtime_info'] = _RuntimeInfo(
            (key, value)
            for key, value in info.items()
            if key != 'cfg' and not (isinstance(key, str) and key.startswith(_BEST))
        )


# -- files of torch.save


def read_pickled(file: Path, *, whole: bool = True) -> Any:
    """Read tensors, plain data, NumPy arrays and numbers, and log buffers from ``torch.save``.

    Args:
        file: The file.
        whole: Compare the checksums, and read the tensors, to the CPU. Otherwise, tensors of an
            archive are mapped from the disk.

    Raises:
        CheckpointError: The file is damaged, has another format, needs an import, or holds tensors
            that are not dense.
    """
    name = f'checkpoint: {str(file)!r}'
    try:
        is_archive = _check_archive(file, whole=whole)
        if _has_arrays(file):
            return _to_tensors(_plain(_load_arrays(file)))
        return _plain(_load(file, mmap=is_archive and not whole))
    except Exception as error:  # damage can raise anything in a zip reader and an unpickler
        reason = _reason(error)
        if isinstance(error, Refused):
            raise CheckpointError(f'{name} is refused: {reason}') from error
        fault = 'truncated or damaged'
        if isinstance(error, pickle.UnpicklingError):
            fault = 'not a checkpoint, or damaged'
        raise CheckpointError(f'{name} is {fault} ({reason})') from error


def _reason(error: Exception) -> str:
    """Return the first sentence of an error."""
    if isinstance(error, RecursionError):
        return 'it is nested too deeply, or refers to itself'
    message = str(error)
    if isinstance(error, Refused):
        return message
    if isinstance(error, LookupError):  # whose text is only a position or key
        return 'a value is missing'
    message = message.rpartition('WeightsUnpickler error: ')[2].strip() or type(error).__name__
    return message.split('\n')[0][:300].split('. ')[0]


def _load(file: Path, *, mmap: bool) -> Any:
    """Load with stand-ins for ``STAND_INS``, and without classes that the user's code allows."""
    with _LOCK, warnings.catch_warnings():
        warnings.filterwarnings('ignore', 'Detected pickle protocol')
        before = torch.serialization.get_safe_globals()
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals([*_CLASSES, *_ALLOWED_LATER])
        try:
            return torch.load(file, map_location='cpu', weights_only=True, mmap=mmap)
        except pickle.UnpicklingError as error:
            _explain(str(error))
            raise
        finally:
            torch.serialization.clear_safe_globals()
            torch.serialization.add_safe_globals(before)


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickler of NumPy arrays and plain data; classes are stand-ins or refused."""

    def find_class(self, module: str, name: str) -> Any:
        if f'{module}.{name}' == 'collections.OrderedDict':
            return OrderedDict
        if f'{module}.{name}' in STAND_INS:
            return _CLASSES[STAND_INS.index(f'{module}.{name}')]
        raise pickle.UnpicklingError(f'GLOBAL {module}.{name} was not allowed')


def _has_arrays(file: Path) -> bool:
    """``True`` for one pickle, as in detectron2, rather than an archive or pickles of torch."""
    if file.suffix != '.pkl':
        return False
    with file.open('rb') as stream:
        head = stream.read(len(_LEGACY))
    return head[:1] == b'\x80' and head != _LEGACY


def _load_arrays(file: Path) -> Any:
    with file.open('rb') as stream:
        try:
            return _ArrayUnpickler(stream).load()
        except pickle.UnpicklingError as error:
            _explain(str(error))
            raise


def _to_tensors(content: Any) -> Any:
    """Convert the arrays of detectron2 to tensors, under the key ``model`` or without it."""
    weights = content.get('model', content) if isinstance(content, dict) else None
    if isinstance(weights, dict):
        for key, value in weights.items():
            if isinstance(value, np.ndarray):
                weights[key] = torch.from_numpy(value)
    return content


def _explain(message: str) -> None:
    """Raise :class:`Refused` for a message of the weights-only loader."""
    if unknown := _UNKNOWN_CLASS.search(message):
        raise Refused(
            f'opening it would import {ascii(unknown[1])[1:-1]:.100}, and a checkpoint needs only'
            ' dense tensors and plain data; if you trust it, save its state dict alone'
        )
    if 'Unsupported operand 149' in message:  # FRAME, the first opcode after the protocol
        raise Refused('its pickle is of protocol 4 or later; torch.save writes protocol 2')


def _check_archive(file: Path, *, whole: bool) -> bool:
    """Refuse archives of other formats; compare the checksums, which torch ignores, if ``whole``.

    Returns:
        Whether the file is an archive, as of ``torch.save`` since 1.6.
    """
    with file.open('rb') as stream:
        is_zip = stream.read(4) == b'PK\x03\x04'  # torch's own test
    if not is_zip:
        # Before 2.6, torch's weights-only loader ran code in tar files (CVE-2025-32434).
        if tarfile.is_tarfile(file):
            raise Refused('it is a tar archive: unpack it, or save its weights by torch.save')
        return False
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if member.filename.endswith('.npy'):
                raise Refused(
                    'it is an archive of NumPy (.npz): load it into a model of the package that'
                    ' reads it, and save its state_dict'
                )
            if member.filename.endswith('/constants.pkl'):
                raise Refused(
                    'it is a TorchScript archive, which has code: if you trust it, open it by'
                    ' torch.jit.load and save its state_dict'
                )
            if member.external_attr & FOLDER:
                raise ValueError('a record in it is marked as a folder, which torch does not read')
        if whole and (damaged := archive.testzip()):
            raise ValueError(f'wrong checksum of {damaged}')
    return True


def _plain(value: Any, path: tuple[Any, ...] = ()) -> Any:
    """Convert to plain data and dense tensors; ``path`` lists the keys to the value.

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
        value[:] = parts  # other values may share it, like a dict
        return value
    return value if isinstance(value, (*_PLAIN, *_BUILT)) else None


def _plain_dict(value: dict[Any, Any], path: tuple[Any, ...]) -> dict[Any, Any]:
    for key in value:
        value[key] = _plain(value[key], (*path, key))
    if type(value) is not dict:  # other attributes could replace methods
        versions = vars(value).get('_metadata')
        vars(value).clear()
        if versions is not None:
            vars(value).update(_metadata=_plain(versions, path))
    return value


def _dense(tensor: Tensor, name: str) -> Tensor:
    if type(tensor) not in (Tensor, nn.Parameter):
        raise ValueError(f'{name} is a {type(tensor).__name__}, not a tensor')
    tensor = Tensor.detach(tensor)  # without attributes, which could replace methods
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != 'cpu':
        raise ValueError(f'{name} is not a dense tensor')
    return tensor


def _build(name: str, arguments: Any, state: Any) -> Any:
    """Return the object of a stand-in as plain data; ``None`` for unused objects."""
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

"""Checkpoint files: open them without running what is in them, and write them whole or not at all."""

import _compat_pickle
import pickle
import pickletools
import re
import secrets
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import IO, Any, BinaryIO

import torch
from torch import Tensor

from cpvt_backbones.weights import shipped_file, shipped_weights

from .errors import CheckpointError

# What training frameworks store beside the weights: logs and random states of mmengine's Runner, command line
# arguments of the authors' scripts. None of it is wanted, so none of it is built: a stand-in takes its place.
IGNORED = (
    'argparse.Namespace',
    'builtins.bytes',
    'builtins.getattr',
    'mmengine.logging.history_buffer.HistoryBuffer',
    'numpy.dtype',
    'numpy.ndarray',
    *(f'numpy.{core}.multiarray.{name}' for core in ('_core', 'core') for name in ('_reconstruct', 'scalar')),
    *(f'pathlib.{local}{name}' for local in ('', '_local.') for name in ('Path', 'PosixPath', 'WindowsPath')),
)
# What torch's weights-only loading lets through by itself, as far as checkpoints have it.
_HARMLESS = re.compile(
    r'collections\.(OrderedDict|Counter)|_codecs\.encode|builtins\.(set|complex|bytearray)'
    r'|torch\.(_utils\._rebuild_\w+|\w*Storage|storage\.\w+Storage|Size|device|nn\.parameter\.Parameter'
    r'|b?float\d*|u?int\d*|long|half|double|bool)'
)


class Ignored:
    """Stands for an object of a checkpoint that was not read; takes any arguments and any state."""

    def __new__(cls, *_: Any, **__: Any) -> 'Ignored':
        return super().__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, _: Any) -> None:
        pass


def _stand_in(path: str) -> type[Ignored]:
    module, _, name = path.rpartition('.')
    return type(name, (Ignored,), {'__module__': module, '__qualname__': name})


_STAND_INS: list[Any] = [_stand_in(path) for path in IGNORED]


def read_checkpoint(path: str | PathLike[str]) -> dict[str, Any]:
    """Read a checkpoint, weights only: nothing in the file is imported or run.

    Args:
        path: The name of weights that come with the package (:mod:`cpvt_backbones.weights`), a ``.safetensors`` file,
            one that ``torch.save`` wrote (``.pth``, ``.pt``, ``.bin``, ...), or the work
            folder of an mmengine run, whose newest checkpoint is taken. What ``https://`` names is fetched into
            torch's cache.

    Returns:
        dict: What the file holds, on the CPU. Objects that are neither tensors nor plain data (log buffers, numpy
        scalars, command line arguments) are left out: an :class:`Ignored` stands in their place.

    Raises:
        FileNotFoundError: There is no such file or folder, or no checkpoint in the folder.
        CheckpointError: The file is empty, truncated, no checkpoint, or would import something when opened.
        ImportError: A ``.safetensors`` file, and the package safetensors is not installed.
    """
    if str(path).startswith(('https://', 'http://')):
        path = _fetch(str(path))
    elif '://' in str(path):
        raise CheckpointError(f'checkpoint must be a file, a folder or an https:// address, got {str(path)!r}')
    file = shipped_file(path).expanduser()
    if file.is_dir():
        file = _newest_of_run(file)
    elif not file.is_file():
        raise FileNotFoundError(
            f'checkpoint: there is no file or folder {str(path)!r}, and no weights of that name come with the package '
            f'(those are {list(shipped_weights())})'
        )
    if file.stat().st_size == 0:
        raise CheckpointError(f'checkpoint: the file {str(file)!r} is empty')
    content = _read_safetensors(file) if file.suffix == '.safetensors' else _read_pickled(file)
    if not isinstance(content, dict):
        raise CheckpointError(f'checkpoint: {str(file)!r} holds a {type(content).__name__}, not a dict of weights')
    return content


def _fetch(url: str) -> Path:
    file = Path(torch.hub.get_dir(), 'checkpoints', url.split('?')[0].rpartition('/')[2])
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        # It arrives under another name and is moved when complete, so that ranks may do this side by side.
        torch.hub.download_url_to_file(url, str(file), progress=False)
    return file


def _newest_of_run(folder: Path) -> Path:
    pointer = folder / 'last_checkpoint'
    if not pointer.is_file():
        raise FileNotFoundError(
            f"checkpoint: the folder {str(folder)!r} has no 'last_checkpoint', which an mmengine run leaves there; "
            'name a file'
        )
    named = Path(pointer.read_text().strip())
    # The run may have been moved since.
    for file in (named, folder / named.name):
        if file.is_file():
            return file
    raise FileNotFoundError(f'checkpoint: {str(pointer)!r} names {str(named)!r}, which is not there')


def _read_safetensors(file: Path) -> dict[str, Any]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise ImportError(
            f'checkpoint: {str(file)!r} needs the package safetensors: pip install safetensors'
        ) from error
    try:
        return load_file(file)
    except SafetensorError as error:
        raise CheckpointError(f'checkpoint: {str(file)!r} is truncated or no safetensors file ({error})') from error


def _read_pickled(file: Path) -> Any:
    try:
        with _only_stand_ins():
            return torch.load(file, map_location='cpu', weights_only=True)
    except pickle.UnpicklingError as error:
        wanted = sorted(set(_imports(file)) - set(IGNORED))
        if wanted:
            raise CheckpointError(
                f'checkpoint: {str(file)!r} is refused: opening it would import {", ".join(wanted)}, and a checkpoint '
                'needs nothing but tensors and plain data; save its state dict alone where you trust it'
            ) from error
        raise CheckpointError(
            f'checkpoint: {str(file)!r} is no checkpoint, or damaged ({_first_line(error)})'
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
        # What a zip reader and an unpickler run into in half a file depends on where it was cut.
        raise CheckpointError(f'checkpoint: {str(file)!r} is truncated or damaged ({_first_line(error)})') from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).split('\n')[0].split('. ')[0]


@contextmanager
def _only_stand_ins() -> Iterator[None]:
    """Within this context weights-only loading accepts the names in ``IGNORED``, and builds stand-ins for them."""
    before = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals(_STAND_INS)
    try:
        yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


def _imports(file: Path) -> Iterator[str]:
    """Dotted names that unpickling a file would import, tensors' own parts aside, found without unpickling it."""
    with open(file, 'rb') as stream:
        if not zipfile.is_zipfile(stream):
            stream.seek(0)
            yield from _imports_of_pickle(stream)
            return
        with zipfile.ZipFile(stream) as archive:
            for name in archive.namelist():
                if name.endswith('.pkl'):
                    with archive.open(name) as part:
                        yield from _imports_of_pickle(part)


def _imports_of_pickle(stream: IO[bytes]) -> Iterator[str]:
    strings = ['', '']
    try:
        while True:  # a file of torch's old format is several pickles in a row, then raw storage
            for opcode, argument, _ in pickletools.genops(stream):
                if isinstance(argument, str) and opcode.name not in ('GLOBAL', 'INST'):
                    strings = [strings[1], argument]
                if opcode.name in ('GLOBAL', 'INST'):
                    path = _python_3_name(*str(argument).split(' ', 1))
                elif opcode.name == 'STACK_GLOBAL':
                    path = '.'.join(strings)
                else:
                    continue
                if not _HARMLESS.fullmatch(path):
                    yield path
    except (ValueError, EOFError, UnicodeDecodeError):
        return


def _python_3_name(module: str, name: str) -> str:
    """Dotted name of an import; torch.save writes those of Python 2."""
    module, name = _compat_pickle.NAME_MAPPING.get((module, name), (module, name))
    return f'{_compat_pickle.IMPORT_MAPPING.get(module, module)}.{name}'


@contextmanager
def atomic_write(path: str | PathLike[str]) -> Iterator[BinaryIO]:
    """Write a file whole or not at all.

    Yields a binary file in the same folder, which is created if need be. It replaces ``path`` when the block ends, and
    is deleted when the block raises, so that a reader never meets a part of a file.

    Args:
        path: The file to write.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f'.{path.name[:40]}.{secrets.token_hex(4)}.part')
    try:
        with part.open('xb') as file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


SUFFIXES = ('.pth', '.pt', '.safetensors')


def check_destination(path: str | PathLike[str]) -> Path:
    """The path to write to.

    Raises:
        ValueError: Its ending is none of ``.pth``, ``.pt`` and ``.safetensors``.
    """
    if Path(path).suffix not in SUFFIXES:
        raise ValueError(f'destination must end in one of {", ".join(SUFFIXES)}, got {str(path)!r}')
    return Path(path)


def write_checkpoint(state_dict: Mapping[str, Tensor], path: str | PathLike[str], *, meta: Mapping[str, str]) -> None:
    """Write a state dict.

    Args:
        state_dict: The weights.
        path: ``.pth`` or ``.pt``: a dict of ``state_dict`` and ``meta``, as mm toolboxes and timm read it;
            ``.safetensors``: the tensors, with ``meta`` as the file's metadata.
        meta: Where the weights come from.

    Raises:
        ValueError: Another ending.
        ImportError: A ``.safetensors`` file, and the package safetensors is not installed.
    """
    file = check_destination(path)
    # Clones: a tensor that is a part of a larger one would take that along into the file.
    weights = {
        key: value.detach().cpu().clone(memory_format=torch.contiguous_format) for key, value in state_dict.items()
    }
    if file.suffix != '.safetensors':
        with atomic_write(file) as stream:
            torch.save(dict(state_dict=weights, meta=dict(meta)), stream)
        return
    try:
        from safetensors.torch import save
    except ImportError as error:
        raise ImportError(
            f'destination: {str(path)!r} needs the package safetensors: pip install safetensors'
        ) from error
    # Not save_file: what that writes is for its owner's eyes only, also in a wheel.
    with atomic_write(file) as stream:
        stream.write(save(weights, metadata={'format': 'pt', **meta}))

"""Weights of elsewhere are fetched: by an address, or a name of timm, mmpretrain or the hub."""

import difflib
import hashlib
import logging
import re
import zipfile
from collections.abc import Callable, Sequence
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import torch
from mmengine.logging import print_log
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from safetensors import SafetensorError, safe_open

from cpvt_backbones.errors import InputError
from cpvt_backbones.weights import PublishedWeights, hash_in_name, sha256_of

from ..report import CheckpointError
from .opening import INDEX, shards_of
from .writing import atomic_write

SAVED = 'model.safetensors'
MAX_BYTES = 64 << 30  # of a download; 7e9 parameters in fp32 take 27 GB (DINOv3)
# Of a folder or repository the first that is there, as transformers takes them.
WEIGHTS = (
    SAVED,
    f'{SAVED}{INDEX}',
    'pytorch_model.bin',
    f'pytorch_model.bin{INDEX}',
)
ACCEPTED = (
    'a file, a folder, an https:// address, or timm://NAME, hf://USER/REPOSITORY or'
    ' mmpretrain://NAME'
)
_TIMEOUT = 30.0  # seconds without a byte
_FRAGMENT = re.compile('sha256=([0-9a-f]{64})')


def fetch(checkpoint: str) -> Path:
    """Return the cached file of a name or address with ``://``; download it first if need be."""
    scheme, _, name = checkpoint.partition('://')
    if scheme in ('https', 'http'):
        if '@' in re.split('[/?#]', name)[0]:
            accepted = 'an address without user name and password; else fetch the file yourself'
            raise CheckpointError(f'checkpoint must be {accepted}')
        return _fetch_address(checkpoint)
    if scheme not in ('timm', 'hf', 'mmpretrain'):
        raise CheckpointError(f'checkpoint must be {ACCEPTED}, got {checkpoint!r}')
    try:
        if scheme == 'hf':
            parts = name.split('/', 2)
            return _fetch_hub(name, '/'.join(parts[:2]), parts[2:] or WEIGHTS)
        return _fetch_timm(name) if scheme == 'timm' else _fetch_mmpretrain(name)
    except ImportError as error:
        fault = f'{checkpoint!r} needs {scheme}, which does not import ({error})'
        raise CheckpointError(f"checkpoint: {fault}: pip install 'cpvt_backbones[cls]'") from error


def fetch_published(published: PublishedWeights) -> Path:
    """Return the cached file of a published model; download it first if need be.

    Raises:
        CheckpointError: One line with the name, size and address, and where to put the file.
    """
    try:
        return fetch(published.address)
    except CheckpointError as error:
        size = f'{published.parameters * 4 / 1e6:,.0f} MB'
        problem = str(error).removeprefix('checkpoint: ')
        raise CheckpointError(
            f'checkpoint: {published.name!r} (about {size}): {problem}'
        ) from error


def _cache(name: str) -> Path:
    return Path(torch.hub.get_dir(), 'checkpoints', name)


def _unreachable(source: str, error: Exception, file: Path) -> CheckpointError:
    reason = next(iter(str(error).splitlines()), '') or type(error).__name__
    advice = f'without a network, put the file at {str(file)!r}'
    source = repr(source)[1:-1]  # one line
    return CheckpointError(f'checkpoint: {source} could not be fetched ({reason}); {advice}')


def _fetch_address(address: str) -> Path:
    """Return the cached file of an address; download it first if need be.

    A name with a hash stands for one content, and is cached as torch.hub does. Any other file has a
    folder for its address: ``best.safetensors`` is the name of many.
    """
    url, _, fragment = address.partition('#')
    digest = _FRAGMENT.fullmatch(fragment)
    if fragment and not digest:
        accepted = 'an address may end in #sha256=<64 hexadecimal digits>'
        raise CheckpointError(f'checkpoint: {accepted}, got #{fragment!a:.100}')
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise CheckpointError(f'checkpoint: {_shown(url)!r} is no address: {error}') from error
    name = parts.path.rpartition('/')[2]
    name = name if name not in ('', '.', '..') else 'checkpoint'
    named = '' if digest else hash_in_name(Path(name).stem)
    folder = re.sub('[^a-z0-9.-]', '_', f'{parts.hostname}')[:60]
    file = _cache(f'{folder}-{hashlib.sha256(address.encode()).hexdigest()[:16]}/{name}')
    if named:
        file = _cache(name)
    wanted = digest[1] if digest else named
    if file.is_file():
        if digest and (found := sha256_of(file)) != wanted:
            fault = f'its SHA-256 is {found}, not {wanted} as in its address'
            advice = f'delete {str(file)!r} to fetch it again'
            raise CheckpointError(f'checkpoint: {str(file)!r} is damaged: {fault}; {advice}')
        return file
    if parts.scheme == 'http' and len(wanted) < 64:
        print_log(
            f'{_shown(url)}: whoever is on the way of http:// can change the weights; use'
            ' https://, or append #sha256=<64 digits>',
            'current',
            logging.WARNING,
        )
    try:
        _download(url, file, wanted)
    except (OSError, HTTPException, ValueError) as error:
        raise _unreachable(_shown(url), error, file) from error
    if digest:
        with atomic_write(f'{file}.sha256') as sidecar:  # instead of a hash in its name
            sidecar.write(digest[1].encode())
    return file


def _shown(url: str) -> str:
    """An address without its query, which may hold a token."""
    return url.partition('?')[0]


def _download(url: str, file: Path, wanted: str) -> None:
    """Write an answer to a file; raise ValueError, and write none, if it is not all of a
    checkpoint.

    Args:
        url: The address, without a fragment.
        file: The file, whose folder is created.
        wanted: Start of its SHA-256; may be ''.
    """
    found, start = hashlib.sha256(), bytearray()
    with atomic_write(file) as part:

        def keep(chunk: bytes) -> None:
            found.update(chunk)
            start.extend(chunk[: 80 - len(start)])
            part.write(chunk)

        is_sized = _receive(url, file.name, keep)
        if not start.startswith((b'PK', b'\x80')) and start[8:9] != b'{':
            raise InputError(f'the answer is no checkpoint; it begins with {bytes(start)!a}')
        if not found.hexdigest().startswith(wanted):
            fault = f'the SHA-256 of the answer is {found.hexdigest()}, not {wanted}'
            if len(wanted) < 64:
                fault += (
                    f' as in its name; if the name has another meaning, such as a commit, append'
                    f' #sha256={found.hexdigest()} to the address'
                )
            raise InputError(fault)
        part.flush()
        if not is_sized and not wanted and not _is_whole(part.name):
            raise InputError(
                'the answer does not say its length, and is cut off or of a format that does not'
                ' say it either: append #sha256=<64 digits> to the address'
            )


def _receive(url: str, name: str, keep: Callable[[bytes], object]) -> bool:
    """Pass on the parts of an answer, with a bar in a terminal.

    An answer that is cut is asked for again from its last byte on, if the server can do that and
    the last attempt brought a byte.

    Args:
        url: The address.
        name: Name of the file, for the bar.
        keep: Called with each part, in order.

    Returns:
        Whether the answer says its length, or where it ends.

    Raises:
        ValueError: The answer is cut, or too large.
        OSError, HTTPException: The connection failed.
    """
    console = Console(stderr=True)
    columns = (TextColumn('{task.description}'), BarColumn(), DownloadColumn())
    size, length, tag, is_sized = 0, 0, '', True
    with Progress(
        *columns, TransferSpeedColumn(), console=console, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(name, total=None)
        while not size or size < length:
            before = size
            try:
                with urlopen(_request(url, size, tag), timeout=_TIMEOUT) as response:
                    if size and response.status != 206:
                        break
                    if not size:
                        length = int(response.headers.get('Content-Length') or 0)
                        is_sized = bool(length) or response.chunked
                        tag = response.headers.get('ETag') or ''
                        progress.update(task, total=length or None)
                    while chunk := response.read(1 << 20):
                        size += len(chunk)
                        if size > MAX_BYTES:
                            raise InputError(f'the answer has more than {MAX_BYTES >> 30} GiB')
                        keep(chunk)
                        progress.update(task, completed=size)
            except (OSError, HTTPException):
                if size == before or not length:
                    raise
            if size == before:
                break
    if length and size != length:
        raise ValueError(f'the answer ended after {size:,} of {length} bytes')
    return is_sized


def _request(url: str, start: int, tag: str) -> Request:
    """Ask for the content from byte ``start`` on, if its tag is still the same."""
    headers = {'User-Agent': 'cpvt_backbones'}
    if start:
        headers['Range'] = f'bytes={start}-'
        if tag:
            headers['If-Range'] = tag
    return Request(url, headers=headers)


def _is_whole(file: str) -> bool:
    """Whether a file is an archive with its end, or a safetensors file of its full length."""
    if zipfile.is_zipfile(file):
        return True
    try:
        with safe_open(file, 'pt'):
            return True
    except SafetensorError:
        return False


def _fetch_timm(name: str) -> Path:
    from timm.models import get_pretrained_cfg

    try:
        config = get_pretrained_cfg(name, allow_unregistered=False)
    except RuntimeError as error:
        raise CheckpointError(
            f'checkpoint: timm has no weights of the name {name!r}: {str(error).rstrip(".")}'
            f'{similar_timm_names(name)}'
        ) from error
    if not config.hf_hub_id:
        if not isinstance(config.url, str) or not config.url:
            raise CheckpointError(
                f'checkpoint: timm has no weights of the name {name!r}, only the model'
            )
        return _fetch_address(config.url)
    file = config.hf_hub_filename
    return _fetch_hub(name, config.hf_hub_id, [file] if file else WEIGHTS)


def similar_timm_names(name: str) -> str:
    """``'; did you mean 'timm://NAME'?'`` for a name similar to models of timm, else ``''``."""
    try:
        from timm.models import list_models
    except ImportError:
        return ''
    names = list_models()
    model = name.partition('.')[0]
    similar = [one for one in names if len(model) >= 4 and one.startswith(model)]
    similar = similar or difflib.get_close_matches(model, names, n=3)
    quoted = [repr(f'timm://{one}') for one in similar[:3]]
    return f'; did you mean {" or ".join(quoted)}?' if quoted else ''


def _fetch_hub(name: str, repository: str, file_names: Sequence[str]) -> Path:
    """Return the first of these files that a repository has, with the files that an index names."""
    for file_name in file_names:
        own = _own_copy(repository, file_name)
        if own.is_file():
            return own
    file_name, file = _download_from_hub(name, repository, file_names)
    if file_name.endswith(INDEX):
        for shard in shards_of(file):
            _download_from_hub(name, repository, [f'{PurePosixPath(file_name).with_name(shard)}'])
    return file


def _own_copy(repository: str, file_name: str) -> Path:
    """Where to put a file of the hub by other means."""
    place = repository.removeprefix('timm/')
    place += Path(SAVED).suffix if file_name == SAVED else f'/{file_name}'
    return _cache(place.replace('/', '--'))


def _download_from_hub(name: str, repository: str, file_names: Sequence[str]) -> tuple[str, Path]:
    """Name and path of the first of these files that a repository has."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
    )

    address = f'https://huggingface.co/{repository}'
    own = _own_copy(repository, file_names[0])
    fault: Exception | None = None
    offline = False
    for file_name in file_names:
        try:
            found = hf_hub_download(repository, file_name, local_files_only=offline)
            return file_name, Path(found)
        except GatedRepoError as error:
            advice = f'accept its terms at {address} and log in by `hf auth login`'
            raise CheckpointError(
                f'checkpoint: {name!r} is gated: {advice}, or put the file at {str(own)!r}'
            ) from error
        except (OSError, ValueError) as error:
            fault = fault or error
            # The hub's package waits half a minute for a network that is not there: once.
            answered = isinstance(error.__cause__, HfHubHTTPError)
            offline = isinstance(error, LocalEntryNotFoundError) and not answered
            if not isinstance(error, EntryNotFoundError):
                break
    assert fault is not None
    raise _unreachable(f'{address}/resolve/main/{file_names[0]}', fault, own) from fault


def _fetch_mmpretrain(name: str) -> Path:
    from mmpretrain.apis.model import ModelHub

    try:
        url = ModelHub.get(name).weights
    except ValueError as error:
        raise CheckpointError(
            f'checkpoint: mmpretrain has no model of the name {name!r}'
        ) from error
    if not url:
        raise CheckpointError(f'checkpoint: mmpretrain has no weights of {name!r}, only the config')
    return _fetch_address(url)

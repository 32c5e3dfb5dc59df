"""Downloads weights from URLs and model hubs: timm, mmpretrain, Hugging Face.

torch.hub and huggingface_hub download and cache. This module decides where a file belongs. Its
SHA-256, if known, is in its name in the cache, and :mod:`.opening` compares it with the content.
"""

import errno
import hashlib
import logging
import re
import sys
from collections.abc import Sequence
from functools import cache
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import torch
from mmengine.logging import print_log

from cpvt_backbones.errors import InputError
from cpvt_backbones.plain import did_you_mean
from cpvt_backbones.text import printable
from cpvt_backbones.weights import PublishedWeights, hash_in_name, published_weights, sha256_of

from ..report import CheckpointError, FetchError
from .opening import INDEX, shards_of
from .writing import FULL

SAVED = 'model.safetensors'
# The first existing file of a folder or repository is used, as in transformers.
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
TIMEOUT = 30.0  # seconds to wait for an answer
_FRAGMENT = re.compile('sha256=([0-9a-f]{64})')
_SHA256 = re.compile('[0-9a-f]{64}')
_UNCHECKED = '{}: its SHA-256 is not known, so {!r} is not checked; {}'
# Errors of a disk, not of a network.
_LOCAL = {*FULL, errno.EACCES, errno.EEXIST, errno.EFBIG, errno.ENOTDIR, errno.EPERM, errno.EROFS}


@cache
def warn_once(text: str) -> None:
    """Log a warning once per process, because a command looks for its weights several times."""
    print_log(printable(text), 'current', logging.WARNING)


def fetch(checkpoint: str) -> Path:
    """Return the cached file of a name or address with ``://``; download it if needed."""
    scheme, _, name = checkpoint.partition('://')
    if scheme in ('https', 'http'):
        return _fetch_address(checkpoint)
    if scheme not in ('timm', 'hf', 'mmpretrain'):
        raise CheckpointError(f'checkpoint must be {ACCEPTED}, got {checkpoint!r}')
    try:
        if scheme == 'hf':
            parts = name.split('/', 2)
            return _fetch_hub(name, '/'.join(parts[:2]), parts[2:] or WEIGHTS)
        return _fetch_timm(name) if scheme == 'timm' else _fetch_mmpretrain(name)
    except ImportError as error:
        fault = f'{checkpoint!r} needs {scheme}, which cannot be imported ({error})'
        raise CheckpointError(f"checkpoint: {fault}: pip install 'cpvt_backbones[cls]'") from error


def published_of(checkpoint: str) -> PublishedWeights | None:
    """Return the published model of a name or of its cached file, else ``None``.

    Nothing is downloaded.
    """
    for published in published_weights().values():
        if checkpoint == published.name:
            return published
        if published.address.startswith('https://'):
            if checkpoint == str(cached_file(published.address)):
                return published
    return None


def cached_file(address: str) -> Path:
    """Return where the file of an ``https://`` address is cached.

    A name with a hash identifies the content and is cached like in torch.hub. The name of another
    file gets the SHA-256 at the end of the address. Without one, the file gets a folder per
    address, because ``best.safetensors`` is the name of many.

    Raises:
        CheckpointError: The address is malformed.
    """
    url, _, fragment = address.partition('#')
    digest = _FRAGMENT.fullmatch(fragment)
    if fragment and not digest:
        accepted = 'an address may end in #sha256=<64 hexadecimal digits>'
        raise CheckpointError(f'checkpoint: {accepted}, got #{fragment!a:.100}')
    try:
        parts = urlsplit(url)
    except ValueError as error:
        fault = f'{url.partition("?")[0]!r} is not an address: {error}'
        raise CheckpointError(f'checkpoint: {fault}') from error
    name = parts.path.rpartition('/')[2]
    file = Path(name if name not in ('', '.', '..') else 'checkpoint')
    if digest:
        return _cache(f'{file.stem[:100]}-{digest[1]}{file.suffix}')
    if hash_in_name(file.stem):
        return _cache(file.name)
    folder = re.sub('[^a-z0-9.-]', '_', f'{parts.hostname}')[:60]
    return _cache(f'{folder}-{hashlib.sha256(address.encode()).hexdigest()[:16]}/{file}')


def _cache(name: str) -> Path:
    return Path(torch.hub.get_dir(), 'checkpoints', name)


def _failed(source: str, error: Exception, file: Path) -> CheckpointError:
    """Make the one-line error for a failed download."""
    # urllib puts the system's words into `<urlopen error [Errno -2] ...>`.
    cause = error.reason if type(error) is URLError else error
    text = getattr(cause, 'strerror', None) or re.sub(r'^\[Errno -?\d+\] ', '', str(cause))
    reason = next(iter(text.splitlines()), '') or type(error).__name__
    source = repr(source)[1:-1]  # one line
    if isinstance(error, OSError) and error.errno in _LOCAL:
        fault = f'{source} could not be written to {str(file)!r} ({reason})'
        return CheckpointError(f'checkpoint: {fault}')
    advice = f'without a network, put the file at {str(file)!r}'
    return FetchError(f'checkpoint: {source} could not be fetched ({reason}); {advice}')


def _fetch_address(address: str) -> Path:
    """Return the cached file of an address; download it if needed."""
    if '@' in re.split('[/?#]', address.partition('://')[2])[0]:
        accepted = 'an address without user name and password; else fetch the file yourself'
        raise CheckpointError(f'checkpoint must be {accepted}')
    url, file = address.partition('#')[0], cached_file(address)
    shown = url.partition('?')[0]  # a query may contain a token
    wanted = hash_in_name(file.stem)
    if url.startswith('http://') and len(wanted) < 64 and not file.is_file():
        warn_once(
            f'{shown}: whoever is on the way of http:// can change the weights; use https://, or'
            ' append #sha256=<64 digits>'
        )
    elif not wanted:
        advice = 'append #sha256=<64 digits> to check it'
        warn_once(_UNCHECKED.format(shown, str(file), advice))
    if not file.is_file():
        try:
            _download(url, file, wanted)
        except (OSError, HTTPException, ValueError) as error:
            raise _failed(shown, error, file) from error
    return file


def _download(url: str, file: Path, wanted: str) -> None:
    """Download a file by torch.hub, with its bar in a terminal; an error leaves no file.

    torch.hub follows redirects from https:// to http://, waits for ever, and accepts a truncated
    answer. So the first request finds the address after all redirects, and the length.

    Args:
        url: The address without fragment.
        file: The file, whose folder is created.
        wanted: Start of its SHA-256; may be ``''``.

    Raises:
        ValueError: The answer is truncated, not a checkpoint, or has another SHA-256; or an
            https:// address redirects to another scheme.
        OSError, HTTPException: The connection failed, or the file cannot be written.
    """
    request = Request(url, headers={'User-Agent': 'cpvt_backbones'})
    with build_opener(SafeRedirects).open(request, timeout=TIMEOUT) as response:
        source, length = response.url, response.headers.get('Content-Length')
    file.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=file.parent, prefix='.') as folder:
        part = Path(folder, 'part')
        torch.hub.download_url_to_file(source, str(part), progress=sys.stderr.isatty())
        _check_answer(part, length, wanted)
        part.replace(file)


def _check_answer(part: Path, length: str | None, wanted: str) -> None:
    """Raise ``ValueError`` for a truncated answer, no checkpoint, or another SHA-256."""
    size = part.stat().st_size
    if length is not None and size != int(length):
        raise InputError(f'the answer ended after {size:,} of {length} bytes')
    with part.open('rb') as stream:
        start = stream.read(80)
    if not start.startswith((b'PK', b'\x80')) and start[8:9] != b'{':
        raise InputError(f'the answer is not a checkpoint; it begins with {start!a}')
    if (found := sha256_of(part)).startswith(wanted):
        return
    fault = f'the SHA-256 of the answer is {found}, not {wanted}'
    if len(wanted) < 64:
        fault += (
            ' as in its name; if the name has another meaning, such as a commit, append'
            f' #sha256={found} to the address'
        )
    raise InputError(fault)


class SafeRedirects(HTTPRedirectHandler):
    """Redirect handler that follows https:// to https:// only."""

    def redirect_request(
        self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        """Return the next request; ``ValueError`` for another scheme."""
        scheme = urlsplit(newurl).scheme
        if scheme not in ('https', req.type):
            fp.close()
            raise InputError(f'{req.type}:// leads to {scheme}://, which is not followed')
        return super().redirect_request(req, fp, code, msg, headers, newurl)


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
    """Return ``'; did you mean 'timm://NAME'?'`` for a name similar to timm's, else ``''``."""
    try:
        from timm.models import list_models
    except ImportError:
        return ''
    names = list_models()
    model = name.partition('.')[0]
    own = [one for one in names if one.startswith(model)] if len(model) >= 4 else []
    return did_you_mean(f'timm://{model}', [f'timm://{one}' for one in own or names], count=3)


def _fetch_hub(name: str, repository: str, file_names: Sequence[str]) -> Path:
    """Download the first of these files in a repository, with all files of an index."""
    for file_name in file_names:
        own = _own_copy(repository, file_name)
        if own.is_file():
            if own.suffix != '.json':
                advice = 'delete it to take the one of the hub'
                warn_once(_UNCHECKED.format(name, str(own), advice))
            return own
    file_name, file = _download_from_hub(name, repository, file_names)
    if file.suffix != '.json' and not _SHA256.fullmatch(file.resolve().name):
        advice = 'the cache of the hub does not say it either'
        warn_once(_UNCHECKED.format(name, str(file), advice))
    if file_name.endswith(INDEX):
        for shard in shards_of(file):
            _download_from_hub(name, repository, [f'{PurePosixPath(file_name).with_name(shard)}'])
    return file


def _own_copy(repository: str, file_name: str) -> Path:
    """Return where a user can put a file of the hub."""
    place = repository.removeprefix('timm/')
    place += Path(SAVED).suffix if file_name == SAVED else f'/{file_name}'
    return _cache(place.replace('/', '--'))


def _download_from_hub(name: str, repository: str, file_names: Sequence[str]) -> tuple[str, Path]:
    """Return name and path of the first of these files in a repository."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, HfHubHTTPError

    fault: Exception | None = None
    offline = False
    try:
        url = hf_hub_url(repository, file_names[0])
        get_hf_file_metadata(url, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except HfHubHTTPError:  # it answers; the download says what is wrong
        pass
    except Exception as error:  # httpx's are no OSError
        # Without a network, hf_hub_download would try for half a minute.
        fault, offline = error, True
    address = f'https://huggingface.co/{repository}'
    own = _own_copy(repository, file_names[0])
    for file_name in file_names:
        try:
            found = hf_hub_download(repository, file_name, local_files_only=offline)
            return file_name, Path(found)
        except GatedRepoError as error:
            advice = f'accept its terms at {address} and log in by `hf auth login`'
            raise FetchError(
                f'checkpoint: {name!r} is gated: {advice}, or put the file at {str(own)!r}'
            ) from error
        except (OSError, ValueError) as error:
            fault = fault or error
            if not isinstance(error, EntryNotFoundError):
                break
    assert fault is not None
    raise _failed(f'{address}/resolve/main/{file_names[0]}', fault, own) from fault


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

"""Where a checkpoint is: names of shipped weights, of timm and of mmpretrain's model zoo,
addresses, files.
"""

import shutil
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import torch

from cpvt_backbones.weights import shipped_file

from .report import CheckpointError
from .writing import atomic_write

SAVED = 'model.safetensors'
_TIMEOUT = 30.0  # seconds without a byte


def locate_checkpoint(checkpoint: str | PathLike[str]) -> Path:
    """Return the path of a checkpoint on this machine.

    Fetch it first if it is a name or address of elsewhere.

    Args:
        checkpoint: ``timm://NAME``, a name of timm with or without its tag, from huggingface_hub's
            cache or the hub; ``hf://USER/REPOSITORY`` (or a file in it); ``mmpretrain://NAME``, a
            name of its model zoo; ``https://`` address, from torch's cache or the network; name of
            shipped weights; file; folder.

    Raises:
        CheckpointError: An unknown scheme or name; a package that is not installed; weights that
            cannot be fetched, with where to put the file instead.
    """
    scheme, separator, name = str(checkpoint).partition('://')
    if not separator:
        path = shipped_file(checkpoint).expanduser()
        return path / SAVED if (path / SAVED).is_file() else path
    if scheme in ('https', 'http'):
        return _fetch(str(checkpoint))
    if scheme not in ('timm', 'hf', 'mmpretrain'):
        accepted = (
            'a file, a folder, an https:// address, or timm://NAME, hf://USER/REPOSITORY or'
            ' mmpretrain://NAME'
        )
        raise CheckpointError(f'checkpoint must be {accepted}, got {str(checkpoint)!r}')
    try:
        if scheme == 'hf':
            parts = name.split('/', 2)
            return _fetch_hub(name, '/'.join(parts[:2]), parts[2] if len(parts) == 3 else SAVED)
        return _fetch_timm(name) if scheme == 'timm' else _fetch_mmpretrain(name)
    except ImportError as error:
        fault = f'{str(checkpoint)!r} needs {scheme}, which does not import ({error})'
        raise CheckpointError(f"checkpoint: {fault}: pip install 'cpvt_backbones[cls]'") from error


def _cache(name: str) -> Path:
    return Path(torch.hub.get_dir(), 'checkpoints', name)


def _unreachable(source: str, error: Exception, file: Path) -> CheckpointError:
    reason = next(iter(str(error).splitlines()), '') or type(error).__name__
    advice = f'without a network, put the file at {str(file)!r}'
    return CheckpointError(f'checkpoint: {source} could not be fetched ({reason}); {advice}')


def _fetch(url: str) -> Path:
    file = _cache(url.split('?')[0].rpartition('/')[2])
    if not file.is_file():
        request = Request(url, headers={'User-Agent': 'cpvt_backbones'})
        try:
            with urlopen(request, timeout=_TIMEOUT) as response, atomic_write(file) as part:
                shutil.copyfileobj(response, part)
        except OSError as error:
            raise _unreachable(url, error, file) from error
    return file


def _fetch_timm(name: str) -> Path:
    from timm.models import get_pretrained_cfg

    try:
        config = get_pretrained_cfg(name, allow_unregistered=False)
    except RuntimeError as error:
        raise CheckpointError(
            f'checkpoint: timm has no weights of the name {name!r}: {error}'
        ) from error
    if not config.hf_hub_id:
        if not isinstance(config.url, str) or not config.url:
            raise CheckpointError(
                f'checkpoint: timm has no weights of the name {name!r}, only the model'
            )
        return _fetch(config.url)
    return _fetch_hub(name, config.hf_hub_id, config.hf_hub_filename or SAVED)


def _fetch_hub(name: str, repository: str, file_name: str) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import GatedRepoError

    own = _cache(repository.removeprefix('timm/').replace('/', '--') + Path(file_name).suffix)
    if own.is_file():
        return own
    address = f'https://huggingface.co/{repository}'
    try:
        return Path(hf_hub_download(repository, file_name))
    except GatedRepoError as error:
        advice = f'accept its terms at {address} and log in by `hf auth login`'
        raise CheckpointError(
            f'checkpoint: {name!r} is gated: {advice}, or put the file at {str(own)!r}'
        ) from error
    except (OSError, ValueError) as error:
        raise _unreachable(f'{address}/resolve/main/{file_name}', error, own) from error


def upload(folder: str, repository: str, **options: Any) -> None:
    """Upload a folder to a repository of the hub, which is created with ``options`` if need be."""
    from huggingface_hub import create_repo, upload_folder

    create_repo(repository, exist_ok=True, **options)
    upload_folder(repo_id=repository, folder_path=folder, token=options.get('token'))


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
    return _fetch(url)

"""Writing weights to a file."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

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
    file.parent.mkdir(parents=True, exist_ok=True)
    # Clones: a tensor that is a part of a larger one would take that along into the file.
    weights = {
        key: value.detach().cpu().clone(memory_format=torch.contiguous_format) for key, value in state_dict.items()
    }
    if file.suffix != '.safetensors':
        torch.save(dict(state_dict=weights, meta=dict(meta)), file)
        return
    try:
        from safetensors.torch import save
    except ImportError as error:
        raise ImportError(
            f'destination: {str(path)!r} needs the package safetensors: pip install safetensors'
        ) from error
    # Not save_file: what that writes is for its owner's eyes only, also in a wheel.
    file.write_bytes(save(weights, metadata={'format': 'pt', **meta}))

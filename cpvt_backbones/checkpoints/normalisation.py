"""Mean and standard deviation of the images that weights were trained on.

No weight shows them. All values are in the scale of 8-bit pixels, as in the toolboxes' data
preprocessors.
"""

import json
import logging
import os
import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from mmengine.logging import print_log
from torch import nn

from cpvt_backbones.checks import is_number
from cpvt_backbones.errors import InputError
from cpvt_backbones.weights import FOLDER, named_models

from .conversion.public import public_backbone
from .reading.finding import locate_checkpoint
from .reading.json_files import parse_json, read_json
from .reading.opening import file_metadata
from .report import CheckpointError, Normalisation
from .source_config import literal_in, stored_config

# Files of transformers; processors of images and text have the second one.
PREPROCESSOR, _PROCESSOR = 'preprocessor_config.json', 'processor_config.json'
_KEY = 'normalisation'  # in the metadata of a file that this package has written
# A hash and a suffix after the name of a model.
_ENDING = re.compile(r'(-[0-9a-f]{8,})?(\.(safetensors|pth|pt|bin|ckpt|npz))?([?#].*)?$')


def find_normalisation(
    checkpoint: str | PathLike[str], *, download: bool = True
) -> Normalisation | None:
    """Find mean and standard deviation of the images that weights were trained on.

    The kind of ``checkpoint`` determines the source:

    - shipped weights and published models: the index of this package;
    - ``timm://NAME``, ``hf://timm/NAME``, and files with a name of timm: timm's
      ``pretrained_cfg``, without a download;
    - ``mmpretrain://NAME``: the config in mmpretrain;
    - a folder or repository: ``preprocessor_config.json``, or ``config.json`` of timm;
    - a checkpoint of a training: the data preprocessor in its config;
    - a file that this package has written: its metadata.

    Args:
        checkpoint: File, folder, address or name; see :func:`locate_checkpoint`.
        download: Fetch ``preprocessor_config.json`` of a repository on the hub.

    Returns:
        The values; ``None`` if unknown.

    Raises:
        ValueError: ``preprocessor_config.json`` or ``config.json`` is damaged.

    Examples:
        >>> from cpvt_backbones.checkpoints import find_normalisation
        >>> name = 'timm://vit_base_patch16_siglip_224.v2_webli'
        >>> print(find_normalisation(name))
        mean [127.5, 127.5, 127.5] and std [127.5, 127.5, 127.5] of RGB
        >>> name = 'timm://vit_base_patch16_clip_quickgelu_224.openai'
        >>> find_normalisation(name).source
        "timm's pretrained_cfg"
    """
    name = os.path.expanduser(str(checkpoint))
    for entry in named_models().values():
        names = (entry.name, getattr(entry, 'address', None), f'{FOLDER / entry.name}.safetensors')
        if name in names and entry.mean and entry.std:
            values = tuple(entry.mean), tuple(entry.std)
            return Normalisation(*values, source='the index of this package')
    scheme, separator, rest = name.partition('://')
    if not separator:
        return _of_path(Path(name))
    if scheme == 'timm':
        return _of_timm(rest)
    if scheme == 'mmpretrain':
        return _of_mmpretrain(rest)
    if scheme == 'hf' and not rest.startswith('timm/'):
        return _of_repository(name) if download else None
    return _of_timm_file(rest)


def config_normalisation(
    settings: Mapping[str, Any] | None, source: str = 'its config'
) -> Normalisation | None:
    """Read the normalisation from the config of a toolbox's data preprocessor.

    Without ``mean``, pixels do not change: mean 0 and standard deviation 1. ``None`` without a
    config.
    """
    while settings and isinstance(settings.get('data_preprocessor'), Mapping):  # of branches
        settings = settings['data_preprocessor']
    if not settings:
        return None
    rgb = any(settings.get(key) for key in ('to_rgb', 'bgr_to_rgb', 'rgb_to_bgr'))
    found = _read(settings.get('mean'), settings.get('std'), source, rgb=rgb)
    return found or Normalisation((0.0,), (1.0,), rgb, source)


def model_normalisation(preprocessor: Any) -> Normalisation | None:
    """Return the normalisation of a built data preprocessor; ``None`` for other modules."""
    settings = vars(preprocessor)
    if '_enable_normalize' not in settings:
        return None
    rgb = bool(settings.get('_channel_conversion', settings.get('to_rgb', False)))
    if not settings['_enable_normalize']:
        return Normalisation((0.0,), (1.0,), rgb, 'data_preprocessor')
    mean, std = preprocessor.mean.flatten().tolist(), preprocessor.std.flatten().tolist()
    return Normalisation(tuple(mean), tuple(std), rgb, 'data_preprocessor')


def normalisation_meta(found: Normalisation | None) -> dict[str, str]:
    """Return metadata that stores a normalisation in a file of weights; empty if unknown."""
    if found is None:
        return {}
    values = dict(mean=found.mean, std=found.std, rgb=found.rgb)
    return {_KEY: json.dumps(values)}


def preprocessor_config(found: Normalisation) -> dict[str, Any]:
    """Return content for ``preprocessor_config.json``, as transformers writes and reads it."""
    return dict(
        do_rescale=True,
        rescale_factor=1 / 255,
        do_normalize=True,
        image_mean=[value / 255 for value in found.mean],
        image_std=[value / 255 for value in found.std],
    )


def warn_of_other_normalisation(model: nn.Module, checkpoint: str | PathLike[str]) -> None:
    """Log a warning if a model does not normalise images as its weights require.

    Nothing is logged if either is unknown, or if images do not have three channels.

    Args:
        model: Detector, segmentor or classifier with its ``data_preprocessor``.
        checkpoint: Its weights; see :func:`find_normalisation`.
    """
    ours = model_normalisation(getattr(model, 'data_preprocessor', None) or nn.Identity())
    channels = getattr(getattr(model, 'backbone', None), 'in_channels', 3)
    if ours is None or channels != 3:
        return
    try:
        theirs = find_normalisation(checkpoint)
    except (ValueError, OSError):  # reading the weights says it
        return
    if theirs is not None and len(theirs.mean) in (1, 3) and not theirs.agrees(ours):
        print_log(
            f'data_preprocessor: images get {ours}, but the weights {str(checkpoint)!r} were'
            f' trained with {theirs} ({theirs.source})',
            'current',
            logging.WARNING,
        )


def _of_path(path: Path) -> Normalisation | None:
    """Read the normalisation of a local folder or file."""
    if path.is_dir():
        for name in (PREPROCESSOR, _PROCESSOR):
            if (path / name).is_file() and (found := _of_processor(path / name)):
                return found
        if found := _of_timm_config(stored_config(path)):
            return found
    try:
        file = locate_checkpoint(path)
        meta = file_metadata(file)
    except (CheckpointError, OSError):  # reading the weights says it
        return None
    if isinstance(meta.get(_KEY), str):
        values = parse_json(meta[_KEY], f'metadata of {str(file)!r}')
        rgb = bool(values.get('rgb', True))
        return _read(values.get('mean'), values.get('std'), 'its metadata', rgb=rgb)
    source = meta.get('cfg')
    if isinstance(source, str):
        model = literal_in(source, 'model')
        inner = model.get('data_preprocessor') if isinstance(model, Mapping) else None
        settings = inner or literal_in(source, 'data_preprocessor')
        if isinstance(settings, Mapping):
            return config_normalisation(settings, 'the config of its training')
    return _of_timm_file(file.name)


def _of_repository(name: str) -> Normalisation | None:
    """Read the normalisation of ``hf://USER/REPOSITORY``."""
    try:
        config = stored_config(name)
        if not config or 'architecture' in config:
            return _of_timm_config(config)
        return _of_processor(locate_checkpoint(f'{name}/{PREPROCESSOR}'))
    except (CheckpointError, FileNotFoundError):  # the hub has none, or there is no network
        return None


def _of_processor(file: Path) -> Normalisation | None:
    """Read an image processor of transformers, or the one in a processor of images and text.

    It computes (pixel * factor - mean) / std.
    """
    settings = read_json(file)
    inner = settings.get('image_processor')
    settings = dict(inner) if isinstance(inner, Mapping) else settings
    mean, std = settings.get('image_mean'), settings.get('image_std')
    if not settings.get('do_normalize', True):
        mean, std = 0.0, 1.0
    factor = settings.get('rescale_factor', 1 / 255) if settings.get('do_rescale', True) else 1.0
    if not is_number(factor) or factor <= 0:
        accepted = 'rescale_factor must be a positive number'
        raise InputError(f'{file.name}: {accepted}, got {factor!r:.100}')
    return _read(mean, std, file.name, scale=1 / factor)


def _of_timm_config(config: Mapping[str, Any]) -> Normalisation | None:
    """Read ``config.json`` of timm."""
    stored = config.get('pretrained_cfg') or config
    if 'architecture' not in config or not isinstance(stored, Mapping):
        return None
    return _read(stored.get('mean'), stored.get('std'), 'config.json', scale=255.0)


def _of_timm(name: str) -> Normalisation | None:
    """Look up a name of timm; one without a tag has the weights that timm loads by default."""
    try:
        from timm.models import get_pretrained_cfg

        config = get_pretrained_cfg(name, allow_unregistered=False)
    except (ImportError, RuntimeError):
        return None
    return _read(config.mean, config.std, "timm's pretrained_cfg", scale=255.0)


def _of_timm_file(path: str) -> Normalisation | None:
    """Look up a file with a name of timm.

    One without a tag may hold any weights of a model, so all must have the same values.
    """
    name = _ENDING.sub('', path.rpartition('/')[2])
    if public_backbone(name) is None:
        return None
    try:
        from timm.models import list_models
    except ImportError:
        return None
    names = [name] if '.' in name else list_models(f'{name}.*', pretrained=True)
    found = {_of_timm(one) for one in names}
    return found.pop() if len(found) == 1 else None


def _of_mmpretrain(name: str) -> Normalisation | None:
    try:
        from mmpretrain.apis.model import ModelHub

        config = ModelHub.get(name).config
    except (ImportError, ValueError, OSError):
        return None
    settings = config.model.get('data_preprocessor') or config.get('data_preprocessor')
    return config_normalisation(settings, "mmpretrain's config")


def _read(
    mean: Any, std: Any, source: str, *, scale: float = 1.0, rgb: bool = True
) -> Normalisation | None:
    """Check values and convert them to the scale of pixels; ``None`` without values.

    Args:
        mean: A number for each channel, or one for all.
        std: The same, positive.
        source: Where they are stored, for messages too.
        scale: Factor to the scale of pixels.
        rgb: Order of the channels.

    Raises:
        ValueError: These are no lists of numbers.
    """
    if mean is None or std is None:
        return None
    values: list[tuple[float, ...]] = []
    for key, given in (('mean', mean), ('std', std)):
        numbers = [given] * 3 if is_number(given) else given
        length = len(values[0]) if values else 0
        are_numbers = isinstance(numbers, (list, tuple)) and bool(numbers)
        if not are_numbers or not all(map(is_number, numbers)):
            raise InputError(f'{source}: {key} must be a list of numbers, got {given!r:.100}')
        if key == 'std' and (len(numbers) != length or min(numbers) <= 0):
            accepted = 'a list of positive numbers, as many as mean has'
            raise InputError(f'{source}: std must be {accepted}, got {given!r:.100}')
        values.append(tuple([round(scale * float(number), 6) for number in numbers]))
    return Normalisation(values[0], values[1], rgb, source)

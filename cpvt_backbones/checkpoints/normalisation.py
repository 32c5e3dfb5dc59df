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
    indexed = _of_index(name)
    if indexed is not None:
        return indexed
    scheme, separator, rest = name.partition('://')
    if not separator:
        return _of_path(Path(name))
    if scheme == 'timm':
        return _of_timm(rest, is_default_tag=True)
    if scheme == 'mmpretrain':
        return _of_mmpretrain(rest)
    if scheme == 'hf' and not rest.startswith('timm/'):
        return _of_repository(name) if download else None
    return _of_timm(_ENDING.sub('', rest.rpartition('/')[2]))


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
    mean, std = settings.get('mean'), settings.get('std')
    if mean is None or std is None:
        mean, std = (0.0,), (1.0,)
    return _checked(mean, std, rgb=rgb, source=source)


def model_normalisation(preprocessor: Any) -> Normalisation | None:
    """Return the normalisation of a built data preprocessor; ``None`` for other modules."""
    settings = vars(preprocessor)
    if '_enable_normalize' not in settings:
        return None
    mean, std = (0.0,), (1.0,)
    if settings['_enable_normalize']:
        mean, std = (tuple(one.flatten().tolist()) for one in (preprocessor.mean, preprocessor.std))
    rgb = bool(settings.get('_channel_conversion', settings.get('to_rgb', False)))
    return Normalisation(mean, std, rgb, 'data_preprocessor')


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


def _of_index(name: str) -> Normalisation | None:
    """Look up shipped weights or a published model by name, address or file."""
    for entry in named_models().values():
        names = (entry.name, getattr(entry, 'address', None), f'{FOLDER / entry.name}.safetensors')
        if name in names and entry.mean and entry.std:
            values = tuple(entry.mean), tuple(entry.std)
            return Normalisation(*values, source='the index of this package')
    return None


def _of_path(path: Path) -> Normalisation | None:
    """Read the normalisation of a local folder or file."""
    if path.is_dir():
        found = _of_configs(path, stored_config(path))
        if found is not None:
            return found
        try:
            path = locate_checkpoint(path)
        except (FileNotFoundError, CheckpointError):
            return None
    return _of_file(path) if path.is_file() else None


def _of_file(path: Path) -> Normalisation | None:
    try:
        meta = file_metadata(path)
    except (CheckpointError, OSError):  # reading the weights says it
        return None
    if isinstance(meta.get(_KEY), str):
        values = parse_json(meta[_KEY], f'metadata of {str(path)!r}')
        rgb = bool(values.get('rgb', True))
        return _checked(values.get('mean'), values.get('std'), rgb=rgb, source='its metadata')
    source = meta.get('cfg')
    if isinstance(source, str):
        model = literal_in(source, 'model')
        inner = model.get('data_preprocessor') if isinstance(model, Mapping) else None
        settings = inner or literal_in(source, 'data_preprocessor')
        if isinstance(settings, Mapping):
            return config_normalisation(settings, 'the config of its training')
    return _of_timm(_ENDING.sub('', path.name))


def _of_repository(name: str) -> Normalisation | None:
    """Read the normalisation of ``hf://USER/REPOSITORY``."""
    try:
        config = stored_config(name)
        if not config or 'architecture' in config:
            return _of_timm_config(config)
        return _of_processor(locate_checkpoint(f'{name}/{PREPROCESSOR}'))
    except (CheckpointError, FileNotFoundError):  # the hub has none, or there is no network
        return None


def _of_configs(folder: Path, config: Mapping[str, Any]) -> Normalisation | None:
    """Read the normalisation from JSON files beside the weights."""
    for name in (PREPROCESSOR, _PROCESSOR):
        if (folder / name).is_file():
            found = _of_processor(folder / name)
            if found is not None:
                return found
    return _of_timm_config(config)


def _of_processor(file: Path) -> Normalisation | None:
    """Read an image processor, or the one inside a processor of images and text."""
    settings = read_json(file)
    inner = settings.get('image_processor')
    return _of_transformers(inner if isinstance(inner, Mapping) else settings, file.name)


def _of_timm_config(config: Mapping[str, Any]) -> Normalisation | None:
    if 'architecture' not in config:
        return None
    stored = config.get('pretrained_cfg') or config
    if not isinstance(stored, Mapping):
        return None
    return _of_unit(stored.get('mean'), stored.get('std'), 'config.json')


def _of_transformers(settings: Mapping[str, Any], source: str) -> Normalisation | None:
    """Convert an image processor's (pixel * factor - mean) / std."""
    mean, std = settings.get('image_mean'), settings.get('image_std')
    if not settings.get('do_normalize', True):
        mean, std = 0.0, 1.0
    factor = settings.get('rescale_factor', 1 / 255) if settings.get('do_rescale', True) else 1.0
    if not is_number(factor) or factor <= 0:
        raise InputError(f'{source}: rescale_factor must be a positive number, got {factor!r:.100}')
    return _of_unit(mean, std, source, scale=1 / factor)


def _of_unit(mean: Any, std: Any, source: str, *, scale: float = 255.0) -> Normalisation | None:
    """Convert values in another scale than that of pixels, usually 0 to 1."""
    if mean is None or std is None:
        return None
    mean, std = ([one] * 3 if is_number(one) else one for one in (mean, std))
    found = _checked(mean, std, source=source)
    mean, std = (tuple(round(scale * v, 4) for v in one) for one in (found.mean, found.std))
    return Normalisation(mean, std, source=source)


def _checked(mean: Any, std: Any, *, rgb: bool = True, source: str) -> Normalisation:
    """Check that both are lists of numbers, the second positive; ``InputError`` otherwise."""
    for key, values in (('mean', mean), ('std', std)):
        are_numbers = isinstance(values, (list, tuple)) and all(
            is_number(value) and (key == 'mean' or value > 0) for value in values
        )
        if not are_numbers or not values or len(values) != len(mean):
            kind = 'numbers' if key == 'mean' else 'positive numbers, as many as mean has'
            raise InputError(f'{source}: {key} must be a list of {kind}, got {values!r:.100}')
    return Normalisation(tuple(map(float, mean)), tuple(map(float, std)), rgb, source)


def _of_timm(name: str, *, is_default_tag: bool = False) -> Normalisation | None:
    """Look up a name of timm.

    A file without a tag may hold any weights of a model, so ``None`` unless all have the same
    values. With ``is_default_tag``, it holds the weights that timm loads by default.
    """
    if not is_default_tag and public_backbone(name) is None:
        return None
    try:
        from timm.models import get_pretrained_cfg, list_models
    except ImportError:
        return None
    names = [name]
    if not is_default_tag and '.' not in name:
        names = list_models(f'{name}.*', pretrained=True)
    found = set()
    for one in names:
        try:
            config = get_pretrained_cfg(one, allow_unregistered=False)
        except RuntimeError:
            return None
        if config is not None:
            found.add(_of_unit(config.mean, config.std, "timm's pretrained_cfg"))
    return found.pop() if len(found) == 1 else None


def _of_mmpretrain(name: str) -> Normalisation | None:
    try:
        from mmpretrain.apis.model import ModelHub
    except ImportError:
        return None
    try:
        config = ModelHub.get(name).config
    except (ValueError, OSError):
        return None
    settings = config.model.get('data_preprocessor') or config.get('data_preprocessor')
    return config_normalisation(settings, "mmpretrain's config")

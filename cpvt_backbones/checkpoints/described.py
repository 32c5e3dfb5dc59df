"""What is known of the source's model beside its weights: by a public name, or ``config.json``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from cpvt_backbones.layers.checks import list_of_dicts

from .conversion.architecture import recognise_architecture
from .conversion.public import public_backbone
from .conversion.transformers_config import MODEL_TYPES, apply_config, is_transformers_config
from .reading.files import locate_checkpoint
from .reading.json_files import read_json
from .report import CheckpointError


@dataclass
class Source:
    """Arguments of the model that weights are of, as far as they are known."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    table_grid: tuple[int, int] | None = None  # (height, width) of its table, in tokens
    notes: list[str] = field(default_factory=list)


def describe(
    checkpoint: str | PathLike[str], content: Mapping[str, Any], *, prefix: str | None = None
) -> Source:
    """What a public name, or the ``config.json`` of a folder or repository, says of the weights.

    Args:
        checkpoint: As in :func:`load_checkpoint`. A file alone, and a folder without that file, say
            nothing.
        content: What was read from it.
        prefix: As in :func:`convert_state_dict`.

    Raises:
        CheckpointError: ``config.json`` is damaged, of another model than the weights, or of one
            that no backbone here computes.
    """
    if public := public_backbone(checkpoint):
        return Source(dict(norm_eps=1e-6, activation='gelu', position=None) | public)
    name = str(checkpoint).rstrip('/')
    config = Path(name).expanduser() / 'config.json'
    if name.startswith('hf://') and name.count('/') == 3:  # not a file in a repository
        try:
            config = locate_checkpoint(f'{name}/config.json')
        except CheckpointError as error:
            return Source(notes=[f'activation, epsilon and heads were not compared: {error}'])
    if not config.is_file():
        return Source()
    try:
        arguments = read_json(config)
        if not is_transformers_config(arguments):  # of this package, or of another
            list_of_dicts('position', arguments.get('position'))
            return Source(arguments)
        if arguments['model_type'] not in MODEL_TYPES:
            kind = arguments['model_type']
            return Source(notes=[f'config.json was not compared: its model_type is {kind!r:.100}'])
        read = recognise_architecture(content, prefix=prefix)
        grid = apply_config(arguments, read)
    except (ValueError, OverflowError) as error:
        raise CheckpointError(f'{str(config)!r}: {str(error):.600}') from error
    return Source(read.arguments, grid)

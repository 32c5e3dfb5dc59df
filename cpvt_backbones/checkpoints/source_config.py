"""Arguments of a source's model from its name or ``config.json``."""

import ast
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from cpvt_backbones.checks import list_of_dicts
from cpvt_backbones.layers.tokens import Grid
from cpvt_backbones.weights import ShippedWeights, named_models

from .conversion.architecture import Architecture, recognise_architecture
from .conversion.families import known_to_differ
from .conversion.public import public_backbone
from .conversion.timm_config import apply_timm_config
from .conversion.transformers_config import MODEL_TYPES, apply_config
from .reading.finding import locate_checkpoint
from .reading.json_files import read_json
from .reading.opening import stored_source
from .report import CheckpointError

# Arguments that a public name or a config.json may leave out.
_USUAL: dict[str, Any] = dict(norm_eps=1e-6, activation='gelu', position=None)


@dataclass
class Source:
    """Known arguments of the model that weights belong to."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    table_grid: Grid | None = None  # (height, width) of its position embedding
    notes: list[str] = field(default_factory=list)


def describe(
    checkpoint: str | PathLike[str],
    content: Mapping[str, Any],
    *,
    prefix: str | None = None,
    ema: bool = False,
) -> Source:
    """Describe weights by their name, or by ``config.json`` of their folder or repository.

    Args:
        checkpoint: See :func:`load_checkpoint`. The result is empty for a file alone, and for a
            folder without ``config.json``.
        content: Content of the checkpoint.
        prefix: See :func:`convert_state_dict`.
        ema: See :func:`convert_state_dict`.

    Raises:
        CheckpointError: ``config.json`` is damaged, contradicts the weights, or describes a model
            that no backbone here supports.
    """
    config: dict[str, Any] = {}
    notes: list[str] = []
    try:
        config = stored_config(checkpoint)
    except CheckpointError as error:  # the hub has none, or there is no network
        notes = [f'activation, epsilon and heads were not compared: {error}']
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    if named := named_backbone(checkpoint, config):
        try:
            list_of_dicts('position', named.get('position'))
        except ValueError as error:
            raise CheckpointError(f'config.json: {error}') from error
        return Source(_USUAL | named)
    if not _is_of_transformers(config) and 'architecture' not in config:
        return Source(notes=notes)
    if _is_of_transformers(config) and config['model_type'] not in MODEL_TYPES:
        kind = config['model_type']
        return Source(notes=[f'config.json was not compared: its model_type is {kind!r:.100}'])
    read, grid = recognise_backbone(content, config, prefix=prefix, ema=ema)
    return Source(read.arguments, grid)


def stored_config(checkpoint: str | PathLike[str]) -> dict[str, Any]:
    """Read ``config.json`` of a folder, or of the repository ``hf://USER/REPOSITORY``.

    Returns:
        Its content; empty for other checkpoints, and for a folder without that file.

    Raises:
        CheckpointError: The file cannot be fetched.
        ValueError: The file is damaged.
    """
    name = os.path.expanduser(str(checkpoint)).rstrip('/')
    file = Path(name, 'config.json')
    if name.startswith('hf://') and name.count('/') == 3:  # not a file in a repository
        file = locate_checkpoint(f'{name}/config.json')
    return read_json(file) if file.is_file() else {}


def stored_value(checkpoint: str | PathLike[str], name: str) -> Any:
    """Return a variable of the config in a training's checkpoint, parsed as a literal.

    Nothing is run. ``None`` means that there is no config, or no such literal in it.
    """
    try:
        source = stored_source(locate_checkpoint(checkpoint))
    except (ValueError, RecursionError, MemoryError):
        return None
    return literal_in(source, name)


def literal_in(source: str, name: str) -> Any:
    """Return the last literal assigned to a variable in the text of a config; ``None`` without one.

    The text is parsed but never run.
    """
    try:
        lines = ast.parse(source).body
        values = [
            _literal(line.value)
            for line in lines
            if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == name
        ]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return values[-1] if values else None


def trained_model(checkpoint: str | PathLike[str]) -> dict[str, Any] | None:
    """Return the model in the config of a training's checkpoint, with its backbone.

    Returns:
        A config, ``dict(type=..., backbone=dict(type=..., ...))``; ``None`` without a config.
    """
    model = stored_value(checkpoint, 'model')
    backbone = model.get('backbone') if isinstance(model, dict) else None
    return model if isinstance(backbone, dict) and 'type' in backbone else None


def _literal(node: ast.expr) -> Any:
    """Evaluate a literal, which may contain ``dict(key=value)``; ``ValueError`` for other code."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == 'dict':
        if node.args or None in [keyword.arg for keyword in node.keywords]:
            raise ValueError('dict() takes keywords only')
        return {str(keyword.arg): _literal(keyword.value) for keyword in node.keywords}
    if isinstance(node, ast.Dict):
        keys = [ast.literal_eval(key) if key else None for key in node.keys]
        return dict(zip(keys, map(_literal, node.values), strict=True))
    if isinstance(node, (ast.List, ast.Tuple)):
        values = [_literal(value) for value in node.elts]
        return values if isinstance(node, ast.List) else tuple(values)
    return ast.literal_eval(node)


def named_backbone(
    checkpoint: str | PathLike[str], config: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return type and arguments of a backbone without reading its weights.

    Args:
        checkpoint: Name of shipped weights, or of public weights (see :func:`public_backbone`).
        config: Content of ``config.json``, which has precedence. ``save_pretrained`` writes all
            arguments into it. Files of timm and transformers have only some of them.

    Returns:
        A config, ``dict(type=..., ...)``; ``None`` if only the weights show it.

    Raises:
        CheckpointError: No backbone here supports the model in ``config``.
    """
    if 'type' in config:
        return dict(config)
    if _is_of_transformers(config):
        return None
    named = named_models().get(str(checkpoint))
    if isinstance(named, ShippedWeights):
        return dict(named.backbone)
    if 'architecture' not in config:
        return public_backbone(checkpoint)
    if reason := known_to_differ(config['architecture']):
        raise CheckpointError(
            f'config.json: no model of this package computes {config["architecture"]!r:.100}:'
            f' {reason}'
        )
    return None


def recognise_backbone(
    content: Mapping[str, Any],
    config: Mapping[str, Any],
    *,
    prefix: str | None = None,
    ema: bool = False,
) -> tuple[Architecture, Grid | None]:
    """Recognise the architecture of weights, and use ``config.json`` of transformers or timm.

    Args:
        content: Result of :func:`read_checkpoint`.
        config: Content of ``config.json``; empty without one.
        prefix: See :func:`convert_state_dict`.
        ema: See :func:`convert_state_dict`.

    Returns:
        The architecture, and the grid (height, width) of its position embedding in tokens; ``None``
        if ``config`` does not contain the grid.

    Raises:
        CheckpointError: The weights are not recognised, or ``config`` contradicts them.

    Examples:
        >>> from cpvt_backbones import CPVT
        >>> from cpvt_backbones.checkpoints import recognise_backbone
        >>> weights = CPVT(arch='tiny').state_dict()  # or of read_checkpoint()
        >>> found, _ = recognise_backbone(weights, {})
        >>> found.backbone, found.arguments['position']['type']
        ('CPVT', 'PEG')
        >>> found.assumed[:2]  # no weight shows these
        ['num_heads=3', 'norm_eps=1e-06']
    """
    read = recognise_architecture(content, prefix=prefix, ema=ema)
    apply = apply_config if _is_of_transformers(config) else apply_timm_config
    if not _is_of_transformers(config) and 'architecture' not in config:
        return read, None
    try:
        return read, apply(config, read)
    except (ValueError, OverflowError) as error:
        raise CheckpointError(f'config.json: {str(error):.600}') from error


def _is_of_transformers(config: Mapping[str, Any]) -> bool:
    is_timm = config.get('model_type') == 'timm_wrapper' and 'architecture' in config
    return 'model_type' in config and 'type' not in config and not is_timm

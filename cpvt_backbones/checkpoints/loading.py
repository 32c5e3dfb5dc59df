"""Load a checkpoint into a model."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any

from mmengine.logging import print_log
from mmengine.model import BaseTTAModel, is_model_wrapper
from torch import Tensor, nn

from cpvt_backbones.checks import list_of_dicts
from cpvt_backbones.layers import Attention
from cpvt_backbones.layers.rope import TEMPERATURES
from cpvt_backbones.weights import shipped_weights

from .classes import SAME_CLASSES, class_difference, classes_of, stored_meta
from .conversion.convert import check_values, convert_state_dict
from .conversion.families import known_to_differ, stored_weights
from .described import describe
from .reading.files import read_checkpoint
from .report import CheckpointError, ConversionReport, shorten
from .whole import fit_whole_model, missing_weights


def load_checkpoint(
    model: nn.Module,
    checkpoint: str | PathLike[str],
    *,
    prefix: str | None = None,
    allow_missing: str | Iterable[str] = (),
    ema: bool = False,
    table_grid: Sequence[Any] | None = None,
    content: Mapping[str, Any] | None = None,
) -> ConversionReport:
    """Load a checkpoint into a backbone of this package: read it, convert it, and log the report.

    Args:
        model: :class:`CPVT`, :class:`MultiScaleCPVT` or :class:`PyramidCPVT`; changed in place.
        checkpoint: File, folder, address or name, see :func:`locate_checkpoint`.
        prefix: Load the keys under this prefix only; ``None`` finds the prefix.
        allow_missing: Keys of new parts, such as PEGs, that the checkpoint may lack, or patterns.
        ema: Whether to load the averaged weights that are stored beside the others.
        table_grid: Grid (height, width) in tokens of the checkpoint's learned table, or one pair
            for each stage of a pyramid. :func:`convert_state_dict` describes all four in full.
        content: What :func:`read_checkpoint` returned, if it was called before.

    Returns:
        What was loaded, renamed, dropped and added.

    Raises:
        FileNotFoundError: There is no such file or folder.
        CheckpointError: The checkpoint cannot be read, is not recognised, or does not fit the
            model.

    Examples:
        >>> from cpvt_backbones import CPVT
        >>> from cpvt_backbones.checkpoints import load_checkpoint
        >>> position = dict(type='PEG', after_blocks='0-5')
        >>> model = CPVT(arch='tiny', position=position, with_cls_token=False)
        >>> report = load_checkpoint(model, 'cpvt_tiny_gap-imagenette')
        >>> len(report.loaded), report.missing
        (158, {})
    """
    with naming_file(checkpoint):
        if reason := known_to_differ(checkpoint):
            raise CheckpointError(
                f'no model of this package computes what its source does: {reason}'
            )
    if content is None:
        content = read_checkpoint(checkpoint)
    with naming_file(checkpoint):
        source = describe(checkpoint, content, prefix=prefix, ema=ema)
        state_dict, report = convert_state_dict(
            content,
            model,
            prefix=prefix,
            allow_missing=allow_missing,
            ema=ema,
            table_grid=table_grid or source.table_grid,
        )
    report.notes += [*source.notes, *_differences(model, source.arguments)]
    model.load_state_dict(state_dict, strict=False)
    print_log(f'load {checkpoint}: {report}', logger='current')
    return report


def _differences(model: nn.Module, source: Mapping[str, Any]) -> list[str]:
    """What is known of the source's model, no key shows, and this model has otherwise."""
    wanted = {key: source[key] for key in ('norm_eps', 'activation') if key in source}
    found = {key: getattr(model, key, value) for key, value in wanted.items()}
    arch = source.get('arch')
    heads = [module.num_heads for module in model.modules() if isinstance(module, Attention)]
    if isinstance(arch, Mapping) and isinstance(arch.get('num_heads'), int) and heads:
        wanted['num_heads'], found['num_heads'] = arch['num_heads'], heads[0]
    if source.get('window_size') is not None and hasattr(model, 'window_size'):
        for key in ('window_size', 'mask_window_padding'):
            wanted[key], found[key] = source.get(key, True), getattr(model, key)
    if 'position' in source:
        encodings = list_of_dicts('position', source['position'])
        wanted['rope'] = [_rotation(**e) for e in encodings if e.get('type') == 'RoPE']
        found['rope'] = [
            _rotation(encoding.mode, encoding.temperature)
            for encoding in getattr(model, 'position_encodings', ())
            if encoding.has_rotation
        ]
    return [
        f'the weights were trained with {key}={value!r}, the model has {found[key]!r}'
        for key, value in wanted.items()
        if found[key] != value
    ]


def _rotation(
    mode: str = 'axial', temperature: float | None = None, **_: Any
) -> tuple[str, float | None]:
    """Mode and temperature of a rotary encoding, by its arguments."""
    return mode, TEMPERATURES.get(str(mode)) if temperature is None else temperature


def load_weights(
    model: nn.Module,
    checkpoint: str | PathLike[str],
    *,
    prefix: str = '',
    strict: bool = False,
    classes: list[str] | None = None,
) -> dict[str, Any]:
    """Load a checkpoint into the whole model that it was saved from.

    The trunk may have the names of another package, see :func:`fit_whole_model`. Weights that do
    not fit are an error.

    Args:
        model: Detector, segmentor, classifier or a part of one, alone or in a wrapper that
            :func:`unwrap` removes; changed in place.
        checkpoint: File, folder, address or name, see :func:`read_checkpoint`.
        prefix: Load the keys under this prefix only, such as ``'backbone.'``.
        strict: Whether to refuse weights that the model lacks, too.
        classes: Names of the config's classes; ``None`` if they are not known.

    Returns:
        ``meta`` of the checkpoint; an empty dict without it.

    Raises:
        FileNotFoundError: There is no such file or folder.
        CheckpointError: The checkpoint cannot be read, lacks weights, has other shapes, has values
            that are NaN, infinite or integers, or has other classes or another order of classes.

    Examples:
        >>> from cpvt_backbones.analysis.complexity import build_model
        >>> from cpvt_backbones.checkpoints import load_weights
        >>> from cpvt_backbones.inference import read_config
        >>> from cpvt_backbones.weights import find_shipped
        >>> shipped = find_shipped('cpvt_tiny_gap-imagenette')
        >>> classifier = build_model(read_config(shipped.config_file))
        >>> meta = load_weights(classifier, shipped.name)  # or 'model.pth'
        >>> meta['dataset_meta']['classes'][:2]
        ['tench', 'English springer']
    """
    model = unwrap(model)
    wanted = model.state_dict()
    content = read_checkpoint(checkpoint)
    with naming_file(checkpoint):
        weights = fit_whole_model(weights_in(content, prefix), model)
        others = [
            key
            for key, value in weights.items()
            if key in wanted and value.shape != wanted[key].shape
        ]
        if others:
            shapes = f'{tuple(weights[others[0]].shape)}, not {tuple(wanted[others[0]].shape)}'
            fault = (
                f'{len(others)} of {len(wanted)} weights have other shapes ({shapes}):'
                f' {shorten(others)}'
            )
            raise CheckpointError(f'it does not fit the model: {fault}')
        check_values(weights, wanted)
        with missing_weights(model) as missing:
            unexpected = model.load_state_dict(weights, strict=False).unexpected_keys
        about = shipped_weights().get(str(checkpoint))
        refuse_missing(missing, weights, model, about=about.about if about else '')
        if strict and unexpected:
            fault = f'{len(unexpected)} of {len(weights)} weights: {shorten(unexpected)}'
            raise CheckpointError(f'it does not fit the model: the model lacks {fault}')
        meta = stored_meta(content, checkpoint)
        if difference := class_difference(classes_of(meta), classes):
            raise CheckpointError(f'{difference}; {SAME_CLASSES}')
    return meta


def refuse_missing(
    missing: list[str], weights: Mapping[str, Tensor], model: nn.Module, *, about: str = ''
) -> None:
    """Refuse weights that leave a part of the model random.

    Args:
        missing: Weights of the model that were not loaded.
        weights: The weights.
        model: The model.
        about: Description of the weights, if it is known.

    Raises:
        CheckpointError: ``missing`` is not empty.
    """
    if not missing:
        return
    wanted = model.state_dict()
    fault = f'it lacks {len(missing)} of {len(wanted)} weights: {shorten(missing)}'
    foreign = [key for key in weights if key not in wanted]
    if foreign:
        fault += f'; the model lacks {len(foreign)} of its weights: {shorten(foreign)}'
    if about:
        fault += f'; these are weights of: {about}'
    raise CheckpointError(f'it does not fit the model: {fault}')


def weights_in(content: dict[str, Any], prefix: str = '') -> dict[str, Tensor]:
    """The tensors of a checkpoint whose keys start with ``prefix``; the prefix is removed."""
    weights = {}
    for key, value in stored_weights(content).items():
        key = key.removeprefix('module.')
        if key.startswith(prefix) and isinstance(value, Tensor):
            weights[key.removeprefix(prefix)] = value
    return weights


def unwrap(model: nn.Module) -> nn.Module:
    """Take a model out of mmengine's wrappers: data parallel, test-time augmentation."""
    while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
        model = model.get_submodule('module')
    return model


@contextmanager
def naming_file(checkpoint: str | PathLike[str]) -> Iterator[None]:
    """Context in which the message of a :class:`CheckpointError` names the file."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(
            f'checkpoint {str(checkpoint)!r}: {error}', report=error.report
        ) from error

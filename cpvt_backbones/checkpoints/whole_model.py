"""Loading of whole models of other packages into models with a backbone of this package.

In a published model, the trunk has the names of another package, but neck and heads have names that
the toolboxes still use. So the trunk is converted under its prefix, such as ``backbone.``, and
everything else is taken by name. Outputs must equal those of the published model. So, unlike
:func:`convert_state_dict`, which serves pretraining, this refuses weights if the model lacks a part
of the trunk.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from typing import Any

from mmengine.logging import print_log
from mmengine.model import BaseTTAModel, is_model_wrapper
from torch import Tensor, nn

from cpvt_backbones.weights import named_models

from .classes import SAME_CLASSES, class_difference, classes_of, stored_meta
from .conversion.eomt import rename_eomt
from .conversion.families import stored_weights
from .conversion.reporting import check_values
from .loading import convert_state_dict
from .reading.finding import read_checkpoint
from .report import (
    NOT_USED,
    OTHER_OUTPUTS,
    CheckpointError,
    ConversionReport,
    Reason,
    naming_file,
    shorten,
)

# Prefixes in front of all keys of a whole model.
_WRAPPERS = ('module.', 'model.', '_orig_mod.')
# Names of a classifier's last layer in mmpretrain, timm, torchvision and transformers.
_HEADS = ('head.fc', 'head.layers.head', 'head', 'fc', 'classifier', 'cls_classifier')
# Names of the second head of a distilled DeiT.
_DISTILLED_HEADS = ('head.layers.head_dist', 'head_dist', 'distillation_classifier')
# Heads that are used in training only.
_TRAINING_ONLY = 'auxiliary'
# Parts that the dense models of PVT's and Twins' authors store but do not call.
_NOT_CALLED = frozenset({Reason.NO_LAST_NORM, Reason.NO_CLS_TOKEN})


def load_weights(
    model: nn.Module,
    checkpoint: str | PathLike[str],
    *,
    prefix: str = '',
    strict: bool = False,
    classes: list[str] | None = None,
) -> dict[str, Any]:
    """Load a checkpoint into the whole model that it was saved from.

    The trunk may have the names of another package; see :func:`fit_whole_model`. Weights that do
    not fit are an error.

    Args:
        model: Detector, segmentor, classifier or a part of one, alone or in a wrapper that
            :func:`unwrap` removes; changed in place.
        checkpoint: File, folder, address or name; see :func:`read_checkpoint`.
        prefix: Load only keys with this prefix, such as ``'backbone.'``.
        strict: Also refuse weights that the model lacks.
        classes: Names of the config's classes; ``None`` if unknown.

    Returns:
        ``meta`` of the checkpoint; an empty dict without it.

    Raises:
        FileNotFoundError: There is no such file or folder.
        CheckpointError: The checkpoint cannot be read, lacks weights, or has other shapes. Or it
            has values that are NaN, infinite or integers, or other classes or another order.

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
        if missing:
            named = named_models().get(str(checkpoint))
            refuse_missing(missing, weights, model, about=named.about if named else '')
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
        weights: The loaded weights.
        model: The model.
        about: Description of the weights, if known.

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
    """Return tensors of a checkpoint whose keys start with ``prefix``, without the prefix."""
    weights = {}
    for key, value in stored_weights(content).items():
        key = key.removeprefix('module.')
        if key.startswith(prefix) and isinstance(value, Tensor):
            weights[key.removeprefix(prefix)] = value
    return weights


def unwrap(model: nn.Module) -> nn.Module:
    """Remove mmengine's wrappers from a model: data parallel, test-time augmentation."""
    while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
        model = model.get_submodule('module')
    return model


def find_trunks(model: nn.Module) -> dict[str, nn.Module]:
    """Return the backbones of this package in a model by name; ``''`` for the model itself."""
    return {
        name: module
        for name, module in model.named_modules()
        if hasattr(module, 'position_encodings') and getattr(module, 'depths', None) is not None
    }


def fit_whole_model(weights: Mapping[str, Tensor], model: nn.Module) -> Mapping[str, Tensor]:
    """Rename weights of a whole model for a model with a backbone of this package.

    Args:
        weights: Weights by name.
        model: The model that they are for; not changed.

    Returns:
        Weights by the names of ``model``. It is ``weights`` itself if the names are already those
        of the model, or if the model has no backbone of this package.

    Raises:
        CheckpointError: The trunk has another architecture, or a part that changes the outputs and
            that the model lacks; or the file has other layers besides the trunk.
    """
    trunks = find_trunks(model)
    if not trunks:
        return weights
    wanted = model.state_dict()
    weights = _without_wrapper(weights, wanted)
    for name, trunk in trunks.items():
        prefix = f'{name}.' if name else ''
        weights = rename_eomt(weights, wanted, prefix)
        if _has_own_names(weights, wanted, prefix):
            continue
        if not prefix:
            weights, report = convert_state_dict(weights, trunk)
            print_log(str(report), 'current')
        elif any(key.startswith(prefix) for key in weights):
            weights = _fit_part(weights, wanted, prefix, trunk)
        elif not weights.keys() & wanted.keys() and _find(_HEADS, wanted):
            weights = _fit_classifier(weights, wanted, prefix, trunk)
    return _rename_heads(weights, wanted)


@contextmanager
def missing_weights(model: nn.Module) -> Iterator[list[str]]:
    """Context for loading ``model``; yields the list of weights that were not loaded.

    Load hooks of modules may rename and add weights, so comparing keys is not enough. Counters of
    batch normalisation do not count as weights.
    """
    missing: list[str] = []

    def note(_: nn.Module, keys: Any) -> None:
        found = (key for key in keys.missing_keys if not key.endswith('num_batches_tracked'))
        missing.extend(found)

    handle = model.register_load_state_dict_post_hook(note)
    try:
        yield missing
    finally:
        handle.remove()


def check_kind(weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Refuse weights of another kind of model.

    Raises:
        CheckpointError: The weights and the model each have parts that the other lacks.
    """
    theirs = {key.partition('.')[0] for key in weights}
    ours = {key.partition('.')[0] for key in wanted}
    if theirs <= ours or ours <= theirs:
        return
    parts = (
        f'it has {", ".join(sorted(theirs - ours))}, the model {", ".join(sorted(ours - theirs))}'
    )
    advice = (
        "a backbone alone takes it by init_cfg=dict(type='Pretrained', checkpoint=...,"
        " prefix='backbone.')"
    )
    raise CheckpointError(f'it is of another kind of model: {parts}; {advice}')


def _without_wrapper(
    weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor]
) -> Mapping[str, Tensor]:
    """Remove a prefix that all keys have, but no key of the model."""
    for wrapper in _WRAPPERS:
        all_have_it = all(key.startswith(wrapper) for key in weights)
        if weights and all_have_it and not any(key.startswith(wrapper) for key in wanted):
            stripped = {key.removeprefix(wrapper): value for key, value in weights.items()}
            return _without_wrapper(stripped, wanted)
    return weights


def _has_own_names(
    weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor], prefix: str
) -> bool:
    """``True`` if the trunk has the model's names: all of it, or nothing else."""
    filled_in = re.compile(r'\.num_batches_tracked$|pos_embed\.grid_\d$')
    ours = {key for key in wanted if key.startswith(prefix) and not filled_in.search(key)}
    theirs = {key for key in weights if key.startswith(prefix)}
    return ours <= theirs or (bool(theirs) and theirs <= wanted.keys())


def _fit_part(
    weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor], prefix: str, trunk: nn.Module
) -> dict[str, Tensor]:
    """Convert the trunk under ``prefix``; keep other weights by name."""
    part = {key.removeprefix(prefix): v for key, v in weights.items() if key.startswith(prefix)}
    rest = {key: value for key, value in weights.items() if not key.startswith(prefix)}
    converted, report = convert_state_dict(part, trunk)
    is_classifier = bool(_find(_HEADS, wanted))
    is_pyramid = not hasattr(trunk, 'depth')
    _refuse_other_outputs(
        report, but=_NOT_CALLED if is_pyramid and not is_classifier else frozenset()
    )
    return _join(converted, prefix, rest, wanted, report)


def _fit_classifier(
    weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor], prefix: str, trunk: nn.Module
) -> dict[str, Tensor]:
    """Convert a classifier of timm, transformers or its authors, with its last layer."""
    converted, report = convert_state_dict(weights, trunk)
    _refuse_other_outputs(report)
    rest = {key: weights[key] for key, reason in report.dropped.items() if reason not in NOT_USED}
    return _join(converted, prefix, rest, wanted, report)


def _join(
    converted: Mapping[str, Tensor],
    prefix: str,
    rest: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    report: ConversionReport,
) -> dict[str, Tensor]:
    """Join the trunk and the other weights.

    Raises:
        CheckpointError: The model lacks some of the other weights.
    """
    kept = set(rest)
    rest = _rename_heads(rest, wanted)
    joined = {**{f'{prefix}{key}': value for key, value in converted.items()}, **rest}
    check_kind(joined, wanted)
    foreign = []
    for key in rest:
        if key not in wanted and not key.endswith('.num_batches_tracked'):
            if not key.startswith(_TRAINING_ONLY):
                foreign.append(key)
    if foreign:
        raise CheckpointError(
            f'it does not fit the model, which lacks {len(foreign)} of its weights:'
            f' {shorten(foreign)}',
            report=report,
        )
    for key in list(report.dropped):
        if key in kept:
            del report.dropped[key]
    print_log(str(report), 'current')
    return joined


def _find(names: tuple[str, ...], weights: Mapping[str, Tensor]) -> str:
    """Return the first name that is a layer of ``weights``; ``''`` without one."""
    return next((name for name in names if f'{name}.weight' in weights), '')


def _rename_heads(rest: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Rename the last layers of a classifier as in the model."""
    renamed = dict(rest)
    for names in (_HEADS, _DISTILLED_HEADS):
        theirs, ours = _find(names, rest), _find(names, wanted)
        if not theirs or not ours or f'{ours}.weight' in rest:
            continue
        for leaf in ('weight', 'bias'):
            if f'{theirs}.{leaf}' in rest:
                renamed[f'{ours}.{leaf}'] = renamed.pop(f'{theirs}.{leaf}')
    return rest if renamed.keys() == rest.keys() else renamed


def _refuse_other_outputs(report: ConversionReport, *, but: Collection[str] = frozenset()) -> None:
    """Refuse a conversion that changes the outputs of the trunk.

    Args:
        report: Report of the conversion.
        but: Reasons to drop parts that change no output.
    """
    parts = [*report.dropped.items(), *report.added.items()]
    faults = [
        f'{key}: {reason}' for key, reason in parts if reason in OTHER_OUTPUTS and reason not in but
    ]
    faults += [note for note in report.notes if note in OTHER_OUTPUTS]
    if faults:
        more = f' (and {len(faults) - 1} more)' if len(faults) > 1 else ''
        advice = "the backbone alone takes it by init_cfg=dict(type='Pretrained', checkpoint=...)"
        raise CheckpointError(
            f'it does not fit the model, whose outputs would differ: {faults[0]}{more}; {advice}',
            report=report,
        )

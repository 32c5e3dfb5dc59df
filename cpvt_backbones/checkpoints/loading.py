"""Load a checkpoint into a model."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any

from mmengine.logging import print_log
from mmengine.model import BaseTTAModel, is_model_wrapper
from torch import Tensor, nn

from cpvt_backbones.layers import Attention
from cpvt_backbones.layers.checks import list_of_dicts
from cpvt_backbones.layers.rope import TEMPERATURES

from .classes import class_difference, classes_of, stored_meta
from .conversion.convert import check_values, convert_state_dict
from .conversion.families import known_to_differ, stored_weights
from .described import describe
from .reading.files import read_checkpoint
from .report import CheckpointError, ConversionReport, shorten

# Layers of a head with rows for the classes, in the toolboxes: `retina_cls`, `fc_cls`, `fc_reg`,
# `conv_seg`, `fc`, `cls_branches.0` (DETR), `rtm_cls.0`, `layers.head` (ViT).
_CLASS_LAYER = re.compile(
    r'head\b.*\.(?!pre_logits)(\w*(?:cls|seg|logits|fc)\w*|\w*cls(_branches)?\.\d+|layers\.head\w*)\.(?:weight|bias)$'
)
# Heads with classes of their own: proposals, stuff.
_OTHER_HEAD = re.compile(r'(^|\.)\w*(rpn|semantic)')
# Of learned tables, of SAM in mmpretrain, of Swin.
_TABLE = re.compile('pos_embed|rel_pos_[hw]$|relative_position')


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
    """Read a checkpoint, convert it, load it into a backbone of this package, and log the report.

    See :func:`read_checkpoint` for ``checkpoint`` and :func:`convert_state_dict` for the rest.
    ``content`` is what :func:`read_checkpoint` returned, where it has been called.

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
        source = describe(checkpoint, content, prefix=prefix)
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

    Mmengine's loader would leave a misfit random.

    Args:
        model: Detector, segmentor, classifier or a part of one, alone or in what :func:`unwrap`
            removes.
        checkpoint: See :func:`read_checkpoint`; its ``meta`` is returned, or an empty dict.
        prefix: Load the keys under this prefix only, e.g. ``'backbone.'``.
        strict: Refuse weights that the model lacks, too.
        classes: Names of the config's classes; ``None`` if it does not say.

    Raises:
        FileNotFoundError, CheckpointError: See :func:`read_checkpoint`; missing weights, other
            shapes, values that :func:`check_values` refuses, or other classes in the checkpoint's
            ``meta``, or in another order.
    """
    model = unwrap(model)
    wanted = model.state_dict()
    content = read_checkpoint(checkpoint)
    with naming_file(checkpoint):
        weights = weights_in(content, prefix)
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
        missing, unexpected = model.load_state_dict(weights, strict=False)
        fault, keys, total = (
            ('it lacks', missing, wanted) if missing else ('the model lacks', unexpected, weights)
        )
        if missing or (strict and unexpected):
            fault = f'{fault} {len(keys)} of {len(total)} weights: {shorten(keys)}'
            raise CheckpointError(f'it does not fit the model: {fault}')
        meta = stored_meta(content, checkpoint)
        if difference := class_difference(classes_of(meta), classes):
            raise CheckpointError(f'{difference}; {_SAME_CLASSES}')
    return meta


_SAME_CLASSES = (
    "give metainfo.classes of the config's data sets the checkpoint's names, in its order"
)


def check_loaded(
    content: dict[str, Any],
    model: nn.Module,
    checkpoint: str | PathLike[str],
    *,
    other_classes: bool = False,
    classes: list[str] | None = None,
) -> None:
    """Refuse what mmengine is about to load: bad values (:func:`check_values`), another kind of
    model, other shapes.

    ``classes`` are the names of the training data; a checkpoint of others, or of another order, is
    refused too. With ``other_classes``, weights of the heads' class layers are replaced in
    ``content`` by the model's own instead, and logged: these layers stay random, and mmengine
    reports no misfit of its own. So are those of a checkpoint that does not name its classes, if
    their number differs. Tables of positions are resized as they are loaded, but not those of
    relative positions in this package.
    """
    with naming_file(checkpoint):
        weights, wanted = weights_in(content), unwrap(model).state_dict()
        if not weights.keys() & wanted.keys():
            raise CheckpointError(
                f'no weight of the model is in it; it has {shorten(list(weights))}'
            )
        _check_kind(weights, wanted)
        difference = class_difference(classes_of(stored_meta(content, checkpoint)), classes)
        if difference and not other_classes:
            raise CheckpointError(f'{difference}; {_SAME_CLASSES}')
        class_layers = []
        if other_classes:
            class_layers = _class_layers(weights, wanted, all_of_them=bool(difference))
        _check_shapes(weights, wanted, replaced=class_layers)
        if difference and not class_layers:
            fault = 'the layer of the model that depends on them is not known'
            raise CheckpointError(
                f'{difference}; {fault}, so that it cannot start anew; {_SAME_CLASSES}'
            )
        check_values(weights, wanted)
        if class_layers:
            stored: Any = stored_weights(content)
            for key in class_layers:
                stored[key if key in stored else f'module.{key}'] = wanted[key].clone()
            layers = ', '.join(dict.fromkeys(key.rpartition('.')[0] for key in class_layers))
            reason = difference or 'it has other classes'
            print_log(
                f'load {checkpoint}: {reason}, so {layers} starts from random weights', 'current'
            )


def _check_kind(weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Refuse weights if both they and the model have parts that the other lacks."""
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


def _class_layers(
    weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor], *, all_of_them: bool
) -> list[str]:
    """Weights of heads whose rows are classes: all of them, or those of another number."""
    found = []
    for key, own in wanted.items():
        if key not in weights or not _CLASS_LAYER.search(key) or _OTHER_HEAD.search(key):
            continue
        same_inputs = weights[key].shape[1:] == own.shape[1:]
        if same_inputs and (all_of_them or weights[key].shape != own.shape):
            found.append(key)
    return found


def _check_shapes(
    weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor], *, replaced: Collection[str]
) -> None:
    """Refuse other shapes, but for tables of positions and weights that are ``replaced``."""
    faults = []
    for key, own in wanted.items():
        if key in weights and weights[key].shape != own.shape:
            if key not in replaced and not _TABLE.search(key):
                faults.append(key)
    if faults:
        raise CheckpointError(f'it does not fit the model: other shapes of {shorten(faults)}')


def weights_in(content: dict[str, Any], prefix: str = '') -> dict[str, Tensor]:
    """The tensors of a checkpoint whose keys start with ``prefix``, without it."""
    weights = {}
    for key, value in stored_weights(content).items():
        key = key.removeprefix('module.')
        if key.startswith(prefix) and isinstance(value, Tensor):
            weights[key.removeprefix(prefix)] = value
    return weights


def unwrap(model: nn.Module) -> nn.Module:
    """The model in wrappers of mmengine: data parallel, test-time augmentation."""
    while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
        model = model.get_submodule('module')
    return model


@contextmanager
def naming_file(checkpoint: str | PathLike[str]) -> Iterator[None]:
    """Add the file to the message of a CheckpointError."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(
            f'checkpoint {str(checkpoint)!r}: {error}', report=error.report
        ) from error

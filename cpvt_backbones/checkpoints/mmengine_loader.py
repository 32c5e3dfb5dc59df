"""Reading and checks for all that mmengine loads: ``load_from``, ``resume``, inferencers."""

import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from mmengine.fileio import get_local_path
from mmengine.logging import print_log
from mmengine.runner import checkpoint as model_zoo
from torch import Tensor, nn

from cpvt_backbones.text import printable

from .classes import (
    SAME_CLASSES,
    class_difference,
    class_rows,
    classes_of,
    keep_rows,
    stored_meta,
)
from .conversion.families import stored_weights
from .conversion.reporting import check_values
from .reading.finding import read_checkpoint
from .report import CheckpointError, naming_file, shorten
from .whole_model import (
    check_kind,
    find_trunks,
    fit_whole_model,
    missing_weights,
    refuse_missing,
    unwrap,
    weights_in,
)

_FILE = 'cpvt_backbones.file'  # in the metadata of a state dict: where it was read
_NAMED: dict[str, Callable[[], dict[str, str]]] = {
    **dict.fromkeys(('modelzoo', 'torchvision'), model_zoo.get_torchvision_models),
    **dict.fromkeys(('open-mmlab', 'openmmlab'), model_zoo.get_external_models),
    'mmcls': model_zoo.get_mmcls_models,
}

# All schemes of mmengine and of this package. `pavi://`, which has no server, is refused.
SCHEMES = [
    '',
    r'(\S+\:)?s3://',
    r'(\S+\:)?petrel://',
    *(f'{name}://' for name in ('http', 'https', 'pavi', 'timm', 'hf', 'mmpretrain', *_NAMED)),
]

# Layers of the toolboxes' heads with rows for the classes: `retina_cls`, `fc_cls`, `fc_reg`,
# `conv_seg`, `fc`, `cls_branches.0` (DETR), `rtm_cls.0`, `layers.head` (ViT), `mask_norm` and
# `cls_emb` (Segmenter), `class_head` (EoMT).
_CLASS_LAYER = re.compile(
    r'head\b.*\.(?!pre_logits)'
    r'(\w*(?:cls|seg|logits|fc)\w*|\w*cls(_branches)?\.\d+|layers\.head\w*|mask_norm'
    r'|class_head)'
    r'\.(?:weight|bias)$|head\.cls_emb$'
)
# Heads with their own classes: proposals, stuff.
_OTHER_HEAD = re.compile(r'(^|\.)\w*(rpn|semantic)')
# Position embeddings, also those of SAM in mmpretrain and of Swin.
_TABLE = re.compile('pos_embed|rel_pos_[hw]$|relative_position')


def load_from_cpvt_backbones(filename: str, map_location: Any = None) -> dict[str, Any]:
    """Read a checkpoint by :func:`read_checkpoint`, which runs nothing in it.

    Args:
        filename: See :func:`read_checkpoint`; or a name of mmengine, such as
            ``'torchvision://resnet50'``.
        map_location: Ignored; the weights are on the CPU.

    Raises:
        CheckpointError: The checkpoint cannot be read.
    """
    scheme, separator, name = filename.partition('://')
    if separator and scheme.rpartition(':')[2] in ('s3', 'petrel'):
        with get_local_path(filename, backend_args=dict(backend='petrel')) as path:
            return load_from_cpvt_backbones(path)
    if scheme in _NAMED:
        models = _NAMED[scheme]()
        name = model_zoo.get_deprecated_model_names().get(name, name)
        if name not in models:
            raise CheckpointError(f'checkpoint: mmengine knows no model {filename!r}')
        filename = models[name]
        if '://' not in filename:
            filename = str(Path(model_zoo._get_mmengine_home(), filename))
    content = read_checkpoint(filename)
    if all(isinstance(value, Tensor) for value in content.values()):
        # .safetensors, and a state dict alone
        content = dict(state_dict=content, meta=stored_meta({}, filename))
    if scheme == 'mmcls':  # the backbone of a classifier
        return dict(state_dict=weights_in(content, 'backbone.'))
    if isinstance(content.get('state_dict'), dict):
        content['state_dict'] = _with_file(content['state_dict'], filename)
        content.setdefault('meta', {})  # mmseg's init_model fails without it
    return content


def _with_file(weights: Mapping[str, Any], filename: str) -> dict[str, Any]:
    """Store the file's name in torch's metadata of a state dict, for later messages."""
    noted: Any = OrderedDict(weights)
    noted._metadata = OrderedDict(getattr(weights, '_metadata', {}))
    noted._metadata[_FILE] = dict(name=filename)
    return noted


def load_state_dict_whole(
    load: Callable[..., None],
    module: nn.Module,
    state_dict: Mapping[str, Any],
    strict: bool = False,
    logger: Any = None,
) -> None:
    """Replace mmengine's ``load_state_dict`` by one that leaves no part of a model random.

    mmengine loads what has the right names and shapes, and logs the rest. All functions of the
    toolboxes that open a model call this: ``init_detector``, ``init_model``, ``get_model``, the
    inferencers, ``load_from``. In a model with a backbone of this package, the trunk is converted
    (:func:`fit_whole_model`), and missing weights or other shapes are refused. Other models are
    loaded by mmengine.

    Args:
        load: mmengine's own function, which takes the other arguments.
        module: The model.
        state_dict: Weights by name.
        strict: Whether mmengine refuses other keys.
        logger: Logger for mmengine's report.

    Raises:
        CheckpointError: The weights do not fit a model with a backbone of this package.
    """
    if not find_trunks(module):
        load(module, state_dict, strict, logger)
        return
    model = unwrap(module)
    metadata = getattr(state_dict, '_metadata', {})
    with naming_file(metadata.get(_FILE, {}).get('name', 'state_dict')):
        found = weights_in(dict(state_dict))
        weights: Any = OrderedDict(fit_whole_model(found, model))
        weights._metadata = metadata
        _check_shapes(weights, model.state_dict(), replaced=())
        with missing_weights(model) as missing:
            load(module, weights, strict, logger)
        refuse_missing(missing, weights, model)


def check_loaded(
    content: dict[str, Any],
    model: nn.Module,
    checkpoint: str | PathLike[str],
    *,
    other_classes: bool = False,
    classes: list[str] | None = None,
    stored_classes: list[str] | None = None,
) -> None:
    """Check a checkpoint that mmengine is about to load by ``load_from`` or ``resume``.

    Position embeddings, and tables of relative positions outside this package, are resized on
    loading, so their shapes may differ. Replaced class layers have the model's shapes, so mmengine
    does not report them.

    Args:
        content: The checkpoint. Its class layers may be replaced; see ``other_classes``.
        model: The model to load into.
        checkpoint: Name of the checkpoint, for messages.
        other_classes: Whether the checkpoint may have other classes. If so, class layers of the
            heads get the model's random weights, and the log names these layers. Without names,
            the same happens for another number of classes.
        classes: Names of the classes of the training data; ``None`` if unknown.
        stored_classes: Names of the checkpoint's classes, if it does not contain them.

    Raises:
        CheckpointError: The checkpoint belongs to another kind of model, has other shapes, or has
            values that are NaN, infinite or integers. Or, without ``other_classes``, it has other
            classes or another order.
    """
    model = unwrap(model)
    with naming_file(checkpoint):
        found = weights_in(content)
        weights, wanted = fit_whole_model(found, model), model.state_dict()
        if weights is not found:
            content['state_dict'] = _with_file(weights, str(checkpoint))
        if not weights.keys() & wanted.keys():
            raise CheckpointError(
                f'no weight of the model is in it; it has {shorten(list(weights))}'
            )
        check_kind(weights, wanted)
        theirs = classes_of(stored_meta(content, checkpoint)) or stored_classes
        difference = class_difference(theirs, classes)
        if difference and not other_classes:
            raise CheckpointError(f'{difference}; {SAME_CLASSES}')
        class_layers = []
        if other_classes:
            class_layers = _class_layers(weights, wanted, all_of_them=bool(difference))
        _check_shapes(weights, wanted, replaced=class_layers)
        if difference and not class_layers:
            fault = 'the layer of the model that depends on them is not known'
            raise CheckpointError(
                f'{difference}; {fault}, so that it cannot start anew; {SAME_CLASSES}'
            )
        check_values(weights, wanted)
        if class_layers:
            kept = _replace(class_layers, content, wanted, ours=classes, theirs=theirs)
            names = (re.sub(r'\.(weight|bias)$', '', key) for key in class_layers)
            layers = ', '.join(dict.fromkeys(names))
            reason = difference or 'it has other classes'
            text = f'load {checkpoint}: {reason}, so {layers} starts from random weights'
            if kept:
                rest = [name for name in classes or () if name not in kept]
                text += f', but for the rows of {shorten(kept)}; new are {shorten(rest) or "none"}'
            print_log(printable(text), 'current')


def _replace(
    layers: Collection[str],
    content: dict[str, Any],
    wanted: Mapping[str, Tensor],
    *,
    ours: list[str] | None,
    theirs: list[str] | None,
) -> list[str]:
    """Replace class layers of a checkpoint by the model's own, but keep rows of shared classes.

    Returns:
        The classes that keep their rows in every layer.
    """
    stored: Any = stored_weights(content)
    kept = list(ours or ())
    for key in layers:
        own, stored_key = wanted[key].clone(), key if key in stored else f'module.{key}'
        found = keep_rows(key, own, stored[stored_key], ours, theirs) if ours and theirs else []
        kept = [name for name in kept if name in found]
        stored[stored_key] = own
    return kept


def _class_layers(
    weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor], *, all_of_them: bool
) -> list[str]:
    """List head weights whose rows are classes: all, or only those with another number."""
    found = []
    for key, own in wanted.items():
        if key not in weights or not _CLASS_LAYER.search(key) or _OTHER_HEAD.search(key):
            continue
        same_inputs = class_rows(key, weights[key]).shape[1:] == class_rows(key, own).shape[1:]
        if same_inputs and (all_of_them or weights[key].shape != own.shape):
            found.append(key)
    return found


def _check_shapes(
    weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor], *, replaced: Collection[str]
) -> None:
    """Raise CheckpointError for other shapes, except in position tables and ``replaced``."""
    faults = []
    for key, own in wanted.items():
        if key in weights and weights[key].shape != own.shape:
            if key not in replaced and not _TABLE.search(key):
                faults.append(key)
    if faults:
        raise CheckpointError(f'it does not fit the model: other shapes of {shorten(faults)}')

"""Model of a config, read from the weights from which it starts."""

import inspect
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.config import Config

from cpvt_backbones.backbones.archs import ARCHS, resolve_size
from cpvt_backbones.backbones.base import PAPER_POSITION
from cpvt_backbones.backbones.multi_scale import STRIDES
from cpvt_backbones.checkpoints import (
    CheckpointError,
    Normalisation,
    check_loaded,
    find_normalisation,
    load_checkpoint,
    locate_checkpoint,
    missing_weights,
    named_backbone,
    public_backbone,
    read_checkpoint,
    recognise_backbone,
    refuse_missing,
    similar_timm_names,
    stored_config,
    stored_value,
    trained_model,
    weights_in,
)
from cpvt_backbones.checks import list_of_dicts
from cpvt_backbones.errors import InputError
from cpvt_backbones.layers import ceil_div
from cpvt_backbones.toolboxes import dicts_of, published_classes, read_config
from cpvt_backbones.weights import published_weights

from ..read.masks import no_class_of

STRIDE = STRIDES[-1]  # px, the coarsest of the backbones
# Levels of a backbone for the neck of a task: 0 is stride 4, 3 is stride 32.
LEVELS = {
    'detector': (1, 2, 3),
    'instance segmentor': (0, 1, 2, 3),
    'segmentor': (0, 1, 2, 3),
}
PLAIN = ('CPVT', 'MultiScaleCPVT')
# Arguments of a stored model that belong to its task or training, not to its weights.
NOT_OF_WEIGHTS = (
    'type',
    'out_indices',
    'out_type',
    'in_channels',
    'drop_rate',
    'attn_drop_rate',
    'drop_path_rate',
    'frozen_stages',
    'with_cp',
    'init_cfg',
)
ACCEPTED = (
    'names of docs/weights.md, such as timm://deit_small_patch16_224.fb_in1k or'
    ' retinanet_pvt_small-coco, shipped weights, none, and files and folders of a ViT, PVT,'
    ' Twins-PCPVT or CPVT'
)
# Models for which the bases of a task are made.
WITH_QUERIES = 'EoMT'  # for instances; panoptic models are used without their regions
SEGMENTORS = ('EncoderDecoder', 'EoMTSegmentor')
KINDS = {
    'detector': ('RetinaNet',),
    'instance segmentor': ('MaskRCNN', WITH_QUERIES),
    'segmentor': SEGMENTORS,
    'classifier': ('ImageClassifier',),
}
SHOWN = 10  # classes
ORIGIN = 'published_model'
"""Config variable with the name of the published model that is trained."""
# Keys of a model: the backbone is compared by its weights, and the others depend on the data.
_OF_CLASSES = (
    'backbone',
    'num_classes',
    'num_things_classes',
    'num_stuff_classes',
    'class_order',
    'ignore_index',
    'anchor_generator',
    'init_cfg',
    'data_preprocessor',
    'train_cfg',
    'test_cfg',
    '_scope_',
)


@dataclass
class Pretrained:
    """Backbone of weights.

    Args:
        arguments: Type and arguments, with ``init_cfg``.
        out_channels: Channels of each output.
        remark: Line to print.
        trained: Whole model of the weights, if it has this backbone.
        rest: Names of neck and heads in the weights, such as ``'bbox_head, neck'``; ``''`` without
            any.
        normalisation: Mean and standard deviation of the weights' images; ``None`` if unknown.
    """

    arguments: dict[str, Any]
    out_channels: tuple[int, ...]
    remark: str
    trained: dict[str, Any] | None = None
    rest: str = ''
    normalisation: Normalisation | None = None

    @property
    def licence(self) -> str:
        """Line about the licence."""
        weights = self.arguments['init_cfg']
        return f'the licence of {weights} applies; docs/weights.md has those of public weights'

    @property
    def is_plain(self) -> bool:
        """``True`` for a ViT, ``False`` for a pyramid."""
        return self.arguments['type'] in PLAIN


def read_backbone(task: str, weights: str, *, in_channels: int = 3) -> Pretrained:
    """Return the backbone for weights in the config of a task.

    For a name or address, only the name is read. A file is read and loaded on trial.

    Args:
        task: Kind of model, such as ``'detector'``.
        weights: Option ``--weights``, other than shipped weights and ``'none'``.
        in_channels: Channels of the images.

    Raises:
        FileNotFoundError: There is no such file or folder.
        InputError: The weights fit no backbone.
    """
    content = trained = None
    try:
        if '://' in weights or weights in published_weights():
            described, assumed = _by_name(weights), ''
        else:
            weights = _absolute(weights)
            content = read_checkpoint(weights)
            trained = _trained(weights)
            if trained is None:
                described, assumed = _of_file(weights, content)
            else:
                described, assumed = trained['backbone'], ''
        arguments = _arguments(task, described, in_channels)
        channels = _check(arguments, weights, content)
        normalisation = find_normalisation(weights, download=False)
        if trained is not None and _shapes(trained['backbone']) != _shapes(arguments):
            trained = None
    except (TypeError, ValueError) as error:
        fault = f'{weights!r} cannot be used ({str(error).rstrip(".")})'
        raise InputError(f'--weights: {fault}; accepted are {ACCEPTED}') from error
    arguments['init_cfg'] = weights
    remark = f'the backbone of {weights}'
    old, new = (one.get('patch_size', 16) for one in (described, arguments))
    if old != new:
        remark += f'; its patches of {old} px are fitted to {new} px'
    if assumed:
        remark += f'; no weight shows, so that the usual value is assumed: {assumed}'
    return Pretrained(arguments, channels, remark, trained, _rest_of(content), normalisation)


def _rest_of(content: dict[str, Any] | None) -> str:
    """Return the names of neck and heads in a toolbox's whole model."""
    parts = {key.partition('.')[0] for key in (weights_in(content) if content else ())}
    if 'backbone' not in parts:
        return ''
    return ', '.join(sorted(part for part in parts if part == 'neck' or part.endswith('head')))


def _absolute(weights: str) -> str:
    """Return the file or folder of weights, or the checkpoint of a work directory."""
    file = locate_checkpoint(weights, argument='--weights')
    is_work_dir = file.suffix == '.pth' and not stored_config(weights)
    return os.path.abspath(file if is_work_dir else os.path.expanduser(weights))


def _trained(weights: str) -> dict[str, Any] | None:
    """Return the model of a training's checkpoint if its backbone is of this package."""
    if not Path(weights).is_file():
        return None
    model = trained_model(weights)
    if model is None:
        return None
    arguments = {key: value for key, value in model['backbone'].items() if key[:1] != '_'}
    arguments['type'] = str(arguments['type']).rpartition('.')[2]
    if arguments['type'] not in (*PLAIN, 'PyramidCPVT'):  # such as mmpretrain's
        return None
    return dict(model, backbone=arguments)


def _shapes(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return names and shapes of a backbone's weights."""
    model = build_backbone(dict(arguments, init_cfg=None))
    return {key: value.shape for key, value in model.state_dict().items()}


def _by_name(weights: str) -> dict[str, Any]:
    """Return type and arguments of the backbone of a public name."""
    if published := published_weights().get(weights):
        return read_config(published.config_file).model.backbone.to_dict()
    described = public_backbone(weights)
    scheme, _, name = weights.partition('://')
    if described is None or (scheme == 'timm' and not _is_in_timm(name)):
        advice = similar_timm_names(name) if scheme == 'timm' else ''
        raise InputError(
            f'no public weights of this name are known, and nothing is downloaded here{advice}'
        )
    return described


def _is_in_timm(name: str) -> bool:
    """``True`` if timm has weights of a name, or is not installed."""
    try:
        from timm.models import get_pretrained_cfg
    except ImportError:
        return True
    try:
        config = get_pretrained_cfg(name, allow_unregistered=False)
    except RuntimeError:
        return False
    return bool(config.hf_hub_id or config.url)


def _of_file(weights: str, content: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return type and arguments of the model in a file or folder, and which are assumed."""
    config = stored_config(weights)
    described = named_backbone(weights, config)
    if described is not None:
        return described, ''
    read, _ = recognise_backbone(content, config)
    if read.unclear:
        missing = '; '.join(f'{key}: {text}' for key, text in read.unclear.items())
        raise InputError(f'{read.source}: its weights do not show {missing}')
    return dict(type=read.backbone, **read.arguments), ', '.join(read.assumed)


def _arguments(task: str, described: Mapping[str, Any], in_channels: int) -> dict[str, Any]:
    """Return type and arguments for the config of a task, without default values."""
    import cpvt_backbones

    kind = described['type']
    if kind not in (*PLAIN, 'PyramidCPVT'):
        raise InputError(f'they are of the backbone {kind!r:.100}')
    is_dense = task in LEVELS
    if kind in PLAIN:
        kind = 'MultiScaleCPVT' if is_dense else 'CPVT'
    accepted = inspect.signature(getattr(cpvt_backbones, kind)).parameters
    taken = {}
    for key, value in described.items():
        if key in accepted and key not in NOT_OF_WEIGHTS:
            taken[key] = value
    if kind == 'MultiScaleCPVT':
        _fit_patches(taken)
    names = [name for name, numbers in ARCHS[kind].items() if numbers == taken.get('arch')]
    if names:
        taken['arch'] = names[0]
    taken['position'] = with_peg(described.get('position', PAPER_POSITION), kind)
    if is_dense:
        taken |= dict(drop_path_rate=0.1, out_indices=LEVELS[task])
    else:
        has_class_token = taken.get('with_cls_token') and not taken.get('with_dist_token')
        taken |= dict(out_type='cls_token' if has_class_token else 'avg_featmap', out_indices=-1)
    taken['in_channels'] = in_channels
    changed = dict(type=kind, arch=taken.pop('arch'))
    for key, value in taken.items():
        default = accepted[key].default
        if value != default and not (isinstance(default, tuple) and value == list(default)):
            changed[key] = value
    return changed


def with_peg(position: Any, kind: str) -> Any:
    """Return the encodings of weights, with a PEG if they have none; it starts as the identity."""
    encodings = [dict(one) for one in list_of_dicts('position', position)]
    if any(one.get('type') == 'PEG' for one in encodings):
        return position
    after = {} if kind == 'PyramidCPVT' else dict(after_blocks='0-5')
    return [*encodings, dict(type='PEG', **after)]


def _fit_patches(arguments: dict[str, Any]) -> None:
    """Set the patch size to the nearest output stride; position embeddings keep their grid."""
    patch = arguments.get('patch_size', 16)
    if patch in STRIDES:
        return
    fitted = min(STRIDES, key=lambda stride: abs(math.log(stride / patch)))
    arguments['patch_size'] = fitted
    if 'img_size' in arguments:
        sides = resolve_size('img_size', arguments['img_size'])
        height, width = (ceil_div(side, patch) * fitted for side in sides)
        arguments['img_size'] = height if height == width else (height, width)


def _check(
    arguments: dict[str, Any], weights: str, content: Mapping[str, Any] | None
) -> tuple[int, ...]:
    """Return the channels of the outputs; weights that were read are loaded on trial.

    The last norm of a hierarchical ViT is removed from ``arguments`` if the weights lack it.
    """
    model = build_backbone(arguments)
    if content is not None:
        try:
            load_checkpoint(_on_cpu(model), weights, content=content)
        except CheckpointError as error:
            missing = error.report.missing if error.report else {}
            lacking = {key for key, reason in missing.items() if not reason}
            if arguments['type'] != 'PyramidCPVT' or lacking != {'norm.weight', 'norm.bias'}:
                raise
            arguments['final_norm'] = False
            load_checkpoint(_on_cpu(build_backbone(arguments)), weights, content=content)
    channels: tuple[int, ...] = model.out_channels
    return channels


def build_backbone(arguments: Mapping[str, Any]) -> Any:
    """Build the backbone on the meta device."""
    import torch

    import cpvt_backbones

    options = dict(arguments)
    with torch.device('meta'):
        return getattr(cpvt_backbones, options.pop('type'))(**options)


def _on_cpu(model: Any) -> Any:
    """Move a meta model to the CPU with zeros, which is faster than random weights."""
    import torch

    model.to_empty(device='cpu')
    with torch.no_grad():
        for value in (*model.parameters(), *model.buffers()):
            value.zero_()
    return model


@dataclass(frozen=True)
class WholeModel:
    """A published model with heads for the classes of the data.

    Args:
        name: Name of the published model.
        weights: Its name, or the checkpoint of a training that started from it.
        model: Value of ``model`` in a config.
        data_preprocessor: Value beside a classifier's model, else ``None``.
        remark: Line to print.
    """

    name: str
    weights: str
    model: dict[str, Any]
    data_preprocessor: dict[str, Any] | None
    remark: str

    @property
    def licence(self) -> str:
        """Line about the licence."""
        own, _, start = published_weights()[self.name].license.partition('; starts from ')
        text = f'the licence of {self.name} is {own}'
        return (
            f'{text}; that of the weights from which it was trained is {start}' if start else text
        )

    @property
    def is_plain(self) -> bool:
        """``True`` for a ViT, ``False`` for a pyramid."""
        return self.model['backbone']['type'] in PLAIN

    @property
    def has_queries(self) -> bool:
        """``True`` for a model with queries instead of anchors."""
        return bool(self.model['type'] == WITH_QUERIES)

    @property
    def out_channels(self) -> tuple[int, ...]:
        """Channels of each output of the backbone."""
        channels: tuple[int, ...] = build_backbone(self.model['backbone']).out_channels
        return channels

    @property
    def ratios(self) -> list[float]:
        """Ratios of a detector's anchors, height / width; the head has rows for each."""
        ratios: list[float] = self.model['bbox_head']['anchor_generator']['ratios']
        return ratios


@dataclass(frozen=True)
class Published:
    """A published model that weights belong to.

    Args:
        name: Name of the model.
        weights: Its name, or the checkpoint of a training that started from it.
        config: Config of the model.
        anchors: For a training, the fields of its anchors; otherwise ``None``.
    """

    name: str
    weights: str
    config: Config
    anchors: dict[str, Any] | None = None


def find_published(task: str, weights: str) -> Published | None:
    """Find the published model of weights if it fits the task, else ``None``.

    ``weights`` are its name, or the checkpoint of a training whose model differs only in classes
    and anchors. Only configs are read; that of a checkpoint is parsed as literals.
    """
    name, trained = weights, None
    if name not in published_weights() and Path(name).exists():
        weights = os.path.abspath(locate_checkpoint(name, argument='--weights'))
        name = stored_value(weights, ORIGIN)
        trained = stored_value(weights, 'model') if isinstance(name, str) else None
        if not isinstance(trained, dict):
            return None
    entry = published_weights().get(name)
    if entry is None:
        return None
    config = read_config(entry.config_file)
    if config.model.type not in KINDS[task]:
        return None
    if trained is None:
        return Published(name, name, config)
    if _kept_of(_model_of(config, 1)[0]) != _kept_of(trained):
        return None
    model, beside = _model_of(config, 1)
    whole = Config(dict(config, model=model, data_preprocessor=beside or {}))
    try:
        if why_not_whole(weights, whole):
            return None
        return Published(name, weights, config, anchors_of(task, trained))
    except (KeyError, TypeError, ValueError):
        return None


def why_not_whole(weights: str, config: Config) -> str:
    """Return why ``cpvt train`` refuses weights for the whole model of a config, or ``''``."""
    from cpvt_backbones.analysis.complexity import build_model

    content = read_checkpoint(weights)
    model = build_model(config)
    try:
        check_loaded(content, model, weights, other_classes=True)
        found = weights_in(content)
        with missing_weights(model) as missing:
            model.load_state_dict(found, strict=False)
        refuse_missing(missing, found, model)
    except CheckpointError as error:
        return str(error)
    return ''


def _kept_of(model: Mapping[str, Any]) -> Any:
    """Return what a training keeps of a published model: all but classes and dropout rates."""
    backbone = model.get('backbone')
    kept = backbone if isinstance(backbone, Mapping) else {}
    kept = {key: value for key, value in kept.items() if key not in NOT_OF_WEIGHTS}
    return without_classes(model), without_classes(kept)


def anchors_of(task: str, trained: Mapping[str, Any]) -> dict[str, Any]:
    """Return the anchor fields of a trained model, whose layers depend on them; {} without any.

    Raises:
        KeyError, TypeError, ValueError: The model has no such anchors.
    """
    fields: dict[str, Any] = {}
    if task == 'detector':
        anchors = trained['bbox_head']['anchor_generator']
        fields['anchor'] = _number(anchors['octave_base_scale'])
        fields['ratios'] = [_number(ratio) for ratio in anchors['ratios']]
    elif task == 'instance segmentor' and trained.get('type') != WITH_QUERIES:
        (scale,) = trained['rpn_head']['anchor_generator']['scales']
        fields['anchor'] = _number(scale)
    return fields


def _number(value: Any) -> float:
    """Return a finite number; raise ``ValueError`` for other values."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f'{number} is not a number')
    return number


def without_classes(node: Any) -> Any:
    """Return a model as plain data, without values that depend on the data set."""
    if isinstance(node, Mapping):
        return {
            key: without_classes(value) for key, value in node.items() if key not in _OF_CLASSES
        }
    return [*map(without_classes, node)] if isinstance(node, (list, tuple)) else node


def read_model(published: Published, classes: Sequence[str]) -> WholeModel:
    """Return the model of a published config with heads for other classes."""
    model, beside = _model_of(published.config, len(classes))
    remark = f'the whole model {published.weights}'
    if published.anchors is None:
        theirs = published_classes(published.name) or ()
        kept = [one for one in classes if one in theirs]
        shown = ', '.join(kept[:SHOWN]) + (', ...' if len(kept) > SHOWN else '')
        remark += f'; classes of the same name keep what they learned: {shown or "none"}'
    return WholeModel(published.name, published.weights, model, beside, remark)


def _model_of(cfg: Config, classes: int) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the model of a published config with other classes, and its separate preprocessor."""
    model = cfg.model.to_dict()
    beside = cfg.data_preprocessor.to_dict() if 'data_preprocessor' in cfg else None
    if model['type'] == 'ImageClassifier':
        model.pop('train_cfg', None)  # mixes images by the publisher's recipe
    else:
        model['data_preprocessor'] = model.get('data_preprocessor') or beside
        beside = None
    model.pop('pretrained', None)
    model['backbone']['init_cfg'] = None  # load_from has all weights
    for part in dicts_of([model, beside]):
        _adapt(part, classes)
    if model['type'] in SEGMENTORS:
        _adapt_segmentor(model, classes)
    elif model['type'] == WITH_QUERIES:
        _adapt_queries(model, classes)
    return model, beside


def _adapt(part: dict[str, Any], classes: int) -> None:
    """Change the classes in a dict of a model, and settings of the publisher's machines."""
    part.pop('_scope_', None)
    if 'num_classes' in part:
        part['num_classes'] = classes
    if part.get('type') == 'SyncBN':
        part['type'] = 'BN'  # the same weights, without a process group
    part.pop('batch_augments', None)  # pads to the publisher's size


def _adapt_segmentor(model: dict[str, Any], classes: int) -> None:
    """Change the value of "no class", and remove padding to the publisher's size."""
    for name in ('decode_head', 'auxiliary_head'):
        heads = model.get(name) or []
        for head in heads if isinstance(heads, list) else [heads]:
            head['ignore_index'] = no_class_of(classes)
    model['data_preprocessor'].pop('size', None)
    model['data_preprocessor']['size_divisor'] = STRIDE


def _adapt_queries(model: dict[str, Any], classes: int) -> None:
    """Make a model predict instances, without padding to squares, which the training lacks."""
    head = model['panoptic_head']
    head.pop('class_order', None)
    head.update(num_things_classes=classes, num_stuff_classes=0)
    model['test_cfg'].update(panoptic_on=False, instance_on=True, square=None)

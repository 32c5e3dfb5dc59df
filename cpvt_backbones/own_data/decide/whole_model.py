"""Whole model of a config, from a published model."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.config import Config

from cpvt_backbones.checkpoints import (
    CheckpointError,
    check_loaded,
    locate_checkpoint,
    missing_weights,
    read_checkpoint,
    refuse_missing,
    stored_value,
    weights_in,
)
from cpvt_backbones.toolboxes import dicts_of, published_classes, read_config
from cpvt_backbones.weights import published_weights

from ..read.masks import no_class_of
from .weights import NOT_OF_WEIGHTS, PLAIN, build_backbone

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
    licence = published_weights()[published.name].license
    remark = f'trunk, neck and heads of {published.weights} (licence: {licence})'
    if published.anchors is None:
        theirs = published_classes(published.name) or ()
        kept = [one for one in classes if one in theirs]
        shown = ', '.join(kept[:SHOWN]) + (', ...' if len(kept) > SHOWN else '')
        remark += f'; classes that keep their rows of the last layer: {shown or "none"}'
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
    model['data_preprocessor']['size_divisor'] = 32


def _adapt_queries(model: dict[str, Any], classes: int) -> None:
    """Make a model predict instances, without padding to squares, which the training lacks."""
    head = model['panoptic_head']
    head.pop('class_order', None)
    head.update(num_things_classes=classes, num_stuff_classes=0)
    model['test_cfg'].update(panoptic_on=False, instance_on=True, square=None)

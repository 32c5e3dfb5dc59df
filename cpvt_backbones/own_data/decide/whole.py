"""The model of a config, from a published model that is taken as a whole."""

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
from .weights import COLUMNS, NOT_OF_WEIGHTS, build_backbone

# Models that the bases of a task fit.
WITH_QUERIES = 'EoMT'  # of instances; a panoptic model is taken as one, without its regions
SEGMENTORS = ('EncoderDecoder', 'EoMTSegmentor')
KINDS = {
    'detector': ('RetinaNet',),
    'instance segmentor': ('MaskRCNN', WITH_QUERIES),
    'segmentor': SEGMENTORS,
    'classifier': ('ImageClassifier',),
}
SHOWN = 10  # classes
ORIGIN = 'published_model'
"""Variable of a config: name of the published model that it trains."""
# Of a model: the backbone is compared by its weights; the others depend on data and classes.
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
    """A published model, with heads for the classes of the data.

    Args:
        name: Of the published model.
        weights: Its name, or the checkpoint of a training that began with it.
        model: Value of ``model`` in a config.
        data_preprocessor: Value beside the model, of a classifier; else ``None``.
        remark: Line to print.
    """

    name: str
    weights: str
    model: dict[str, Any]
    data_preprocessor: dict[str, Any] | None
    remark: str

    @property
    def is_column(self) -> bool:
        """``True`` for a ViT, ``False`` for a pyramid."""
        return self.model['backbone']['type'] in COLUMNS

    @property
    def has_queries(self) -> bool:
        """``True`` for a model that has queries in place of anchors."""
        return bool(self.model['type'] == WITH_QUERIES)

    @property
    def out_channels(self) -> tuple[int, ...]:
        """Channels of each output of the backbone."""
        channels: tuple[int, ...] = build_backbone(self.model['backbone']).out_channels
        return channels

    @property
    def ratios(self) -> list[float]:
        """Shapes of the anchors of a detector, height / width: the head has rows for each."""
        ratios: list[float] = self.model['bbox_head']['anchor_generator']['ratios']
        return ratios


@dataclass(frozen=True)
class Published:
    """A published model that weights are of.

    Args:
        name: Of the model.
        weights: Its name, or the checkpoint of a training that began with it.
        config: Of the model.
        anchors: Of a training: fields of its anchors; else ``None``.
    """

    name: str
    weights: str
    config: Config
    anchors: dict[str, Any] | None = None


def find_published(task: str, weights: str) -> Published | None:
    """The published model, of the kind that a task trains, that weights are of; else ``None``.

    ``weights`` are its name, or a training's checkpoint whose model is this one, classes and
    anchors apart. Only configs are read, and that of a checkpoint as literals.
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
    """Why ``cpvt train`` refuses weights as those of the whole model of a config; '' if it takes
    them.
    """
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
    """What a training from a published model keeps of it: all but classes and rates of dropout."""
    backbone = model.get('backbone')
    kept = backbone if isinstance(backbone, Mapping) else {}
    kept = {key: value for key, value in kept.items() if key not in NOT_OF_WEIGHTS}
    return without_classes(model), without_classes(kept)


def anchors_of(task: str, trained: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the anchors of a trained model, whose layers have learned them; {} without any.

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
    """A finite number; else ``ValueError``."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f'{number} is no number')
    return number


def without_classes(node: Any) -> Any:
    """A model without what may differ between two data sets, as plain dicts and lists."""
    if isinstance(node, Mapping):
        return {
            key: without_classes(value) for key, value in node.items() if key not in _OF_CLASSES
        }
    return [*map(without_classes, node)] if isinstance(node, (list, tuple)) else node


def read_model(published: Published, classes: Sequence[str]) -> WholeModel:
    """The model of a published config with heads for other classes."""
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
    """The model of a published config with other classes, and its ``data_preprocessor`` if that
    stands beside it.
    """
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
    """Change the classes in a dict of a model, and what is of the publisher's machines."""
    part.pop('_scope_', None)
    if 'num_classes' in part:
        part['num_classes'] = classes
    if part.get('type') == 'SyncBN':
        part['type'] = 'BN'  # the same weights, without a process group
    part.pop('batch_augments', None)  # pads to the publisher's size


def _adapt_segmentor(model: dict[str, Any], classes: int) -> None:
    """Change the value of no class, and the padding of images to the publisher's size."""
    for name in ('decode_head', 'auxiliary_head'):
        heads = model.get(name) or []
        for head in heads if isinstance(heads, list) else [heads]:
            head['ignore_index'] = no_class_of(classes)
    model['data_preprocessor'].pop('size', None)
    model['data_preprocessor']['size_divisor'] = 32


def _adapt_queries(model: dict[str, Any], classes: int) -> None:
    """Predict instances, whatever the publisher's model does, on images without black squares: the
    training has none.
    """
    head = model['panoptic_head']
    head.pop('class_order', None)
    head.update(num_things_classes=classes, num_stuff_classes=0)
    model['test_cfg'].update(panoptic_on=False, instance_on=True, square=None)

"""The model of a config, from a published model that is taken as a whole."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmengine.config import Config

from cpvt_backbones.toolboxes import dataset_metainfo, dicts_of, read_config
from cpvt_backbones.weights import published_weights

from ..read.masks import no_class_of
from .weights import COLUMNS, build_backbone

# Models that the template of a task fits.
KINDS = {
    'detector': 'RetinaNet',
    'instance segmentor': 'MaskRCNN',
    'segmentor': 'EncoderDecoder',
    'classifier': 'ImageClassifier',
}
SHOWN = 10  # classes


@dataclass(frozen=True)
class WholeModel:
    """A published model, with heads for the classes of the data.

    Args:
        name: Of the published model.
        model: Value of ``model`` in a config.
        data_preprocessor: Value beside the model, of a classifier; else ``None``.
        remark: Line to print.
    """

    name: str
    model: dict[str, Any]
    data_preprocessor: dict[str, Any] | None
    remark: str

    @property
    def is_column(self) -> bool:
        """``True`` for a ViT, ``False`` for a pyramid."""
        return self.model['backbone']['type'] in COLUMNS

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


def config_for(task: str, weights: str | None) -> Config | None:
    """Config of weights that are a published model of the kind that a task trains, else ``None``.

    Only the config is read.
    """
    published = published_weights().get(weights or '')
    cfg = read_config(published.config_file) if published else None
    return cfg if cfg is not None and cfg.model.type == KINDS[task] else None


def read_model(name: str, cfg: Config, classes: Sequence[str]) -> WholeModel:
    """The model of a published config with heads for other classes."""
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
        _adapt(part, len(classes))
    if model['type'] == 'EncoderDecoder':
        _adapt_segmentor(model, len(classes))
    theirs = dataset_metainfo(cfg).get('classes') or ()
    kept = [one for one in classes if one in theirs]
    shown = ', '.join(kept[:SHOWN]) + (', ...' if len(kept) > SHOWN else '')
    remark = (
        f'trunk, neck and heads of {name} (licence: {published_weights()[name].license});'
        f' classes that keep their rows of the last layer: {shown or "none"}'
    )
    return WholeModel(name, model, beside, remark)


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

"""A config that goes on from the whole model of a training, not from its backbone alone."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..decide.weights import Pretrained

# Of a model: the backbone is compared by its weights; the others depend on data and classes.
_OF_CLASSES = (
    'backbone',
    'num_classes',
    'anchor_generator',
    'ignore_index',
    'init_cfg',
    'data_preprocessor',
    'train_cfg',
    'test_cfg',
    '_scope_',
)


def continue_training(
    task: str, pretrained: Pretrained | None, file: Path
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Fields of the template, and texts, to go on from the whole model of a training.

    ``None`` if the config has another model than the training had, classes and anchors apart. The
    anchors stay those of the training, because the layers of the boxes have learned them.

    Args:
        task: A key of ``TEMPLATES``.
        pretrained: The backbone of other weights than shipped ones, if of a training's checkpoint.
        file: The config, written for this backbone.
    """
    from mmengine.config import Config

    if pretrained is None or pretrained.trained is None:
        return None
    trained: Any = pretrained.trained
    config = Config.fromfile(file, import_custom_modules=False)
    if _without_classes(config.model.to_dict()) != _without_classes(trained):
        return None
    fields: dict[str, Any] = {}
    try:
        if task == 'detector':
            anchors = trained['bbox_head']['anchor_generator']
            fields['anchor'] = _number(anchors['octave_base_scale'])
            fields['ratios'] = [_number(ratio) for ratio in anchors['ratios']]
        elif task == 'instance segmentor':
            (scale,) = trained['rpn_head']['anchor_generator']['scales']
            fields['anchor'] = _number(scale)
    except (KeyError, TypeError, ValueError):
        return None
    backbone = dict(pretrained.arguments, init_cfg=None)
    return fields, dict(load_from=pretrained.arguments['init_cfg'], backbone=backbone)


def _number(value: Any) -> float:
    """A finite number, which stands in the source of the config; else ``ValueError``."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f'{number} is no number')
    return number


def _without_classes(node: Any) -> Any:
    """A model without what may differ between two data sets, as plain dicts and lists."""
    if isinstance(node, Mapping):
        return {
            key: _without_classes(value) for key, value in node.items() if key not in _OF_CLASSES
        }
    return [*map(_without_classes, node)] if isinstance(node, (list, tuple)) else node

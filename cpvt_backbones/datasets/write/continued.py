"""A config that goes on from the whole model of a training, not from its backbone alone."""

from pathlib import Path
from typing import Any

from ..decide.weights import Pretrained
from ..decide.whole import anchors_of, without_classes


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
    if without_classes(config.model.to_dict()) != without_classes(trained):
        return None
    try:
        fields = anchors_of(task, trained)
    except (KeyError, TypeError, ValueError):
        return None
    backbone = dict(pretrained.arguments, init_cfg=None)
    return fields, dict(load_from=pretrained.arguments['init_cfg'], backbone=backbone)

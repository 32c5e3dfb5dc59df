"""Checks labels before the loss, because torch names neither image nor classes of a wrong label."""

from collections.abc import Iterator, Sequence
from logging import Logger
from typing import Any, NamedTuple

import torch
from torch import nn

from cpvt_backbones.errors import InputError


class Classes(NamedTuple):
    """Labels that a model accepts: 0 to ``number - 1``, and ``ignored``."""

    number: int
    ignored: int | None


def classes_of_head(model: nn.Module) -> Classes | None:
    """Return the classes of a model's head; ``None`` if no head has ``num_classes``.

    Proposal, auxiliary and semantic heads do not count, because they have their own classes.
    """
    others = ('rpn', 'auxiliary', 'semantic')
    found = []
    for name, module in model.named_modules():
        count = getattr(module, 'num_classes', None)
        if 'head' not in name.partition('.')[0] or any(other in name for other in others):
            continue
        if isinstance(count, int):
            # A single class is distinguished from the background: labels are 0 and 1.
            found.append(Classes(max(count, 2), getattr(module, 'ignore_index', None)))
    return max(found, key=lambda classes: classes.number, default=None)


def check_labels(samples: Sequence[Any], classes: Classes) -> None:
    """Refuse labels outside the classes; labels on a GPU are not checked, which would block.

    Args:
        samples: Data samples of mmdet, mmseg or mmpretrain.
        classes: Classes of the model's head.

    Raises:
        InputError: A label is outside the classes; the message names image, label and classes.
    """
    for sample in samples:
        for labels in _labels_of(sample):
            wrong = _first_outside(labels, classes)
            if wrong is not None:
                _refuse(sample, wrong, classes)


def _first_outside(labels: Any, classes: Classes) -> int | None:
    """Return the first label that is neither a class nor ignored."""
    # A subclass may be a fake tensor, which has no values.
    if type(labels) is not torch.Tensor or labels.device.type != 'cpu':
        return None
    values = labels.detach().numpy().ravel()
    if values.dtype.kind not in 'iu':
        return None
    # As unsigned numbers, negative labels exceed all classes: one comparison, 0.2 ms for 512 x 512.
    outside = values.view(f'u{values.dtype.itemsize}') >= classes.number
    if classes.ignored is not None:
        outside &= values != classes.ignored
    return int(values[outside.argmax()]) if outside.any() else None


def _labels_of(sample: Any) -> Iterator[Any]:
    if 'gt_instances' in sample:
        yield sample.gt_instances.get('labels')
    elif 'gt_sem_seg' in sample:
        yield sample.gt_sem_seg.get('data')
    elif 'gt_label' in sample:
        yield sample.gt_label


def _refuse(sample: Any, label: int, classes: Classes) -> None:
    image = getattr(sample, 'img_path', None) or 'an image without img_path'
    ignored = '' if classes.ignored is None else f', and ignore_index is {classes.ignored}'
    raise InputError(
        f'label {label} of {image!r} is not a class: the model has {classes.number} classes, 0 to'
        f' {classes.number - 1}{ignored}'
    )


def note_ignored(model: nn.Module, samples: Sequence[Any], logger: Logger) -> bool:
    """Warn that a model trains ignored objects as background.

    Heads with anchors or queries of this package leave them out of the loss; see
    :mod:`cpvt_backbones.heads.ignored`. Other heads of mmdet do not.

    Args:
        model: The detector.
        samples: Data samples of a batch.
        logger: Gets the warning.

    Returns:
        ``True`` after the first batch with ignored objects; no further call is needed.
    """
    count = sum(len(getattr(sample, 'ignored_instances', ())) for sample in samples)
    if not count:
        return False
    parts = list(_parts_of_loss(model))
    unaware = sorted({type(part).__name__ for part in parts if not _handles_ignored(part)})
    if unaware:
        logger.warning(
            f'{count} objects of the first batch with such objects are to be ignored, and are'
            f' trained as background: {", ".join(unaware)} of the model takes no notice of them'
            ' (docs/mmdet.md#ignored-objects)'
        )
    return True


def _handles_ignored(part: Any) -> bool:
    return getattr(part, 'handles_ignored', False)


def _parts_of_loss(model: nn.Module) -> Iterator[Any]:
    """List the modules that decide what is background: assigners, and heads without one."""
    for module in model.modules():
        assigners = getattr(module, 'bbox_assigner', None) or getattr(module, 'assigner', None)
        if _handles_ignored(module):
            yield module
        elif assigners is not None:
            yield from assigners if isinstance(assigners, list) else [assigners]
        elif hasattr(module, 'loss_cls') and hasattr(module, 'prior_generator'):
            yield module

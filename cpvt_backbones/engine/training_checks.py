"""Checks that end a training early: wrong weights, classes or channels, and losses of NaN."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from mmengine.hooks import CheckpointHook, Hook
from mmengine.runner import BaseLoop, Runner
from torch import nn

from cpvt_backbones.checkpoints import (
    CheckpointError,
    check_loaded,
    classes_of,
    unwrap,
    warn_of_other_normalisation,
)
from cpvt_backbones.checkpoints.classes import SAME_CLASSES, class_difference, stored_meta
from cpvt_backbones.checks import check_keywords
from cpvt_backbones.errors import InputError
from cpvt_backbones.toolboxes import check_neck, dicts_of, published_classes

from .class_names import check_runner_classes
from .labels import classes_of_head, note_ignored
from .resume_checks import check_resumable, check_training_state, is_split
from .resuming import PROGRESS
from .schedule_checks import warn_of_schedule
from .valid_sizes import ValidSizes


class NotFiniteError(InputError):
    """Raised if a loss, a gradient norm or a weight is NaN or infinite."""


class TrainingCheckHook(Hook):
    """Ends a training early if its parts do not fit, or if a loss is not finite.

    :class:`ResumableRunner` adds this hook. With mmengine's ``Runner``, a config names it first in
    ``custom_hooks``. A training ends for one of these reasons:

    - ``neck.in_channels`` differs from the channels of the backbone.
    - The classes of a data set differ in names or order from those of its annotations, its metrics,
      the training data or a teacher.
    - ``num_classes`` of a head differs from the number of classes of the training data.
    - No training image of a detector has an object of the classes.
    - A checkpoint of ``load_from`` or ``resume`` belongs to another kind of model, has other
      shapes, or has values that are NaN, infinite or integers.
    - A training is resumed with other classes, or with a checkpoint that does not fit its
      optimizer.
    - A loss, or a gradient norm without loss scaling, is NaN or infinite (:class:`NotFiniteError`).

    A warning is logged if the data preprocessor's mean or deviation are not those with which the
    config's weights were trained, or if the learning rate's schedule ends before or after the
    training.

    ``load_from`` may name a model with other classes, or with the same classes in another order.
    Layers that depend on the classes then start from random weights, and the log names them.
    """

    priority = 'HIGHEST'  # sees a checkpoint before a hook loads its average
    _noted_ignored = False

    def before_run(self, runner: Runner) -> None:
        """Compare the neck with the backbone."""
        check_neck(unwrap(runner.model), runner.cfg.get('model'))

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Check a checkpoint before its weights are loaded."""
        check_checkpoint(runner, checkpoint)

    def before_train(self, runner: Runner) -> None:
        """Compare the data sets with their annotations, and the heads with the data sets.

        Compare the schedule with the length of the training.

        Pass the classes of the models to their data preprocessors, which check labels.
        """
        warn_of_schedule(runner)
        tell_classes(unwrap(runner.model))
        check_runner_classes(runner)
        dataset = runner.train_dataloader.dataset
        if not _has_chosen_bands(dataset):
            for checkpoint in _named_weights(runner):
                warn_of_other_normalisation(unwrap(runner.model), checkpoint)
        classes = classes_of(getattr(dataset, 'metainfo', None))
        if classes is None:
            return
        if runner._resume:  # DeepSpeed shows no checkpoint to the hooks
            progress = runner.message_hub.runtime_info.get(PROGRESS) or {}
            check_classes(progress.get('classes'), classes, runner._load_from)
        check_objects(dataset, classes)
        check_heads(unwrap(runner.model), classes, 'train_dataloader.dataset')

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """Raise :class:`NotFiniteError` for a loss or a gradient norm that is not finite.

        Warn once if the model trains ignored objects as background.
        """
        if not self._noted_ignored and isinstance(data_batch, dict):
            samples = data_batch.get('data_samples')
            if isinstance(samples, list):
                self._noted_ignored = note_ignored(runner.model, samples, runner.logger)
        found = next(_not_finite(runner, outputs), None)
        if found is None:
            return
        rates = runner.optim_wrapper.get_lr()
        rates = sorted(
            {rate for group in rates.values() for rate in group if isinstance(rate, float)}
        )
        shown = ', '.join(f'{rate:.4g}' for rate in rates)
        raise NotFiniteError(
            f'{found} in iteration {runner.iter + 1}, at learning rate {shown}, with the images '
            f'{_images(data_batch)}; the checkpoints in {runner.work_dir!r} are kept; '
            'lower the learning rate, or clip the gradients (optim_wrapper.clip_grad)'
        )


def check_options(hook: CheckpointHook) -> None:
    """Refuse unknown options of a checkpoint hook.

    mmengine's hook passes them to the first save, which fails after the time of its interval.

    Raises:
        TypeError: There is an unknown option.
    """
    check_keywords(type(hook).__name__, CheckpointHook, hook.args, listed_only=True)


def _named_weights(runner: Runner) -> list[str]:
    """Return the weights of a training: ``load_from``, or those in the config of a trunk."""
    if runner._load_from:
        return [str(runner._load_from)]
    model = runner.cfg.get('model') or {}
    backbone = model.get('backbone') or {}
    named = [model.get('pretrained'), model.get('init_cfg')]
    for part in dicts_of(backbone):
        named += [part.get('pretrained'), part.get('init_cfg'), part.get('checkpoint')]
    return [*dict.fromkeys(one for one in named if isinstance(one, str))]


def _has_chosen_bands(dataset: Any) -> bool:
    """``True`` if the images are chosen bands of a file rather than RGB."""
    while hasattr(dataset, 'dataset'):  # RepeatDataset and the like
        dataset = dataset.dataset
    steps = getattr(getattr(dataset, 'pipeline', None), 'transforms', ())
    ranges = [getattr(step, 'value_range', None) for step in steps]
    return any(one is not None and one.bands is not None for one in ranges)


def check_checkpoint(runner: Runner, checkpoint: dict[str, Any]) -> None:
    """Check a checkpoint to be loaded or resumed; replace weights of other classes.

    Raises:
        CheckpointError: The checkpoint does not fit the model, or the training to resume.
    """
    if runner._resume:
        check_training_state(checkpoint, runner._load_from)
    classes = None
    training = isinstance(runner._train_loop, BaseLoop)
    if training:
        classes = classes_of(getattr(runner.train_dataloader.dataset, 'metainfo', None))
    fresh = training and not runner._resume
    if not is_split(runner):
        check_loaded(
            checkpoint,
            runner.model,
            runner._load_from,
            other_classes=fresh,
            classes=classes,
            stored_classes=_stored_classes(runner, classes or []) if fresh else None,
        )
    elif runner._resume:
        meta = stored_meta(checkpoint, runner._load_from)
        check_classes(classes_of(meta), classes, runner._load_from)
    if runner._resume and training:
        check_resumable(checkpoint, runner)


def _stored_classes(runner: Runner, ours: Sequence[str]) -> list[str] | None:
    """Return the classes of the rows of a published model.

    ``None`` if they share none with ``ours``, for example codes instead of names, or if the model
    permutes its classes itself.
    """
    modules = unwrap(runner.model).modules()
    if any(getattr(module, 'class_order', None) is not None for module in modules):
        return None
    theirs = published_classes(str(runner._load_from))
    return theirs if theirs is not None and {*theirs} & {*ours} else None


def check_classes(theirs: list[str] | None, ours: list[str] | None, file: Any) -> None:
    """Raise ``CheckpointError`` for a checkpoint with other classes, or in another order."""
    difference = class_difference(theirs, ours)
    if difference:
        raise CheckpointError(f'resume: {file!r}: {difference}; {SAME_CLASSES}')


def tell_classes(model: nn.Module) -> None:
    """Pass a model's classes to its data preprocessors, which check labels."""
    for parent in model.modules():
        for part in parent.children():
            if isinstance(part, ValidSizes):
                part.classes = classes_of_head(parent)


def check_heads(model: nn.Module, classes: Sequence[str], dataset_key: str) -> None:
    """Compare each head, and a teacher, with the classes of a data set.

    Args:
        model: The whole model.
        classes: Names of the data set's classes.
        dataset_key: Key of the data set in the config, for the error.

    Raises:
        ValueError: ``num_classes`` of a head is another number, or a teacher's weights have other
            names.
    """
    for name, module in model.named_modules():
        taught = getattr(module, 'taught_classes', None)
        if taught is not None and taught() not in (None, list(classes)):
            raise InputError(
                f'model.teacher knows the classes ({", ".join(taught())}), {dataset_key} has'
                f' ({", ".join(classes)}); give teacher_classes the index of each'
            )
        count = getattr(module, 'num_classes', None)
        parts = name.removeprefix('module.').split('.')
        # Proposal and semantic heads have their own classes.
        if 'head' not in parts[0] or any('rpn' in part or 'semantic' in part for part in parts):
            continue
        if isinstance(count, int) and count != len(classes):
            key = f'model.{".".join(parts)}.num_classes'
            shown = ', '.join(map(str, classes[:5])) + (', ...' if len(classes) > 5 else '')
            wanted = f'{len(classes)}, the number of {dataset_key}.metainfo.classes ({shown})'
            raise InputError(f'{key} must be {wanted}, got {count}')


def check_objects(dataset: Any, classes: Sequence[str]) -> None:
    """Refuse a detector's data without objects, because a class name may not match.

    Args:
        dataset: Data set of mmdet, or a wrapper; others are not checked.
        classes: Class names of the data set.

    Raises:
        ValueError: No image has an object.
    """
    read = getattr(dataset, 'get_data_info', None)
    if read is None or not len(dataset) or 'instances' not in read(0):
        return
    for index in range(len(dataset)):
        if any(not one.get('ignore_flag') for one in read(index)['instances']):
            return
    shown = ', '.join(map(str, classes[:5])) + (', ...' if len(classes) > 5 else '')
    file = getattr(dataset, 'ann_file', None)
    named = f' of {file!r}' if file else ''
    raise InputError(
        f'train_dataloader.dataset: none of the {len(dataset)} images{named} has an object of the'
        f' classes ({shown}); metainfo.classes must be names of the annotations'
    )


def check_weights(runner: Runner, iteration: int) -> None:
    """Raise :class:`NotFiniteError` if the weights after an iteration are NaN or infinite."""
    for name, value in chain(runner.model.named_parameters(), runner.model.named_buffers()):
        own = value.to_local() if hasattr(value, 'to_local') else value  # with FSDP, a part of them
        if own.is_floating_point() and not own.isfinite().all():
            raise NotFiniteError(
                f'{name} is NaN or infinite after iteration {iteration}; no checkpoint is written, '
                f'and the earlier ones in {runner.work_dir!r} are kept'
            )


def _not_finite(runner: Runner, outputs: Any) -> Iterator[str]:
    """List names and values of losses and gradient norms that are not finite."""
    losses = outputs if isinstance(outputs, dict) else {}
    for name, value in losses.items():
        if 'loss' in name and isinstance(value, (float, torch.Tensor)) and not _is_finite(value):
            yield f'{name} is {float(torch.as_tensor(value).detach().sum())}'
    # With loss scaling an infinite norm is normal: the update is skipped and the scale lowered.
    norm = runner.message_hub.log_scalars.get('train/grad_norm')
    if norm is not None and not hasattr(runner.optim_wrapper, 'loss_scaler'):
        value = norm.current()
        if not math.isfinite(value):
            yield f'the gradient norm is {value}'


def _is_finite(value: float | torch.Tensor) -> bool:
    return bool(torch.as_tensor(value).isfinite().all())


def _images(batch: Any) -> str:
    """List the files of a batch from the toolboxes' data samples."""
    samples = batch.get('data_samples') if isinstance(batch, dict) else None
    samples = samples if isinstance(samples, Iterable) else ()
    paths = [getattr(sample, 'img_path', None) for sample in samples]
    return ', '.join(repr(str(path)) for path in paths if path) or '(their files are not known)'

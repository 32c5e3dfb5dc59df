"""What ends a training early: weights, classes and channels that do not fit, losses that are not
finite.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from itertools import chain
from numbers import Real
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper
from mmengine.runner import BaseLoop, EpochBasedTrainLoop, Runner
from torch import nn

from cpvt_backbones.checkpoints import CheckpointError, check_loaded, classes_of
from cpvt_backbones.errors import InputError
from cpvt_backbones.toolboxes import check_neck

from .class_names import check_runner_classes
from .resuming import PROGRESS, wrappers_of

# Statistics of optimizers that have the shape of their parameter.
_LIKE_PARAMETER = {'exp_avg', 'exp_avg_sq', 'max_exp_avg_sq', 'momentum_buffer', 'square_avg'}


class NotFiniteError(InputError):
    """Raised when a loss, a gradient norm or a weight of a training is NaN or infinite."""


class TrainingCheckHook(Hook):
    """Ends a training early if its parts do not fit, or if a loss is not finite.

    ``tools/train.py`` adds this hook, and :class:`DurableCheckpointHook` makes the same checks. A
    config does not name it. A training ends for one of these reasons:

    - ``neck.in_channels`` differs from the channels of the backbone.
    - The classes of a data set differ, by a name or by their order, from those of its annotations,
      of its metrics, of the training data or of a teacher.
    - ``num_classes`` of a head differs from the number of classes of the training data.
    - No training image of a detector has an object of the classes.
    - A checkpoint of ``load_from`` or ``resume`` is of another kind of model, has other shapes, or
      has values that are NaN, infinite or integers.
    - A training is resumed with other classes, or with a checkpoint that its optimizer does not
      fit.
    - A loss, or without loss scaling a gradient norm, is NaN or infinite (:class:`NotFiniteError`).

    ``load_from`` may name a model of other classes, or of the same classes in another order. The
    layers that depend on the classes then start from random weights, and the log names them.
    """

    def before_run(self, runner: Runner) -> None:
        """Compare the neck with the backbone.

        Let whatever fails in a resume name the checkpoint.
        """
        if isinstance(runner, Runner):  # FlexibleRunner builds its model later
            check_neck(runner.model, runner.cfg.get('model'))
            runner.resume = _naming_file(runner.resume)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Check the weights; drop those of other classes."""
        if not isinstance(runner, Runner):  # FlexibleRunner, whose model may be split
            return
        if runner._resume:
            _check_training_state(checkpoint, runner._load_from)
        classes = None
        training = isinstance(runner._train_loop, BaseLoop)
        if training:
            classes = classes_of(getattr(runner.train_dataloader.dataset, 'metainfo', None))
        check_loaded(
            checkpoint,
            runner.model,
            runner._load_from,
            other_classes=training and not runner._resume,
            classes=classes,
        )
        if runner._resume:
            _check_resumable(checkpoint, runner)

    def before_train(self, runner: Runner) -> None:
        """Compare the data sets with their annotations, and the heads with the data sets."""
        check_runner_classes(runner)
        dataset = runner.train_dataloader.dataset
        classes = classes_of(getattr(dataset, 'metainfo', None))
        if classes is None:
            return
        check_objects(dataset, classes)
        check_heads(runner.model, classes, 'train_dataloader.dataset')

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """Stop at a loss or a gradient norm that is not finite."""
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


def check_heads(model: nn.Module, classes: Sequence[str], place: str) -> None:
    """Compare each head with the classes of a data set, and a teacher with those of a training.

    Args:
        model: The whole model.
        classes: Names of the data set's classes.
        place: Key of the data set in the config, for the error.

    Raises:
        ValueError: ``num_classes`` of a head is another number. The weights of a teacher say other
            names.
    """
    for name, module in model.named_modules():
        taught = getattr(module, 'taught_classes', None)
        if taught is not None and taught() not in (None, list(classes)):
            raise InputError(
                f'model.teacher knows the classes ({", ".join(taught())}), {place} has'
                f' ({", ".join(classes)}); give teacher_classes the index of each'
            )
        count = getattr(module, 'num_classes', None)
        parts = name.removeprefix('module.').split('.')
        # A proposal or a semantic head has classes of its own.
        if 'head' not in parts[0] or any('rpn' in part or 'semantic' in part for part in parts):
            continue
        if isinstance(count, int) and count != len(classes):
            key = f'model.{".".join(parts)}.num_classes'
            shown = ', '.join(map(str, classes[:5])) + (', ...' if len(classes) > 5 else '')
            wanted = f'{len(classes)}, the number of {place}.metainfo.classes ({shown})'
            raise InputError(f'{key} must be {wanted}, got {count}')


def check_objects(dataset: Any, classes: Sequence[str]) -> None:
    """Refuse data of a detector without any object: a class name may differ from the annotations'.

    Args:
        dataset: mmdet's, or a wrapper of such; others are not looked at.
        classes: Its class names.

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
        own = value.to_local() if hasattr(value, 'to_local') else value  # a part, with FSDP
        if own.is_floating_point() and not own.isfinite().all():
            raise NotFiniteError(
                f'{name} is NaN or infinite after iteration {iteration}; no checkpoint is written, '
                f'and the earlier ones in {runner.work_dir!r} are kept'
            )


def _not_finite(runner: Runner, outputs: Any) -> Iterator[str]:
    """Names and values of losses and gradient norms that are not finite."""
    losses = outputs if isinstance(outputs, dict) else {}
    for name, value in losses.items():
        if 'loss' in name and isinstance(value, (float, torch.Tensor)) and not _is_finite(value):
            yield f'{name} is {float(torch.as_tensor(value).detach().sum())}'
    # With a loss scale an infinite norm is usual: the update is passed over, the scale lowered.
    norm = runner.message_hub.log_scalars.get('train/grad_norm')
    if norm is not None and not hasattr(runner.optim_wrapper, 'loss_scaler'):
        value = norm.current()
        if not math.isfinite(value):
            yield f'the gradient norm is {value}'


def _is_finite(value: float | torch.Tensor) -> bool:
    return bool(torch.as_tensor(value).isfinite().all())


def _images(batch: Any) -> str:
    """Files of a batch, as the toolboxes' samples name them."""
    samples = batch.get('data_samples') if isinstance(batch, dict) else None
    samples = samples if isinstance(samples, Iterable) else ()
    paths = [getattr(sample, 'img_path', None) for sample in samples]
    return ', '.join(repr(str(path)) for path in paths if path) or '(their files are not known)'


def _naming_file(resume: Callable[..., None]) -> Callable[..., None]:
    """Wrap ``Runner.resume``: an error names the checkpoint in one line."""

    @wraps(resume)
    def resume_or_name(filename: str, *args: Any, **options: Any) -> None:
        try:
            resume(filename, *args, **options)
        except (OSError, ValueError):  # these name the file
            raise
        except Exception as error:
            problem = f'{type(error).__name__}: {error}'
            raise CheckpointError(
                f'resume: {filename!r} does not fit this training: {problem}'
            ) from error

    return resume_or_name


# -- checkpoints to resume from


def _check_training_state(checkpoint: dict[str, Any], file: Any) -> None:
    """Refuse a file of weights alone."""
    meta = checkpoint.get('meta')
    if not isinstance(meta, dict) or 'iter' not in meta:
        raise CheckpointError(f'resume: {file!r} holds no training to resume (no meta.iter)')


def _check_resumable(checkpoint: dict[str, Any], runner: Runner) -> None:
    """Refuse a checkpoint that this training cannot go on from.

    Raises:
        CheckpointError: Names the file, the entry, what it holds and what is accepted.
    """
    file = runner._load_from

    def refuse(problem: str) -> CheckpointError:
        return CheckpointError(f'resume: {file!r} cannot be resumed: {problem}')

    meta = checkpoint['meta']
    _check_meta(meta, runner.train_loop, refuse)
    info = _runtime_info(checkpoint.get('message_hub'), refuse)
    _check_progress(info.get(PROGRESS), meta['iter'], refuse)
    for part, wrapper in wrappers_of(runner):
        state = checkpoint.get('optimizer')
        if state is None:
            raise refuse('it has no optimizer state; take its weights by load_from')
        if part is not None:
            state = state.get(part) if isinstance(state, dict) else None
        _check_optimizer(state, wrapper, refuse)
    _check_schedules(checkpoint.get('param_schedulers'), refuse)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**48


def _check_meta(meta: dict[str, Any], loop: Any, refuse: Any) -> None:
    for key in ('epoch', 'iter'):
        if not _is_count(meta.get(key)):
            raise refuse(f'meta.{key} must be an integer of at least 0, got {meta.get(key)!r:.80}')
    if not (meta.get('seed') is None or _is_count(meta['seed'])):
        raise refuse(f'meta.seed must be an integer of at least 0, got {meta["seed"]!r:.80}')
    unit = 'epoch' if isinstance(loop, EpochBasedTrainLoop) else 'iter'
    limit: int = getattr(loop, f'max_{unit}s')
    if meta[unit] > limit:
        raise refuse(f'it is of {unit} {meta[unit]}, beyond train_cfg.max_{unit}s={limit}')


def _runtime_info(hub: Any, refuse: Any) -> dict[str, Any]:
    parts = ('log_scalars', 'runtime_info', 'resumed_keys')
    if not isinstance(hub, dict) or not all(isinstance(hub.get(part), dict) for part in parts):
        raise refuse('message_hub must be a dict of log_scalars, runtime_info and resumed_keys')
    info: dict[str, Any] = hub['runtime_info']
    for key, value in info.items():
        if str(key).startswith('best_score') and not _is_number(value):
            raise refuse(f'{key} must be a number, got {value!r:.80}')
    return info


def _check_progress(progress: Any, iterations: int, refuse: Any) -> None:
    if progress is None:
        return
    counts: list[Any] = [None]
    if isinstance(progress, dict):
        counts = [progress.get('samples'), progress.get('batch')]
    # Passing over the samples takes time. A batch, of all processes, has at most 2^20.
    if not all(map(_is_count, counts)) or counts[0] > 2**20 * iterations:
        raise refuse(f'{PROGRESS} must hold the counts samples and batch, got {progress!r:.80}')


def _check_optimizer(state: Any, wrapper: OptimWrapper, refuse: Any) -> None:
    """Compare the state of an optimizer with the one of the config."""
    kind = type(wrapper.optimizer).__name__
    saved = state.get('param_groups') if isinstance(state, dict) else None
    if not isinstance(saved, list) or not all(isinstance(group, dict) for group in saved):
        raise refuse('optimizer must be a dict of state and param_groups')
    groups = wrapper.optimizer.param_groups
    if len(saved) != len(groups):
        raise refuse(
            f'its optimizer has {len(saved)} groups of parameters, {kind} here {len(groups)}'
        )
    for number, (group, expected) in enumerate(zip(saved, groups, strict=True)):
        params = group.get('params')
        if not isinstance(params, list) or len(params) != len(expected['params']):
            raise refuse(
                f'group {number} of its optimizer has other parameters than the'
                f' {len(expected["params"])} of this model'
            )
        _check_options(group, wrapper.optimizer, refuse)
    _check_statistics(state.get('state'), saved, groups, refuse)


def _check_options(group: dict[str, Any], optimizer: torch.optim.Optimizer, refuse: Any) -> None:
    """Refuse the options of another optimizer, and values that are no finite numbers."""
    kind = type(optimizer).__name__
    for key, default in optimizer.defaults.items():
        # Switches come and go with the versions of torch, which fills them in.
        if default is None or isinstance(default, (bool, str)):
            continue
        if key not in group:
            raise refuse(f'its optimizer is another one than {kind}: it has no {key}')
        values = group[key] if isinstance(group[key], (list, tuple)) else [group[key]]
        count = len(default) if isinstance(default, (list, tuple)) else 1
        if len(values) != count or not all(_is_finite_number(value) for value in values):
            raise refuse(
                f'{key} of its optimizer must be finite like {default}, got {group[key]!r:.80}'
            )


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) or (isinstance(value, torch.Tensor) and value.numel() == 1)


def _is_finite_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and bool(value.isfinite())
    return isinstance(value, (int, float)) and math.isfinite(value)


def _check_statistics(state: Any, saved: list, groups: list, refuse: Any) -> None:
    """Compare the shapes of the running statistics; refuse NaN and infinity."""
    if not isinstance(state, dict):
        raise refuse('optimizer.state must be a dict')
    shapes = _shapes(saved, groups, refuse)
    for index, values in state.items():
        if not isinstance(values, dict) or index not in shapes:
            raise refuse(f'optimizer.state has an entry {index!r:.80} of no parameter')
        for key, value in values.items():
            _check_statistic(key, value, index, shapes[index], refuse)


def _shapes(saved: list, groups: list, refuse: Any) -> dict[int, torch.Size]:
    """Shape of each parameter, by its number in the saved groups."""
    shapes: dict[int, torch.Size] = {}
    for group, expected in zip(saved, groups, strict=True):
        for index, parameter in zip(group['params'], expected['params'], strict=True):
            if not isinstance(index, int):
                raise refuse(
                    f'optimizer.param_groups must number its parameters, got {index!r:.80}'
                )
            shapes[index] = parameter.shape
    return shapes


def _check_statistic(key: str, value: Any, index: int, shape: torch.Size, refuse: Any) -> None:
    if isinstance(value, (str, dict)):
        raise refuse(f'{key} of parameter {index} in its optimizer is {value!r:.80}')
    if not isinstance(value, torch.Tensor):
        return
    if key in _LIKE_PARAMETER and value.shape != shape:
        found, wanted = tuple(value.shape), tuple(shape)
        raise refuse(f'{key} of parameter {index} has the shape {found}, this model has {wanted}')
    if value.is_floating_point() and not value.isfinite().all():
        raise refuse(f'{key} of parameter {index} in its optimizer is NaN or infinite')


def _check_schedules(state: Any, refuse: Any) -> None:
    if state is None:
        return
    lists = list(state.values()) if isinstance(state, dict) else [state]
    for one in lists:
        if not isinstance(one, list) or not all(isinstance(schedule, dict) for schedule in one):
            raise refuse('param_schedulers must be a list of dicts')

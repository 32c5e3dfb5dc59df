"""What a resumed training takes from its checkpoint, checked against its config."""

import math
from collections.abc import Iterator
from copy import deepcopy
from numbers import Real
from typing import Any

import torch
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import EpochBasedTrainLoop, Runner

from cpvt_backbones.checkpoints import CheckpointError

PROGRESS = 'data_progress'
"""Key of the message hub: how far a training has read its data, and in batches of which size."""

# What a schedule changes as it goes on, in its own state and in the optimizer's options.
_MOVING = {'last_step', '_global_step', '_last_value', 'best', 'num_bad_epochs', 'cooldown_counter'}
_MOVING |= {'lr', 'momentum', 'betas'}
# Statistics of optimizers that have the shape of their parameter.
_LIKE_PARAMETER = {'exp_avg', 'exp_avg_sq', 'max_exp_avg_sq', 'momentum_buffer', 'square_avg'}


def check_training_state(checkpoint: dict[str, Any], file: Any) -> None:
    """Refuse a file of weights alone."""
    meta = checkpoint.get('meta')
    if not isinstance(meta, dict) or 'iter' not in meta:
        raise CheckpointError(f'resume: {file!r} holds no training to resume (no meta.iter)')


def check_resumable(checkpoint: dict[str, Any], runner: Runner) -> None:
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
    for part, wrapper in _wrappers(runner):
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


def _wrappers(runner: Runner) -> list[tuple[str | None, OptimWrapper]]:
    wrapper = runner.optim_wrapper
    if isinstance(wrapper, OptimWrapperDict):
        return list(wrapper.items())
    return [(None, wrapper)] if isinstance(wrapper, OptimWrapper) else []


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
        if len(values) != count or not all(_is_finite(value) for value in values):
            raise refuse(
                f'{key} of its optimizer must be finite like {default}, got {group[key]!r:.80}'
            )


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) or (isinstance(value, torch.Tensor) and value.numel() == 1)


def _is_finite(value: Any) -> bool:
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


def _schedules(runner: Runner) -> list[Any]:
    schedules = runner.param_schedulers
    if isinstance(schedules, dict):
        return [one for some in schedules.values() for one in some]
    return list(schedules or ())


class Schedule:
    """The schedule of a config as it is before the first iteration, to be compared and rebuilt.

    Args:
        runner: A training whose optimizer and schedules are built and not resumed yet.
    """

    def __init__(self, runner: Runner) -> None:
        self._states = [dict(one.state_dict()) for one in _schedules(runner)]
        self._groups = [deepcopy(group) for group in self._options(runner)]

    @staticmethod
    def _options(runner: Runner) -> Iterator[dict[str, Any]]:
        """Options of each group of parameters."""
        for _, wrapper in _wrappers(runner):
            for group in wrapper.optimizer.param_groups:
                yield {key: value for key, value in group.items() if key != 'params'}

    def differs(self, runner: Runner) -> bool:
        """True if the resumed schedules, or options of the optimizer, are not those of the
        config.
        """
        schedules = [one.state_dict() for one in _schedules(runner)]
        pairs = [*zip(self._states, schedules, strict=True)]
        pairs += zip(self._groups, self._options(runner), strict=True)
        return any(not _same(_definition(left), _definition(right)) for left, right in pairs)

    def rebuild(self, runner: Runner) -> None:
        """Set rates and schedules to what the config gives for the runner's epoch and iteration."""
        schedules = _schedules(runner)
        for schedule, state in zip(schedules, self._states, strict=True):
            vars(schedule).update(deepcopy(state))
        groups = [group for _, one in _wrappers(runner) for group in one.optimizer.param_groups]
        for group, options in zip(groups, self._groups, strict=True):
            group.update(deepcopy(options))
        by_epoch = [one for one in schedules if one.by_epoch and not _needs_metrics(one)]
        by_iteration = [one for one in schedules if not one.by_epoch]
        epochs = isinstance(runner.train_loop, EpochBasedTrainLoop)
        length = len(runner.train_dataloader)
        for one in schedules:  # mmengine warns of a schedule that is ahead of its optimizer
            one.optimizer._global_step = max(one.optimizer._global_step, runner.iter)
        for iteration in range(1, runner.iter + 1):
            for one in by_iteration:
                one.step()
            if epochs and iteration % length == 0 and iteration // length <= runner.epoch:
                for one in by_epoch:
                    one.step()


def _needs_metrics(schedule: Any) -> bool:
    return bool(getattr(schedule, 'need_val_args', False))


def _definition(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key not in _MOVING}


def _same(left: Any, right: Any) -> bool:
    try:
        return bool(left == right)
    except (RuntimeError, ValueError):  # arrays
        return False


def resume_data(runner: Runner, *, batch: int) -> int:
    """Set the iteration of a resumed training from the samples that it has read.

    Args:
        runner: The training, resumed.
        batch: Samples of an iteration on all processes.

    Returns:
        Batches that were read of the current pass over the data, to be passed over.
    """
    loop = runner.train_loop
    progress = runner.message_hub.runtime_info.get(PROGRESS)
    if not isinstance(loop, EpochBasedTrainLoop):
        if progress is None:
            return loop.iter
        if progress['batch'] != batch:
            runner.logger.warning(
                f'resume: batches have {batch} samples, they had {progress["batch"]}: training goes'
                f' on at iteration {loop.iter}, after the {progress["samples"]} samples it has read'
            )
        return progress['samples'] // batch
    length = len(runner.train_dataloader)
    start, iteration = loop.epoch * length, loop.iter
    if progress is None:
        read = 0
        if iteration != start:
            runner.logger.warning(
                f'resume: the checkpoint does not say how much of epoch {loop.epoch + 1} was read; '
                'the epoch starts again'
            )
    else:
        read = min(progress['samples'] // batch, length)
        if progress['batch'] != batch:
            where = (
                f'after {progress["samples"]} of its samples' if progress['samples'] else 'whole'
            )
            again = progress['samples'] - read * batch
            if again > 0:
                where += f', {again} of which are read again'
            runner.logger.warning(
                f'resume: batches have {batch} samples, they had {progress["batch"]}: '
                f'epoch {loop.epoch + 1} goes on {where}'
            )
    loop._iter = start + read
    if loop.iter != iteration:
        runner.logger.warning(
            f'resume: iteration {iteration} of the checkpoint is {loop.iter} here'
        )
    return read

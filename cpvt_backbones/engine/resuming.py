"""Restores data, schedule, gradients and random numbers of a resumed training."""

from copy import deepcopy
from typing import Any

from mmengine.dist import all_gather_object
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import EpochBasedTrainLoop, Runner

from .seeding import set_random_state

PROGRESS = 'data_progress'
"""Key in the message hub for the number of samples that were read, and the batch size."""

GRADIENTS = 'accumulated_gradients'
"""Key in the message hub for gradients that were being accumulated."""

# Values that a schedule changes over time, in its state and in the optimizer's options.
_MOVING = {'last_step', '_global_step', '_last_value', 'best', 'num_bad_epochs', 'cooldown_counter'}
_MOVING |= {'lr', 'momentum', 'betas'}


def wrappers_of(runner: Runner) -> list[tuple[str | None, OptimWrapper]]:
    """Return the optimizer wrappers of a training by name; a single one has the name ``None``."""
    wrapper = runner.optim_wrapper
    if isinstance(wrapper, OptimWrapperDict):
        return list(wrapper.items())
    return [(None, wrapper)] if isinstance(wrapper, OptimWrapper) else []


def _schedules(runner: Runner) -> list[Any]:
    schedules = runner.param_schedulers
    if isinstance(schedules, dict):
        return [one for some in schedules.values() for one in some]
    return list(schedules or ())


class Schedule:
    """Schedule of a config before the first iteration, for comparison and rebuilding.

    Args:
        runner: A training whose optimizer and schedules are built but not resumed yet.
    """

    def __init__(self, runner: Runner) -> None:
        self._states = [dict(one.state_dict()) for one in _schedules(runner)]
        self._groups = [
            deepcopy(_options(group))
            for _, wrapper in wrappers_of(runner)
            for group in wrapper.param_groups
        ]
        self._start = self._moments(runner)

    def follow(self, runner: Runner, *, moved: bool) -> bool:
        """Continue a resumed training with the config's schedule, not the checkpoint's.

        A schedule that depends on metrics cannot be rebuilt. It continues from the checkpoint if
        its definition there equals the config's.

        Args:
            runner: The resumed training.
            moved: ``True`` if its iteration differs from the checkpoint's.

        Returns:
            ``True`` if the checkpoint had other rates or another schedule.
        """
        resumed = self._moments(runner)
        if any(map(_needs_metrics, _schedules(runner))) and not moved:
            pairs = zip(self._start, resumed, strict=True)
            if all(_same(_definition(left), _definition(right)) for left, right in pairs):
                return False
        self.rebuild(runner)
        return moved or not _same(resumed, self._moments(runner))

    def _moments(self, runner: Runner) -> list[dict[str, Any]]:
        """Current state of the schedules and options of the optimizers.

        mmengine has a further group for the rate in its log, which FSDP does not save.
        """
        states = [dict(one.state_dict()) for one in _schedules(runner)]
        groups = [
            _options(group)
            for _, wrapper in wrappers_of(runner)
            for group in wrapper.optimizer.param_groups
        ]
        return deepcopy([*states, *groups])

    def rebuild(self, runner: Runner) -> None:
        """Set rates and schedules to the config's values for the runner's epoch and iteration."""
        schedules = _schedules(runner)
        for schedule, state in zip(schedules, self._states, strict=True):
            vars(schedule).update(deepcopy(state))
        groups = [group for _, one in wrappers_of(runner) for group in one.param_groups]
        for group, options in zip(groups, self._groups, strict=True):
            group.update(deepcopy(options))
        by_epoch = [one for one in schedules if one.by_epoch and not _needs_metrics(one)]
        by_iteration = [one for one in schedules if not one.by_epoch]
        epochs = isinstance(runner.train_loop, EpochBasedTrainLoop)
        length = len(runner.train_dataloader)
        for one in schedules:  # mmengine warns of schedules ahead of their optimizer
            one.optimizer._global_step = max(one.optimizer._global_step, runner.iter)
        for iteration in range(1, runner.iter + 1):
            for one in by_iteration:
                one.step()
            if epochs and iteration % length == 0 and iteration // length <= runner.epoch:
                for one in by_epoch:
                    one.step()


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != 'params'}


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
    """Set the iteration of a resumed training from the number of samples that it read.

    Args:
        runner: The resumed training.
        batch: Samples per iteration on all processes.

    Returns:
        Number of batches of the current pass over the data that were read, to be skipped.
    """
    loop = runner.train_loop
    progress = runner.message_hub.runtime_info.get(PROGRESS)
    if progress is not None and 'iter' in progress:
        # FlexibleRunner writes other counts into meta when it saves a best checkpoint.
        loop._epoch, loop._iter = progress['epoch'], progress['iter']
    if not isinstance(loop, EpochBasedTrainLoop):
        if progress is None:
            runner.logger.warning(
                'resume: the checkpoint does not say its batch size;'
                f' {loop.iter} batches of {batch} samples count as read'
            )
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


def samples_per_iteration(runner: Runner) -> int:
    """Return the samples per iteration on all processes; 1 per process if unknown."""
    loader = runner.train_dataloader
    size = loader.batch_size or getattr(loader.batch_sampler, 'batch_size', None) or 1
    return size * runner.world_size


def shown_rates(runner: Runner) -> str:
    """Format the learning rates of a training for a message; ``''`` if unknown."""
    rates = runner.optim_wrapper.get_lr()
    if not isinstance(rates, dict):
        return ''
    return 'learning rate ' + ', '.join(f'{rate:.4g}' for rate in sorted(set(rates.get('lr', ()))))


def note_gradients(runner: Runner, iteration: int) -> None:
    """Store accumulated gradients in the message hub, which the checkpoint contains."""
    gradients = None
    if iteration % getattr(runner.optim_wrapper, '_accumulative_counts', 1):
        own = {}
        for name, parameter in runner.model.named_parameters():
            if parameter.grad is not None:
                own[name] = parameter.grad.cpu()
        gradients = all_gather_object(own)
    runner.message_hub.update_info(GRADIENTS, gradients)


def resume_gradients(runner: Runner) -> None:
    """Restore accumulated gradients."""
    gradients = runner.message_hub.runtime_info.get(GRADIENTS)
    runner.message_hub.update_info(GRADIENTS, None)
    if gradients is None:
        return
    parameters = dict(runner.model.named_parameters())
    if len(gradients) != runner.world_size:
        runner.logger.warning('resume: accumulated gradients of other processes are dropped')
        return
    for name, gradient in gradients[runner.rank].items():
        parameters[name].grad = gradient.to(parameters[name])


def resume_random_state(runner: Runner) -> None:
    """Set the random generators to the states in the checkpoint."""
    states = runner.message_hub.runtime_info.get('random_states')
    if not isinstance(states, list) or len(states) != runner.world_size:
        runner.logger.warning(
            'resume: the checkpoint has no random states for '
            f'{runner.world_size} processes; dropout draws other numbers'
        )
        return
    set_random_state(states[runner.rank])


def validation_is_due(runner: Runner) -> bool:
    """``True`` if an uninterrupted training would validate before the next iteration."""
    loop = runner.train_loop
    if runner.val_loop is None or runner.iter == 0:
        return False
    loop._decide_current_val_interval()
    if isinstance(loop, EpochBasedTrainLoop):
        if runner.iter != runner.epoch * len(loop.dataloader):
            return False
        done, last = loop.epoch, loop.max_epochs
    else:
        done, last = loop.iter, loop.max_iters
    return done >= loop.val_begin and (done % loop.val_interval == 0 or done == last)

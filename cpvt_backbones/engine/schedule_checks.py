"""Compares the schedule of the learning rate with the length of the training."""

from typing import Any

from mmengine.optim.scheduler.param_scheduler import (
    INF,
    ConstantParamScheduler,
    LinearParamScheduler,
)
from mmengine.runner import EpochBasedTrainLoop, Runner


def warn_of_schedule(runner: Runner) -> None:
    """Log a warning if the learning rate's schedule ends before or after the training.

    Trainings with warm-ups only, or with a schedule that follows a metric, are not checked.

    Args:
        runner: A training whose optimizer and schedules are built.
    """
    schedules = runner.param_schedulers or []
    for some in schedules.values() if isinstance(schedules, dict) else [schedules]:
        rates = [one for one in some if one.param_name == 'lr' and not _is_warmup(one)]
        if not rates or any(getattr(one, 'need_val_args', False) for one in rates):
            continue
        if not runner.max_iters:  # drop_last without a full batch
            return
        last = max(rates, key=lambda one: one.end / _length(runner, one))
        difference = _difference(runner, last)
        if difference:
            runner.logger.warning(f'param_scheduler: {type(last).__name__} {difference}')
            return


def _difference(runner: Runner, last: Any) -> str | None:
    """Describe how the end of the last schedule differs from that of the training."""
    in_epochs = isinstance(runner.train_loop, EpochBasedTrainLoop)
    if last.by_epoch and not in_epochs:
        return (
            'counts epochs, but the training counts iterations, so the learning rate does not'
            f' change; write by_epoch=False and end={runner.max_iters}'
        )
    length, steps = _length(runner, last), 1
    unit = 'epoch' if last.by_epoch else 'iteration'
    if in_epochs and not last.by_epoch and last.end % len(runner.train_dataloader) == 0:
        unit, steps = 'epoch', len(runner.train_dataloader)  # convert_to_iter_based
    total = length // steps
    training = f'but the training ends at {total:,}, so the learning rate'
    milestones = [last.begin + one for one in getattr(last, 'milestones', ())]
    if last.end < length:
        more = ' and milestones to match' if milestones else ''
        return (
            f'ends at {unit} {last.end // steps:,}, {training} stays the same from then on;'
            f' write end={total}{more}'
        )
    if not milestones and length < last.end < INF:
        more = ' and a smaller begin' if last.begin >= length else ''
        return (
            f'ends at {unit} {last.end // steps:,}, {training} has not fully fallen by then;'
            f' write end={total}{more}'
        )
    if milestones and max(milestones) > length:  # an end after the training does not matter
        return (
            f'has a milestone at {unit} {max(milestones) // steps:,}, {training} has not fully'
            f' fallen by then; write milestones below {total}'
        )
    return None


def _length(runner: Runner, schedule: Any) -> int:
    return runner.max_epochs if schedule.by_epoch else runner.max_iters


def _is_warmup(schedule: Any) -> bool:
    if isinstance(schedule, LinearParamScheduler):
        return schedule.start_factor <= schedule.end_factor
    if isinstance(schedule, ConstantParamScheduler):
        return schedule.begin == 0  # a later one keeps the last rate, as in YOLOX
    return 'Warmup' in type(schedule).__name__  # mmdet's QuadraticWarmupLR

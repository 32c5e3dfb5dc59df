"""Comparison of a checkpoint with the training that is to go on from it, before it is loaded.

Every entry that a resume reads is compared with what is running: the weights with the model's, the
average with its hook's, the optimizer's state with that of the same optimizer after a step, the
schedules and the counts with the config's.
"""

import inspect
import math
import random
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
import torch
from mmengine.hooks import EMAHook
from mmengine.logging import HistoryBuffer
from mmengine.optim import OptimWrapper
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch import Tensor, nn

from cpvt_backbones.checkpoints import CheckpointError, unwrap, weights_in
from cpvt_backbones.errors import InputError

from .resuming import GRADIENTS, PROGRESS, wrappers_of

MAX_SEED = 2**32 - 1  # NumPy's
MAX_BATCH = 2**20  # samples of all processes
# Options of an optimizer that choose how it computes, not what.
_SWITCHES = ('capturable', 'differentiable', 'foreach', 'fused')


def check_training_state(checkpoint: Mapping[str, Any], file: Any) -> None:
    """Raise ``CheckpointError`` for a file of weights alone."""
    meta = checkpoint.get('meta')
    if not isinstance(meta, dict) or 'iter' not in meta:
        raise CheckpointError(f'resume: {file!r} holds no training to resume (no meta.iter)')


def check_resumable(checkpoint: Mapping[str, Any], runner: Runner) -> None:
    """Refuse a checkpoint that this training cannot go on from exactly.

    Args:
        checkpoint: Its content. It passes :func:`check_training_state`.
        runner: The training, with its optimizers and schedules built.

    Raises:
        CheckpointError: Names the file, the entry, what it holds and what is accepted.
    """
    meta, hub = checkpoint['meta'], checkpoint.get('message_hub')
    try:
        _check_meta(meta, runner.train_loop)
        _check_weights(checkpoint, runner)
        info = _check_message_hub(hub)
        _check_progress(info.get(PROGRESS), meta['iter'], runner)
        _check_random_states(info.get('random_states'), runner)
        _check_gradients(info.get(GRADIENTS), runner)
        _check_optimizers(checkpoint.get('optimizer'), meta['iter'], runner)
        _check_schedules(checkpoint.get('param_schedulers'), runner.param_schedulers)
    except InputError as error:
        text = ' '.join(str(error).split())
        raise CheckpointError(f'resume: {runner._load_from!r} cannot be resumed: {text}') from error


# -- counts


def _is_count(value: Any, limit: int = 2**48) -> bool:
    return type(value) is int and 0 <= value <= limit


def _is_number(value: Any) -> bool:
    """True for a finite number, or a tensor of one."""
    if isinstance(value, Tensor):
        return value.numel() == 1 and bool(value.isfinite().all())
    return isinstance(value, Real) and math.isfinite(value)


def _check_meta(meta: dict[str, Any], loop: Any) -> None:
    for key in ('epoch', 'iter'):
        if not _is_count(meta.get(key)):
            raise InputError(
                f'meta.{key} must be an integer of at least 0, got {meta.get(key)!r:.80}'
            )
    if not (meta.get('seed') is None or _is_count(meta['seed'], MAX_SEED)):
        raise InputError(f'meta.seed must be an integer in [0, 2^32), got {meta["seed"]!r:.80}')
    unit = 'epoch' if isinstance(loop, EpochBasedTrainLoop) else 'iter'
    limit: int = getattr(loop, f'max_{unit}s')
    if meta[unit] > limit:
        raise InputError(f'it is of {unit} {meta[unit]}, beyond train_cfg.max_{unit}s={limit}')


def _check_progress(progress: Any, iterations: int, runner: Runner) -> None:
    """Check how far the data were read: a resume passes over these samples, which takes time."""
    if progress is None:
        return
    counts: dict[str, Any] = progress if isinstance(progress, dict) else {}
    samples: Any = counts.get('samples')
    batch: Any = counts.get('batch')
    if not (_is_count(samples) and _is_count(batch, MAX_BATCH) and samples <= iterations * batch):
        raise InputError(
            f'{PROGRESS} must hold the counts samples and batch, of {iterations} iterations,'
            f' got {progress!r:.80}'
        )


# -- weights


def _check_weights(checkpoint: Mapping[str, Any], runner: Runner) -> None:
    """Refuse weights that are missing: the layer would go on from random ones."""
    wanted = unwrap(runner.model).state_dict()
    _refuse_missing('state_dict', wanted, weights_in(dict(checkpoint)))
    averages = any(isinstance(hook, EMAHook) for hook in runner.hooks)
    found = checkpoint.get('ema_state_dict')
    if found is None and averages:
        raise InputError(
            'it has no ema_state_dict, from which the EMA hook goes on; take its weights by'
            ' load_from, or train without the hook'
        )
    if found is None:
        return
    if not averages:
        raise InputError(
            'it has an average of the weights (ema_state_dict), and this training has no EMA hook;'
            ' take its weights by load_from'
        )
    if not isinstance(found, Mapping):
        raise InputError(f'ema_state_dict must be a dict, got {found!r:.80}')
    _check_average(found, {f'module.{key}': value for key, value in wanted.items()})


def _refuse_missing(part: str, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    missing = [key for key in wanted if key not in found]
    if missing:
        more = f' ({len(missing)} are missing)' if len(missing) > 1 else ''
        raise InputError(f'{part} has no {missing[0]}{more}')


def _check_average(found: Mapping[str, Any], wanted: Mapping[str, Tensor]) -> None:
    _refuse_missing('ema_state_dict', wanted, found)
    steps: Any = found.get('steps')
    integer = isinstance(steps, Tensor) and not steps.is_floating_point() and steps.numel() == 1
    if not integer or not _is_count(int(steps)):
        raise InputError(f'ema_state_dict.steps must be a count of updates, got {steps!r:.80}')
    for key, value in wanted.items():
        _check_tensor(f'ema_state_dict.{key}', found[key], value.shape)
        if found[key].is_floating_point() != value.is_floating_point():
            raise InputError(f'ema_state_dict.{key} is of type {found[key].dtype}')


def _check_tensor(name: str, value: Any, shape: Any) -> None:
    """Check that a value is a tensor of a shape, without NaN and infinity."""
    if not isinstance(value, Tensor):
        raise InputError(f'{name} must be a tensor, got {value!r:.80}')
    if value.shape != torch.Size(shape):
        raise InputError(f'{name} has the shape {tuple(value.shape)}, not {tuple(shape)}')
    if not value.isfinite().all():
        raise InputError(f'{name} is NaN or infinite')


# -- the message hub


def _check_message_hub(hub: Any) -> dict[str, Any]:
    """Return ``runtime_info`` of a checked message hub."""
    parts = ('log_scalars', 'runtime_info', 'resumed_keys')
    if not isinstance(hub, dict) or not all(isinstance(hub.get(part), dict) for part in parts):
        raise InputError('message_hub must be a dict of log_scalars, runtime_info and resumed_keys')
    for part in parts:
        other = next((key for key in hub[part] if not isinstance(key, str)), None)
        if other is not None:
            raise InputError(f'message_hub.{part} has the key {other!r:.80}, which is no text')
    for key, value in hub['resumed_keys'].items():
        if not isinstance(value, bool):
            raise InputError(f'message_hub.resumed_keys.{key} must be a bool, got {value!r:.80}')
    for key, value in hub['log_scalars'].items():
        if not _is_history(value):
            raise InputError(f'message_hub.log_scalars.{key} must be the history of a number')
    info: dict[str, Any] = hub['runtime_info']
    for key, value in info.items():
        if key.startswith('best_score') and not _is_number(value):
            raise InputError(f'{key} must be a number, got {value!r:.80}')
    return info


def _is_history(value: Any) -> bool:
    if not isinstance(value, HistoryBuffer):
        return False
    columns: list[Any] = [getattr(value, name, None) for name in ('_log_history', '_count_history')]
    if not all(isinstance(one, np.ndarray) and one.dtype.kind in 'fiu' for one in columns):
        return False
    return columns[0].ndim == 1 and columns[0].shape == columns[1].shape


def _check_random_states(states: Any, runner: Runner) -> None:
    """Try the state of this process on generators that nobody uses."""
    if states is None:
        return
    try:
        if not isinstance(states, list):
            raise TypeError(f'a list is wanted, got {states!r:.80}')
        if len(states) == runner.world_size:
            _try_random_state(states[runner.rank])
    except (AttributeError, KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f'the random states are damaged ({type(error).__name__}: {error})'
        ) from error


def _try_random_state(state: dict[str, Any]) -> None:
    random.Random().setstate(state['python'])
    kind, keys, position, *_ = state['numpy']
    if not 0 <= position <= 624:  # NumPy reads beyond its table
        raise ValueError(f'the position {position} of NumPy')
    np.random.RandomState().set_state((kind, keys, position, *_))
    torch.Generator().set_state(state['torch'].cpu())
    for one in state['cuda']:
        if one.dtype != torch.uint8:
            raise TypeError(f'a state of CUDA of {one.dtype}')


def _check_gradients(gradients: Any, runner: Runner) -> None:
    """Compare gradients that are being accumulated with the parameters of this process."""
    if gradients is None:
        return
    if not isinstance(gradients, list) or not all(isinstance(one, dict) for one in gradients):
        raise InputError(f'{GRADIENTS} must be a list of dicts, got {gradients!r:.80}')
    if len(gradients) != runner.world_size:
        return  # dropped with a warning
    parameters = dict(runner.model.named_parameters())
    for name, gradient in gradients[runner.rank].items():
        if name not in parameters:
            raise InputError(f'{GRADIENTS} has an entry {name!r:.80} of no parameter')
        _check_tensor(f'the accumulated gradient of {name}', gradient, parameters[name].shape)


# -- optimizers


def _check_optimizers(state: Any, iterations: int, runner: Runner) -> None:
    if state is None:
        raise InputError('it has no optimizer state; take its weights by load_from')
    for part, wrapper in wrappers_of(runner):
        own = state
        if part is not None:
            own = state.get(part) if isinstance(state, dict) else None
        _check_optimizer(own, wrapper)
        updated = iterations >= getattr(wrapper, '_accumulative_counts', 1)
        if updated and not own['state'] and _probe(wrapper.optimizer, 0, ndim=1):
            raise InputError('optimizer.state is empty, after its first update')


def _check_optimizer(state: Any, wrapper: OptimWrapper) -> None:
    """Compare the state of an optimizer with the one of the config."""
    optimizer = wrapper.optimizer
    kind = type(optimizer).__name__
    saved = state.get('param_groups') if isinstance(state, dict) else None
    if not isinstance(saved, list) or not all(isinstance(group, dict) for group in saved):
        raise InputError('optimizer must be a dict of state and param_groups')
    groups = optimizer.param_groups
    if len(saved) != len(groups):
        raise InputError(
            f'its optimizer has {len(saved)} groups of parameters, {kind} here {len(groups)}'
        )
    owners: dict[int, tuple[int, torch.Size]] = {}
    for number, (group, expected) in enumerate(zip(saved, groups, strict=True)):
        params = group.get('params')
        if not isinstance(params, list) or len(params) != len(expected['params']):
            raise InputError(
                f'group {number} of its optimizer has other parameters than the'
                f' {len(expected["params"])} of this model'
            )
        _check_options(group, number, optimizer)
        for index, parameter in zip(params, expected['params'], strict=True):
            if type(index) is not int or index in owners:
                raise InputError(
                    f'optimizer.param_groups must number its parameters, got {index!r:.80}'
                )
            owners[index] = number, parameter.shape
    base = state.get('base_param_settings')
    if base is not None and not (isinstance(base, dict) and _is_number(base.get('lr'))):
        raise InputError(f'optimizer.base_param_settings must hold its lr, got {base!r:.80}')
    _check_statistics(state.get('state'), owners, optimizer)


def _check_options(group: dict[str, Any], number: int, optimizer: torch.optim.Optimizer) -> None:
    """Refuse the options of another optimizer, and values that its constructor refuses."""
    kind = type(optimizer).__name__
    for key, default in optimizer.defaults.items():
        # Switches come and go with the versions of torch, which fills them in.
        if default is None or isinstance(default, (bool, str)):
            continue
        if key not in group:
            raise InputError(f'its optimizer is another one than {kind}: it has no {key}')
        if not _is_like(group[key], default):
            raise InputError(
                f'{key} of its optimizer must be finite like {default}, got {group[key]!r:.80}'
            )
    if _probe(optimizer, number, ndim=1) is None:  # an optimizer that cannot be tried
        return
    try:
        _try_step(optimizer, group, ndim=1)
    except Exception as error:  # whatever a constructor raises for a value
        raise InputError(
            f'{kind} refuses the options of group {number} of its optimizer: {error}'
        ) from error


def _is_like(value: Any, default: Any) -> bool:
    """True for a finite number, or for as many as the default has; ``None`` stands for any."""
    if not isinstance(default, (list, tuple)):
        return _is_number(value)
    if not isinstance(value, (list, tuple)) or len(value) != len(default):
        return False
    pairs = zip(value, default, strict=True)
    return all(_is_number(one) or (one is None and other is None) for one, other in pairs)


def _try_step(optimizer: torch.optim.Optimizer, group: dict[str, Any], *, ndim: int) -> Any:
    """The state of a parameter, with sides of 2, after a step of an optimizer of this kind."""
    accepted = inspect.signature(type(optimizer)).parameters
    options = {
        key: group[key]
        for key in optimizer.defaults
        if key in group and key in accepted and key not in _SWITCHES
    }
    parameter = nn.Parameter(torch.ones((2,) * ndim))
    parameter.grad = torch.ones_like(parameter)
    trial: Any = type(optimizer)
    trial = trial([parameter], **options)
    trial.step()
    return trial.state[parameter]


def _probe(optimizer: torch.optim.Optimizer, number: int, *, ndim: int) -> dict[str, Any] | None:
    """What :func:`_try_step` gives for a running group; ``None`` if the optimizer takes no such
    step.
    """
    try:
        return _try_step(optimizer, optimizer.param_groups[number], ndim=ndim)
    except Exception:  # an optimizer of someone else, such as one that takes the whole model
        return None


def _check_statistics(
    state: Any, owners: dict[int, tuple[int, torch.Size]], optimizer: torch.optim.Optimizer
) -> None:
    """Compare the running statistics of each parameter with those that its optimizer keeps.

    A parameter that never had a gradient has none.
    """
    if not isinstance(state, dict):
        raise InputError('optimizer.state must be a dict')
    probes: dict[tuple[int, int], dict[str, Any] | None] = {}
    for index, values in state.items():
        if not isinstance(values, dict) or index not in owners:
            raise InputError(f'optimizer.state has an entry {index!r:.80} of no parameter')
        number, shape = owners[index]
        place = number, len(shape)
        if place not in probes:
            probes[place] = _probe(optimizer, number, ndim=len(shape))
        expected = probes[place] or {}
        for key in expected:
            if key not in values:
                raise InputError(f'{key} of parameter {index} in its optimizer is missing')
        for key, value in values.items():
            name = f'{key} of parameter {index} in its optimizer'
            _check_statistic(name, value, expected.get(key), shape)
            if key == 'step' and float(value) < 0:
                raise InputError(f'{name} must be at least 0, got {float(value)}')


def _check_statistic(name: str, value: Any, expected: Any, shape: torch.Size) -> None:
    if isinstance(expected, Tensor) and expected.dim() == len(shape) > 0:
        if set(expected.shape) == {2}:  # as the parameter
            _check_tensor(name, value, shape)
            return
    if isinstance(expected, (Real, Tensor)) and not (
        _is_number(value) or isinstance(expected, Tensor) and expected.numel() > 1
    ):
        raise InputError(f'{name} must be a finite number, got {value!r:.80}')
    if isinstance(value, (str, dict)):
        raise InputError(f'{name} is {value!r:.80}')
    if isinstance(value, Tensor) and not value.isfinite().all():
        raise InputError(f'{name} is NaN or infinite')


# -- schedules


def _check_schedules(saved: Any, running: Any) -> None:
    """Compare the state of each schedule with that of the config's.

    mmengine writes every entry into the schedule, its methods' names included.
    """
    if not running:
        return
    if isinstance(running, dict):
        if not isinstance(saved, dict) or saved.keys() != running.keys():
            raise InputError(f'param_schedulers must be a dict of {", ".join(running)}')
        for name, schedules in running.items():
            _check_schedules(saved[name], schedules)
        return
    if not isinstance(saved, list) or not all(isinstance(one, dict) for one in saved):
        raise InputError(f'param_schedulers must be a list of dicts, got {saved!r:.80}')
    if len(saved) != len(running):
        raise InputError(f'it has {len(saved)} param_schedulers, this training {len(running)}')
    for number, (state, schedule) in enumerate(zip(saved, running, strict=True)):
        name = f'param_schedulers[{number}]'
        own = schedule.state_dict()
        if state.keys() != own.keys():
            other = sorted(map(str, state.keys() ^ own.keys()))
            raise InputError(
                f'{name} is another schedule than {type(schedule).__name__}: it differs in'
                f' {", ".join(other)}'
            )
        for key, value in state.items():
            _check_schedule_value(f'{name}.{key}', value, own[key])


def _check_schedule_value(name: str, value: Any, own: Any) -> None:
    numbers = isinstance(own, (list, tuple)) and all(map(_is_number, own))
    if numbers and not (isinstance(value, (list, tuple)) and all(map(_is_number, value))):
        raise InputError(f'{name} must be a list of numbers, got {value!r:.80}')
    if isinstance(own, bool) != isinstance(value, bool) or (
        isinstance(own, str) != isinstance(value, str)
    ):
        raise InputError(f'{name} must be like {own!r:.80}, got {value!r:.80}')
    if type(own) is int and own >= 0 and name.endswith('_step') and not _is_count(value):
        raise InputError(f'{name} must be an integer of at least 0, got {value!r:.80}')
    if isinstance(own, Real) and not (value is None or _is_number(value)):
        raise InputError(f'{name} must be a finite number, got {value!r:.80}')

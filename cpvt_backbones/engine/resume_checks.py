"""Compares a checkpoint with the training to be resumed, before it is loaded.

It compares what users change between two starts: classes, layers, the optimizer and its parameter
groups, and the average of the weights. Edited files may fail later, with torch's messages.
"""

from collections.abc import Mapping
from typing import Any

from mmengine._strategy import DeepSpeedStrategy, FSDPStrategy
from mmengine.hooks import EMAHook
from mmengine.optim import OptimWrapper
from mmengine.runner import Runner
from torch import Tensor

from cpvt_backbones.checkpoints import CheckpointError, unwrap, weights_in
from cpvt_backbones.errors import InputError

from .resuming import wrappers_of


def check_training_state(checkpoint: Mapping[str, Any], file: Any) -> None:
    """Raise ``CheckpointError`` for a file that contains only weights."""
    meta = checkpoint.get('meta')
    if not isinstance(meta, dict) or 'iter' not in meta:
        raise CheckpointError(f'resume: {file!r} holds no training to resume (no meta.iter)')


def check_resumable(checkpoint: Mapping[str, Any], runner: Runner) -> None:
    """Refuse a checkpoint from which this training cannot resume exactly.

    Args:
        checkpoint: Content that passes :func:`check_training_state`.
        runner: The training, with its optimizers built.

    Raises:
        CheckpointError: The message has the file, the entry, its value and what is accepted.
    """
    try:
        shapes = shapes_of(runner)
        if shapes:
            _check_tensors('state_dict', weights_in(dict(checkpoint)), shapes)
        _check_average(checkpoint.get('ema_state_dict'), runner, shapes)
        _check_optimizers(checkpoint.get('optimizer'), runner)
    except InputError as error:
        text = ' '.join(str(error).split())
        raise CheckpointError(f'resume: {runner._load_from!r} cannot be resumed: {text}') from error


def shapes_of(runner: Any) -> dict[str, Any]:
    """Return the shapes of a model's weights by name, before sharding; empty if unknown."""
    strategy: Any = getattr(runner, 'strategy', None)
    if hasattr(strategy, 'shapes'):
        return dict(strategy.shapes)
    if is_split(runner):
        return {}
    return {key: value.shape for key, value in unwrap(runner.model).state_dict().items()}


def is_split(runner: Any) -> bool:
    """``True`` if each process has only a part of the weights, as with FSDP and DeepSpeed."""
    return isinstance(getattr(runner, 'strategy', None), FSDPStrategy | DeepSpeedStrategy)


def _check_tensors(part: str, found: Mapping[str, Any], shapes: Mapping[str, Any]) -> None:
    missing = [key for key in shapes if key not in found]
    if missing:
        more = f' ({len(missing)} are missing)' if len(missing) > 1 else ''
        raise InputError(f'{part} has no {missing[0]}{more}')
    for key, shape in shapes.items():
        value = found[key]
        if not isinstance(value, Tensor) or value.shape != shape:
            got = tuple(value.shape) if isinstance(value, Tensor) else repr(value)[:80]
            raise InputError(f'{part}.{key} must have the shape {tuple(shape)}, got {got}')
        if not value.isfinite().all():
            raise InputError(f'{part}.{key} is NaN or infinite')


def _check_average(found: Any, runner: Runner, shapes: Mapping[str, Any]) -> None:
    averages = any(isinstance(hook, EMAHook) for hook in runner.hooks)
    if averages and not isinstance(found, Mapping):
        raise InputError(
            'it has no ema_state_dict, which the EMA hook needs; load its weights by'
            ' load_from, or train without the hook'
        )
    if not averages and found is not None:
        raise InputError(
            'it has an average of the weights (ema_state_dict), and this training has no EMA hook;'
            ' load its weights by load_from'
        )
    if averages:
        wanted = {f'module.{key}': shape for key, shape in shapes.items()}
        _check_tensors('ema_state_dict', found, wanted)


def _check_optimizers(state: Any, runner: Runner) -> None:
    for part, wrapper in wrappers_of(runner):
        own = state if part is None or not isinstance(state, dict) else state.get(part)
        if not isinstance(own, dict):
            raise InputError('it has no optimizer state; load its weights by load_from')
        _check_optimizer(own, wrapper)


def _check_optimizer(state: dict[str, Any], wrapper: OptimWrapper) -> None:
    """Compare the parameter groups of an optimizer, and the names of their options."""
    optimizer = wrapper.optimizer
    kind, groups = type(optimizer).__name__, optimizer.param_groups
    saved = state.get('param_groups', [])
    if len(saved) != len(groups):
        raise InputError(
            f'its optimizer has {len(saved)} parameter groups, {kind} here {len(groups)}'
        )
    # Boolean options differ between versions of torch.
    options = [
        key
        for key, value in optimizer.defaults.items()
        if value is not None and not isinstance(value, bool | str)
    ]
    for number, (group, expected) in enumerate(zip(saved, groups, strict=True)):
        missing = [key for key in options if key not in group]
        if missing:
            raise InputError(f'its optimizer is not {kind}: it has no {missing[0]}')
        if len(group['params']) != len(expected['params']):
            raise InputError(
                f'group {number} of its optimizer has {len(group["params"])} parameters, here'
                f' {len(expected["params"])}'
            )

"""Names at the top of a config that something reads; all others are variables of its file."""

import difflib
import inspect
from collections.abc import Iterable, Iterator
from typing import Any

from mmengine.config import Config
from mmengine.runner import FlexibleRunner, Runner

_READ_FROM_CFG = (
    'activation_checkpointing',
    'compile',
    'custom_imports',
    'efficient_conv_bn_eval',
    'find_unused_parameters',
    'init_weights_for_test_or_val',
    'model_wrapper_cfg',
    'runner_type',
    'sync_bn',
    'tta_model',
    'tta_pipeline',
)


def _arguments(runner: type) -> set[str]:
    return {*inspect.signature(runner).parameters} - {'cfg'}


# What mmengine's runners take, what they and mmengine's Config read beside it, and what
# tools/test.py --tta reads.
READ_KEYS = frozenset(_arguments(Runner) | _arguments(FlexibleRunner) | {*_READ_FROM_CFG})


def check_options(cfg: Config, options: Iterable[str]) -> None:
    """Refuse options, dotted names, that would have no effect on a config which has been read.

    The top of a config holds variables of its file, too. Their values were copied when the file was
    read: a later change of the variable reaches none of the copies.

    Raises:
        ValueError: The option's first name is such a variable, or is in no config. The message
            names the keys to set.
    """
    for option in options:
        name, _, rest = option.partition('.')
        if name == 'launcher':
            raise ValueError('cfg_options: launcher is set by --launcher')
        if name not in READ_KEYS:
            raise ValueError(f'cfg_options: {option} has no effect: {_reason(cfg, name, rest)}')


def _reason(cfg: Config, name: str, rest: str) -> str:
    values = cfg.to_dict()
    if name not in values:
        similar = difflib.get_close_matches(name, sorted(READ_KEYS), n=1)
        advice = f'; did you mean {similar[0]}?' if similar else ''
        return f'the config has no {name}, and nothing reads it{advice}'
    read = {key: value for key, value in values.items() if key in READ_KEYS}
    keys = list(_keys_of(read, name, values[name]))
    reason = f'{name} is a variable of the config file, used when the file was read'
    if not keys:
        return f'{reason}; change the file'
    shown = ', '.join(f'{key}.{rest}' if rest else key for key in keys[:4])
    more = f' and {len(keys) - 4} more' if len(keys) > 4 else ''
    return f'{reason}; set {shown}{more}'


def _keys_of(node: Any, name: str, value: Any, path: str = '') -> Iterator[str]:
    """Dotted keys of the values that have this name, or are equal to this dict or list."""
    container = isinstance(value, (dict, list, tuple)) and len(value) > 0
    items = enumerate(node) if isinstance(node, (list, tuple)) else node.items()
    for key, child in items:
        here = f'{path}{key}'
        if key == name or (container and child == value):
            yield here
        elif isinstance(child, (dict, list, tuple)):
            yield from _keys_of(child, name, value, f'{here}.')

"""Checks of arguments; errors name the argument, its value and what is accepted."""

import functools
import inspect
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch

from cpvt_backbones.errors import InputError, InputTypeError
from cpvt_backbones.plain import did_you_mean


def check(accepted: str, accepts: Callable[[Any], bool], **values: Any) -> None:
    """Raise ``ValueError`` for the first value that ``accepts`` refuses."""
    for name, value in values.items():
        if not accepts(value):
            raise InputError(f'{name} must be {accepted}, got {value!r}', argument=name)


def is_int(value: Any) -> bool:
    """``True`` for an integer that is not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """``True`` for a finite int or float that is not a bool."""
    return not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value)


def is_sequence(value: Any) -> bool:
    """``True`` for a sequence that is not a string."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def check_choice(choices: Collection[Any], **values: Any) -> None:
    """Raise ``ValueError`` unless each value is one of ``choices`` (strings or ``None``)."""
    for name, value in values.items():
        if not isinstance(value, (str, type(None))) or value not in choices:
            raise InputError(
                f'{name} must be one of {sorted(choices, key=str)}, got {value!r}'
                f'{did_you_mean(value, choices)}',
                argument=name,
            )


def check_int(*, minimum: int = 1, maximum: float = math.inf, **values: Any) -> None:
    """Raise ``ValueError`` unless each value is an integer in [``minimum``, ``maximum``]."""
    accepted = f'>= {minimum}' if maximum == math.inf else f'in [{minimum}, {maximum}]'
    check(f'an integer {accepted}', lambda v: is_int(v) and minimum <= v <= maximum, **values)


# Neither 1 nor 'False'.
check_bool = functools.partial(check, 'True or False', lambda v: isinstance(v, bool))
check_probability = functools.partial(
    check, 'a number in [0, 1)', lambda v: is_number(v) and 0 <= v < 1
)
check_fraction = functools.partial(
    check, 'a number in [0, 1]', lambda v: is_number(v) and 0 <= v <= 1
)


def check_device(device: str) -> None:
    """Raise ``ValueError`` unless torch knows a device of this name."""
    try:
        torch.device(device)
    except RuntimeError as error:  # its message lists 20 types of devices
        fault = f"device must be one of torch, such as 'cpu', 'cuda' or 'cuda:1', got {device!r}"
        raise InputError(fault) from error


def check_gpu(device: str) -> None:
    """Raise ``ValueError`` unless a CUDA device exists."""
    wanted = torch.device(device)
    if wanted.type != 'cuda':
        return
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (wanted.index or 0) >= count:
        found = f'{count} GPUs' if count else 'no GPU'
        raise InputError(
            f"device must be 'cpu' or an existing GPU, got {device!r}; torch"
            f' {torch.__version__} finds {found}',
            argument='device',
        )


def check_positive(*, above: float = 0, **values: Any) -> None:
    """Raise ``ValueError`` unless each value is a finite number > ``above``."""
    check(f'a finite number > {above}', lambda v: is_number(v) and v > above, **values)


OF_BASES = {
    'pretrained': '; write model = dict(pretrained=None, ...), because model.pretrained of the base'
    ' config is for its own backbone, and the weights of this one are named by init_cfg='
}
"""Advice on arguments that a base config, such as mmseg's with ResNet, gives to its backbone."""


def check_keywords(
    called: str,
    function: Callable[..., Any],
    given: Iterable[str],
    *,
    positional: Any = (),
    advice_on: Mapping[str, str] | None = None,
    listed_only: bool = False,
) -> None:
    """Check that a function has arguments of these names.

    Args:
        called: The function as a user wrote it, such as ``"position=dict(type='PEG')"``.
        function: Function or class.
        given: Names of the keywords.
        positional: Names of arguments that users do not pass.
        advice_on: Advice by name of a keyword.
        listed_only: Refuse names that a function takes by ``**kwargs`` only.

    Raises:
        TypeError: There is no such argument; the message has a similar one, or all.
    """
    parameters = inspect.signature(function).parameters
    rest = [name for name, one in parameters.items() if one.kind is one.VAR_KEYWORD]
    if rest and not listed_only:
        return
    accepted = [name for name in parameters if name not in (*positional, *rest)]
    for name in given:
        if name not in accepted:
            advice = (
                (advice_on or {}).get(name)
                or did_you_mean(name, accepted)
                or f'; accepted are {", ".join(accepted) or "none"}'
            )
            raise InputTypeError(f'{called} has no argument {name!r}{advice}')


def check_by_keyword(cls: type, values: Sequence[Any], suggested: str) -> None:
    """Refuse positional arguments of a class that takes keywords only.

    Args:
        cls: The class; a subclass may take positional arguments.
        values: The positional arguments.
        suggested: Keyword that the message suggests for the first one.

    Raises:
        TypeError: There are positional arguments.
    """
    kinds = {one.kind for one in inspect.signature(cls).parameters.values()}
    if values and kinds <= {inspect.Parameter.KEYWORD_ONLY}:
        call = f'{cls.__name__}({suggested}={values[0]!r:.100})'
        raise InputTypeError(f'{cls.__name__} takes its arguments by keyword: {call}')


def check_path(**values: Any) -> None:
    """Raise ``TypeError`` unless each value is a path: text, or an ``os.PathLike``."""
    for name, value in values.items():
        if not isinstance(value, (str, os.PathLike)):
            raise InputTypeError(
                f'{name} must be a path, a str or pathlib.Path, got {value!r:.100}', argument=name
            )


def list_of_dicts(name: str, value: Any) -> list[Mapping[str, Any]]:
    """Convert ``None``, a dict with a type, or a list of such dicts to a list.

    Raises:
        ValueError: The value is none of these; the message begins with ``name``.
    """
    entries = value
    if value is None:
        entries = []
    elif isinstance(value, Mapping):
        entries = [value]
    if not is_sequence(entries) or not all(isinstance(entry, Mapping) for entry in entries):
        raise InputError(
            f'{name} must be None, a dict with a type, or a list of such dicts, got {value!r}',
            argument=name,
        )
    return list(entries)

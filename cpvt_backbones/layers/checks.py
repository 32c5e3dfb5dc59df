"""Checks of arguments. Every error names the argument, the value it got and what is accepted."""

import functools
import inspect
import warnings
from collections.abc import Callable, Collection
from typing import Any, ParamSpec, TypeVar

T = TypeVar('T')
P = ParamSpec('P')
R = TypeVar('R')


def check_choice(name: str, value: Any, choices: Collection[Any]) -> None:
    """Raise ``ValueError`` unless ``value`` is one of ``choices``."""
    if not isinstance(value, (str, type(None))) or value not in choices:
        raise ValueError(f'{name} must be one of {sorted(choices, key=str)}, got {value!r}')


def check_int(name: str, value: Any, *, minimum: int = 1) -> None:
    """Raise ``ValueError`` unless ``value`` is an integer >= ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ValueError(f'{name} must be an integer >= {minimum}, got {value!r}')


def check_probability(name: str, value: Any) -> None:
    """Raise ``ValueError`` unless ``value`` is a number in [0, 1)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise ValueError(f'{name} must be a number in [0, 1), got {value!r}')


def check_positive(name: str, value: Any) -> None:
    """Raise ``ValueError`` unless ``value`` is a number > 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ValueError(f'{name} must be a number > 0, got {value!r}')


def check_heads(dim: int, num_heads: int) -> None:
    """Raise ``ValueError`` unless the heads divide the width."""
    check_int('num_heads', num_heads)
    if dim % num_heads:
        raise ValueError(f'num_heads must divide embed_dims, got num_heads={num_heads} for embed_dims={dim}')


def accepted_keywords(function: Callable[..., Any]) -> list[str]:
    """Names of the keyword arguments that a constructor accepts, in its own order."""
    parameters = inspect.signature(function).parameters
    return [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY]


def strict_keywords(cls: type[T]) -> type[T]:
    """Class decorator: an unknown keyword is refused with its value and the accepted names.

    Python's own message names the keyword alone, and a registry's traceback buries it.
    """
    init: Callable[..., None] = cls.__init__
    accepted = [name for name in inspect.signature(init).parameters if name != 'self']

    @functools.wraps(init)
    def checked(self: T, *args: Any, **kwargs: Any) -> None:
        unknown = {name: value for name, value in kwargs.items() if name not in accepted}
        if unknown and type(self).__init__ is checked:
            got = ', '.join(f'{name}={value!r}' for name, value in unknown.items())
            raise TypeError(f'{cls.__name__} got an unknown argument {got}; accepted: {", ".join(accepted)}')
        init(self, *args, **kwargs)

    cls.__init__ = checked  # type: ignore[assignment, method-assign]
    return cls


def renamed_arguments(**new_names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator: accept old keywords (``old='new'``) with a ``DeprecationWarning``.

    Raises (in the decorated function):
        TypeError: An old and its new keyword together.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def accept_old(*args: P.args, **kwargs: P.kwargs) -> R:
            for old, new in new_names.items():
                if old not in kwargs:
                    continue
                name = function.__qualname__.removesuffix('.__init__')
                if new in kwargs:
                    raise TypeError(f'{name} got both {new}={kwargs[new]!r} and its old name {old}={kwargs[old]!r}')
                warnings.warn(f'{name}: {old} is now {new}', DeprecationWarning, stacklevel=2)
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return accept_old

    return decorate

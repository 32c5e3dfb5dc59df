"""Checks of arguments. Every error names the argument, the value it got and what is accepted."""

import functools
import inspect
import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

T = TypeVar('T')
P = ParamSpec('P')
R = TypeVar('R')
F = TypeVar('F', bound=Callable[..., Any])


def check_choice(name: str, value: Any, choices: Collection[Any]) -> None:
    """Raise ``ValueError`` unless ``value`` is one of ``choices``."""
    if not isinstance(value, (str, type(None))) or value not in choices:
        raise ValueError(f'{name} must be one of {sorted(choices, key=str)}, got {value!r}')


def check_int(name: str, value: Any, *, minimum: int = 1, maximum: int | None = None) -> None:
    """Raise ``ValueError`` unless ``value`` is an integer in [``minimum``, ``maximum``]."""
    inside = not isinstance(value, bool) and isinstance(value, int) and value >= minimum
    if not inside or (maximum is not None and value > maximum):
        accepted = f'>= {minimum}' if maximum is None else f'in [{minimum}, {maximum}]'
        raise ValueError(f'{name} must be an integer {accepted}, got {value!r}')


def check_bool(**values: Any) -> None:
    """Raise ``ValueError`` unless each value is ``True`` or ``False``; neither 1 nor ``'False'``."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise ValueError(f'{name} must be True or False, got {value!r}')


def check_probability(**values: Any) -> None:
    """Raise ``ValueError`` unless each value is a number in [0, 1)."""
    for name, value in values.items():
        if not is_number(value) or not 0 <= value < 1:
            raise ValueError(f'{name} must be a number in [0, 1), got {value!r}')


def check_positive(*, above: float = 0, **values: Any) -> None:
    """Raise ``ValueError`` unless each value is a finite number > ``above``."""
    for name, value in values.items():
        if not is_number(value) or not value > above:
            raise ValueError(f'{name} must be a finite number > {above}, got {value!r}')


def is_number(value: Any) -> bool:
    """``True`` for a finite int or float that is not a bool."""
    return not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value)


def check_heads(dim: int, num_heads: int) -> None:
    """Raise ``ValueError`` unless the heads divide the width."""
    check_int('num_heads', num_heads)
    if dim % num_heads:
        raise ValueError(f'num_heads must divide embed_dims, got num_heads={num_heads} for embed_dims={dim}')


def list_of_dicts(name: str, value: Any) -> list[Mapping[str, Any]]:
    """``None``, a dict with a type, or a list of such dicts, to a list; anything else raises ``ValueError``."""
    entries = [] if value is None else [value] if isinstance(value, Mapping) else value
    if (
        isinstance(entries, str)
        or not isinstance(entries, Sequence)
        or not all(isinstance(e, Mapping) for e in entries)
    ):
        raise ValueError(f'{name} must be None, a dict with a type, or a list of such dicts, got {value!r}')
    return list(entries)


def accepted_keywords(function: Callable[..., Any]) -> list[str]:
    """Names of the keyword-only arguments of a function, in order."""
    parameters = inspect.signature(function).parameters
    return [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY]


def forwards_keywords_to(function: Callable[..., Any], *, without: Collection[str] = ()) -> Callable[[F], F]:
    """Decorator: ``**kwargs`` are the keyword-only arguments of ``function``, except those in ``without``.

    The signature that ``help``, ``inspect.signature`` and :func:`strict_keywords` see then lists them all.
    """
    inherited = inspect.signature(function).parameters

    def decorate(wrapper: F) -> F:
        signature = inspect.signature(wrapper)
        own = {name: p for name, p in signature.parameters.items() if p.kind is not p.VAR_KEYWORD}
        rest = [inherited[name] for name in accepted_keywords(function) if name not in own and name not in without]
        wrapper.__signature__ = signature.replace(parameters=[*own.values(), *rest])  # type: ignore[attr-defined]
        return wrapper

    return decorate


def strict_keywords(cls: type[T]) -> type[T]:
    """Class decorator: an unknown keyword is refused with its value and the accepted names.

    Python's own message names the keyword alone, and a registry's traceback buries it.
    """
    init: Callable[..., None] = cls.__init__
    accepted = [name for name in inspect.signature(init).parameters if name != 'self']

    @functools.wraps(init)
    def checked(self: T, *args: Any, **kwargs: Any) -> None:
        unknown = ', '.join(f'{name}={value!r}' for name, value in kwargs.items() if name not in accepted)
        if unknown:
            raise TypeError(f'{cls.__name__} got an unknown argument {unknown}; accepted: {", ".join(accepted)}')
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

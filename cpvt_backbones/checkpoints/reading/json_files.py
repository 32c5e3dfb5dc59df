"""Bounded reading of JSON beside weights, results and exported files."""

import json
from os import PathLike
from pathlib import Path
from typing import Any

from cpvt_backbones.errors import InputError

MAX_JSON = 64 << 20  # bytes


def read_json(file: str | PathLike[str]) -> dict[str, Any]:
    """Read a JSON object from a file of at most 64 MiB.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is larger, or :func:`parse_json` refuses its text.
    """
    name = repr(str(file))
    with Path(file).open('rb') as stream:
        content = stream.read(MAX_JSON + 1)
    if len(content) > MAX_JSON:
        raise InputError(f'{name} is damaged: it has more than {MAX_JSON >> 20} MiB')
    return parse_json(content, name)


def parse_json(content: bytes | str, name: str) -> dict[str, Any]:
    """Parse a JSON object.

    Args:
        content: The text.
        name: Name of the file or of a part of it, for error messages.

    Raises:
        ValueError: The text is not JSON, not an object, or nested too deeply.
    """
    try:
        found = json.loads(content)
    except RecursionError as error:
        raise InputError(f'{name} is damaged: it is nested too deeply') from error
    except ValueError as error:
        raise InputError(f'{name} is damaged: it is not JSON ({error})') from error
    if not isinstance(found, dict):
        kind = type(found).__name__
        raise InputError(f'{name} is damaged: it must hold a JSON object, got a {kind}')
    return found

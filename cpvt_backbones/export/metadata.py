"""What an exported file says of itself, and whether it is the file that was written."""

import os
from collections.abc import Callable
from typing import Any

from cpvt_backbones.checkpoints import parse_json
from cpvt_backbones.checks import is_int, is_number
from cpvt_backbones.errors import InputError
from cpvt_backbones.inference.sizes import GoodSizes
from cpvt_backbones.value_range import ValueRange
from cpvt_backbones.weights import sha256_of

METADATA = 'cpvt_backbones'  # key of a file's metadata, which are JSON
_SEAL = b'cpvt_backbones_sha256'


def read_metadata(entries: dict[str, Any], path: str) -> dict[str, Any]:
    """The metadata among the entries of a file; ``ValueError`` if they are missing or damaged."""
    if not entries.get(METADATA):
        raise InputError(
            f'path must be a file that cpvt export wrote; {path!r} has no entry {METADATA!r}'
        )
    metadata = parse_json(entries[METADATA], f'path: the metadata of {path!r}')
    if missing := _NEEDED - metadata.keys():
        raise InputError(f'path: {path!r} is damaged: its metadata lacks {sorted(missing)}')
    for key, accepts in _ACCEPTED.items():
        value = metadata.get(key)
        if value is None and key not in _NEEDED:
            continue
        if not accepts(value):
            raise InputError(f'path: {path!r} is damaged: its metadata has {key}={value!r:.60}')
    return metadata


def _is_list_of(kind: type, length: int | None = None) -> Callable[[Any], bool]:
    def accepts(value: Any) -> bool:
        if not isinstance(value, list) or (length is not None and len(value) != length):
            return False
        return all(isinstance(entry, kind) for entry in value)

    return accepts


def _are_steps(value: Any) -> bool:
    return _is_list_of(dict)(value) and all(isinstance(step.get('type'), str) for step in value)


def _is_palette(value: Any) -> bool:
    return _is_list_of(list)(value) and all(map(_is_list_of(int, 3), value))


def _are_sizes(value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() != GoodSizes.__annotations__.keys():
        return False
    return all(is_number(number) for key, number in value.items() if key != 'metric')


def _is_range(value: Any) -> bool:
    try:
        return bool(ValueRange(**value))
    except (TypeError, ValueError):
        return False


_NEEDED = {'task', 'input', 'outputs', 'device'}
_ACCEPTED: dict[str, Callable[[Any], bool]] = dict(
    task=lambda value: value in ('features', 'classification', 'segmentation', 'detection'),
    input=lambda value: value in ('pixels', 'normalised'),
    outputs=_is_list_of(str),
    device=lambda value: isinstance(value, str),
    classes=_is_list_of(str),
    palette=_is_palette,
    size_steps=_are_steps,
    sizes=_are_sizes,
    value_range=_is_range,
    mean=lambda value: isinstance(value, list) and all(map(is_number, value)),
    std=lambda value: isinstance(value, list) and all(map(is_number, value)),
    threshold=is_number,
    mask_threshold=is_number,
    iou_threshold=is_number,
    align_corners=lambda value: isinstance(value, bool),
    num_channels=is_int,
    in_channels=is_int,
)


def seal_file(path: str | os.PathLike[str]) -> None:
    """Append the SHA-256 of an ONNX file to it, as an entry of ``metadata_props``.

    A flipped bit in the weights would pass every other check.
    """
    entry = _seal(sha256_of(path))
    with open(path, 'ab') as file:
        file.write(entry)


def _seal(digest: str) -> bytes:
    """The entry in protobuf: key and value, each with its tag and length."""
    value = digest.encode()
    entry = b'\x0a' + bytes([len(_SEAL)]) + _SEAL + b'\x12' + bytes([len(value)]) + value
    return b'\x72' + bytes([len(entry)]) + entry


def check_seal(path: str) -> None:
    """``ValueError`` if an ONNX file has no seal, or has changed since :func:`seal_file`."""
    length = len(_seal('0' * 64))
    content = max(0, os.path.getsize(path) - length)
    with open(path, 'rb') as file:
        file.seek(content)
        found = file.read()
    if found[:-64] != _seal('0' * 64)[:-64]:
        reason = 'is damaged, or not written by cpvt export: the SHA-256 at its end is missing'
        raise InputError(f'path: {path!r} {reason}')
    if found != _seal(sha256_of(path, size=content)):
        reason = 'is damaged: its SHA-256 differs from the one stored in it'
        raise InputError(f'path: {path!r} {reason}')

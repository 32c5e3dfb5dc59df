"""Metadata of an exported file."""

from collections.abc import Callable
from typing import Any

from cpvt_backbones.checkpoints import parse_json
from cpvt_backbones.checks import is_int, is_number
from cpvt_backbones.errors import InputError
from cpvt_backbones.images.value_range import ValueRange
from cpvt_backbones.inference.sizes import GoodSizes

METADATA = 'cpvt_backbones'  # key of the metadata in a file; the value is JSON


def read_metadata(entries: dict[str, Any], path: str) -> dict[str, Any]:
    """Read the metadata from a file's entries; ``ValueError`` if they are missing or damaged."""
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

"""Weights in several files: the index that transformers and huggingface_hub write beside them."""

from collections import defaultdict
from pathlib import Path
from typing import Any

from ..report import CheckpointError, shorten
from .json_files import read_json

INDEX = '.index.json'
MAX_SHARDS = 1000


def keys_of_shards(index: Path) -> dict[str, set[str]]:
    """Names of the files that an index lists, and the keys of each.

    Raises:
        CheckpointError: The index is damaged, or names something else than files beside it.
    """
    name = f'checkpoint: {str(index)!r}'
    try:
        found: Any = read_json(index).get('weight_map')
    except ValueError as error:
        raise CheckpointError(f'checkpoint: {error}') from error
    if not isinstance(found, dict) or not found:
        raise CheckpointError(
            f'{name} must have a weight_map of keys and files, got {found!r:.100}'
        )
    shards: dict[str, set[str]] = defaultdict(set)
    for key, file in found.items():
        if not isinstance(file, str) or not _is_file_name(file):
            fault = 'must name .safetensors or .bin files of its folder'
            raise CheckpointError(f'{name} {fault}, got {file!r:.100}')
        shards[file].add(key)
    if len(shards) > MAX_SHARDS:
        raise CheckpointError(f'{name} is refused: it names more than {MAX_SHARDS} files')
    return dict(shards)


def _is_file_name(name: str) -> bool:
    """True for the name of a file of weights, without a folder."""
    return name.endswith(('.safetensors', '.bin')) and not set(name) & set('/\\:\0')


def check_shard(index: Path, name: str, expected: set[str], found: set[str]) -> None:
    """Refuse a file whose keys are not those that the index gives it."""
    for fault, keys in (('lacks', expected - found), ('has other keys,', found - expected)):
        if keys:
            raise CheckpointError(
                f'checkpoint: {str(index.with_name(name))!r} is not the file of {index.name!r}: it'
                f' {fault} {shorten(sorted(keys))}'
            )

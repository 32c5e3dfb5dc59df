"""Figures as CSV: what is drawn is always read back from there."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .files import write_whole


def write_table(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Write records as CSV, whole or not at all; the columns are all the names that occur, empty where one has none.

    Args:
        path: The CSV file.
        records: A mapping of column to value for each line; floats are written with six digits.
    """
    columns = list(dict.fromkeys(name for record in records for name in record))
    with write_whole(path) as unfinished, unfinished.open('w', newline='') as file:
        writer = csv.DictWriter(file, columns, lineterminator='\n')
        writer.writeheader()
        writer.writerows({name: _text(value) for name, value in record.items()} for record in records)


def read_table(path: Path) -> list[dict[str, str]]:
    """The records of a CSV, as text.

    Raises:
        FileNotFoundError: No such file.
    """
    if not path.is_file():
        raise FileNotFoundError(f'there is no table {str(path)!r}')
    with path.open(newline='') as file:
        return list(csv.DictReader(file))


def group_by(records: Sequence[dict[str, str]], *names: str) -> dict[tuple[str, ...], list[dict[str, str]]]:
    """Records that agree in some columns, by their values there, in order of appearance."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for record in records:
        groups.setdefault(tuple(record[name] for name in names), []).append(record)
    return groups


def _text(value: Any) -> Any:
    return f'{value:.6g}' if isinstance(value, float) else value

"""Measurements as CSV."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cpvt_backbones.checkpoints import atomic_write

Record = dict[str, str]


def write_table(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Write records as CSV with a column per key, empty if a record lacks the key.

    Floats have six digits.
    """
    text = io.StringIO(newline='')
    writer = csv.DictWriter(
        text, dict.fromkeys(name for record in records for name in record), lineterminator='\n'
    )
    writer.writeheader()
    for record in records:
        writer.writerow({k: f'{v:.6g}' if isinstance(v, float) else v for k, v in record.items()})
    with atomic_write(path) as file:
        file.write(text.getvalue().encode())


def read_table(path: Path) -> list[Record]:
    """Read the records of a CSV as text."""
    with path.open(newline='') as file:
        return list(csv.DictReader(file))

"""Results of a study's runs, and what is known of the runs, as CSV."""

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from .files import write_whole


@dataclass(frozen=True)
class Row:
    """One result: a run tested at one size.

    Attributes:
        top1: Accuracy in percent.
        shift_error: How far the feature map fails to follow a shift of the image by one patch, relative to its spread
            (:func:`~cpvt_backbones.analysis.equivariance.measure_equivariance`); at the training size only.
    """

    variant: str
    seed: int
    rate_factor: float
    epochs: int
    size: int
    top1: float
    shift_error: float | None = None


def read_rows(path: Path) -> list[Row]:
    """The rows of a CSV that :func:`write_rows` wrote."""
    with path.open(newline='') as file:
        return [
            Row(
                variant=line['variant'],
                seed=int(line['seed']),
                rate_factor=float(line['rate_factor']),
                epochs=int(line['epochs']),
                size=int(line['size']),
                top1=float(line['top1']),
                shift_error=float(line['shift_error']) if line['shift_error'] else None,
            )
            for line in csv.DictReader(file)
        ]


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """Write rows as CSV, sorted."""
    ordered = sorted(rows, key=lambda row: (row.variant, row.rate_factor, row.seed, row.size))
    with write_whole(path) as unfinished, unfinished.open('w', newline='') as file:
        writer = csv.DictWriter(file, fieldnames=[field.name for field in fields(Row)], lineterminator='\n')
        writer.writeheader()
        writer.writerows(asdict(row) for row in ordered)


RUN_FIELDS = (
    'variant',
    'seed',
    'rate_factor',
    'epochs',
    'commits',
    'processor',
    'threads',
    'python',
    'torch',
)


def write_runs(records: Sequence[dict[str, Any]], path: Path) -> None:
    """Write where and from what code each run was trained, as CSV; its config follows from code and variant."""
    with write_whole(path) as unfinished, unfinished.open('w', newline='') as file:
        writer = csv.DictWriter(file, fieldnames=RUN_FIELDS, lineterminator='\n', extrasaction='ignore')
        writer.writeheader()
        for record in records:
            writer.writerow({**record, **record['machine'], 'epochs': record['rows'][0]['epochs']})

"""What the benchmark measured: settings and rows, their CSV, their tables."""

import csv
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from cpvt_backbones.layers.checks import check_choice, check_int

DTYPES = ('fp32', 'amp-bf16', 'bf16')
MODES = ('forward', 'train')


@dataclass(frozen=True)
class Group:
    """The setting that the models of a comparison share.

    Attributes:
        height, width: Image size in pixels.
        batch: Images a call.
        dtype: ``'fp32'``, ``'amp-bf16'`` (autocast) or ``'bf16'`` (weights and images).
        mode: ``'forward'`` (inference) or ``'train'`` (forward and backward, no optimizer).
        device: ``'cpu'`` or ``'cuda'``.
        comparison: Which models meet, as ``'columns'``: two sets of models in one setting are two groups, for they took
            no turns with one another.
    """

    height: int
    width: int
    batch: int
    dtype: str = 'fp32'
    mode: str = 'forward'
    device: str = 'cpu'
    comparison: str = 'models'

    def __post_init__(self) -> None:
        for name in ('height', 'width', 'batch'):
            check_int(name, getattr(self, name))
        check_choice('dtype', self.dtype, DTYPES)
        check_choice('mode', self.mode, MODES)

    def __str__(self) -> str:
        return ', '.join(
            (
                self.comparison,
                f'{self.height} x {self.width}',
                f'batch {self.batch}',
                self.dtype,
                self.mode,
                self.device,
            )
        )


@dataclass(frozen=True)
class Row:
    """One model in one group.

    Attributes:
        round: Which time over this was, from 1.
        seconds: Median time of a call; ``quartile1`` and ``quartile3`` tell its spread.
        images_per_second: ``batch / seconds``.
        peak_mib: Memory a call needs on top of the weights, at its peak (:func:`.memory.peak_memory`).
        gflop: Operations a call needs by formula (2 a multiply-add; attention in full), 3 times that when training.
        matmul_share: Those per second over the rate of a large matrix product on this machine in the same run.
        gbyte: Bytes that the operators of an eager call read and write, views left out, fused attention as one.
        copy_share: Those per second over the bandwidth of a large copy in the same run (above 1: caches).
        peg_share: The largest share of a call that a PEG takes (:func:`.benchmark.peg_share`); nan where not measured.
        machine: Where, and with which versions (:func:`.machine.describe_machine`).
    """

    comparison: str
    model: str
    height: int
    width: int
    batch: int
    dtype: str
    mode: str
    device: str
    round: int
    seconds: float
    quartile1: float
    quartile3: float
    images_per_second: float
    peak_mib: float
    gflop: float
    matmul_share: float
    gbyte: float
    copy_share: float
    peg_share: float
    machine: str

    @property
    def group(self) -> Group:
        """The setting this row belongs to."""
        return Group(**{field.name: getattr(self, field.name) for field in fields(Group)})


def read_rows(path: Path) -> list[Row]:
    """Rows of a CSV that :func:`append_rows` wrote; none where there is no file.

    Raises:
        ValueError: It has other columns.
    """
    if not path.exists():
        return []
    kinds: dict[str, Callable[[str], Any]] = dict(str=str, int=int, float=float)
    with path.open(newline='') as file:
        reader = csv.DictReader(file)
        names = [field.name for field in fields(Row)]
        if reader.fieldnames != names:
            raise ValueError(f'{path}: the columns must be {names}, got {reader.fieldnames}; use another file')
        return [
            Row(
                **{
                    field.name: kinds[getattr(field.type, '__name__', str(field.type))](record[field.name])
                    for field in fields(Row)
                }
            )
            for record in reader
        ]


def append_rows(path: Path, rows: Sequence[Row]) -> None:
    """Add rows to a CSV, with a heading where the file is new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open('a', newline='') as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator='\n')
        if new:
            writer.writeheader()
        for row in rows:
            record = asdict(row)
            writer.writerow(
                {key: f'{value:.5g}' if isinstance(value, float) else value for key, value in record.items()}
            )


def over_rounds(rows: Sequence[Row]) -> list[Row]:
    """One row for each model and group: of every figure the median over the rounds."""
    same: dict[tuple[str, Group], list[Row]] = {}
    for row in rows:
        same.setdefault((row.model, row.group), []).append(row)
    figures = [field.name for field in fields(Row) if field.type is float]

    def medians(members: Sequence[Row]) -> dict[str, Any]:
        return {name: _median([getattr(row, name) for row in members]) for name in figures}

    return [replace(members[0], **medians(members)) for members in same.values()]


def _median(values: Sequence[float]) -> float:
    measured = [value for value in values if not math.isnan(value)]
    return statistics.median(measured) if measured else math.nan


def speeds(rows: Sequence[Row]) -> dict[str, list[float]]:
    """How many times as fast as the first each model of a group was, a number for each round.

    Args:
        rows: Rows of one group.
    """
    seconds = {(row.model, row.round): row.seconds for row in rows}
    return {
        model: [
            seconds[rows[0].model, number] / time
            for (name, number), time in seconds.items()
            if name == model and (rows[0].model, number) in seconds
        ]
        for model in dict.fromkeys(row.model for row in rows)
    }


def by_group(rows: Iterable[Row]) -> dict[Group, list[Row]]:
    """The rows of each group, in the order of their first."""
    groups: dict[Group, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return groups


def markdown_table(rows: Sequence[Row]) -> str:
    """Rows as a Markdown table, one section a group: medians over the rounds, the speed as that of the rounds' ratios.

    Args:
        rows: Rows of any groups and rounds; the others of a group are told against its first.
    """
    lines = []
    for group, members in by_group(rows).items():
        ratios = speeds(members)
        lines += [
            f'**{group}**',
            '',
            f'| model | ms (quartiles) | images/s | speed against {members[0].model} | peak MiB | GFLOP '
            '| of the matmul rate | GB | of the copy bandwidth |',
            '| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |',
        ]
        lines += [
            f'| {row.model} | {row.seconds * 1e3:.0f} ({row.quartile1 * 1e3:.0f}-{row.quartile3 * 1e3:.0f}) '
            f'| {row.images_per_second:.2f} | {statistics.median(ratios[row.model]):.2f} '
            f'| {row.peak_mib:.0f} | {row.gflop:.1f} | {row.matmul_share:.2f} '
            f'| {row.gbyte:.2f} | {row.copy_share:.2f} |'
            for row in over_rounds(members)
        ]
        lines.append('')
    return '\n'.join(lines)


def peg_table(rows: Sequence[Row]) -> str:
    """The share of a call that the costliest PEG of each model takes, as a Markdown table."""
    lines = ['| one PEG, share of the call (at most 0.01) | | |', '| --- | --- | ---: |']
    lines += [
        f'| {row.model} | {row.group} | {row.peg_share:.4f} |'
        for row in over_rounds(rows)
        if not math.isnan(row.peg_share)
    ]
    return '\n'.join(lines)

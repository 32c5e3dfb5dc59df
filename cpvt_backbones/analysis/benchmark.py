"""Speed and memory of backbones, measured side by side.

The models of a group take turns, call by call, so that whatever else the machine does hits all of them alike; a row
of one run is comparable with the other rows of its group and with nothing else.
"""

import csv
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from cpvt_backbones.layers import PEG, reference_attention
from cpvt_backbones.layers.checks import check_choice, check_int

from .contestants import CONTESTANTS
from .memory import peak_memory

COMPILED = '_compiled'
"""Behind a contestant's name: this one goes through ``torch.compile``, taking turns with its eager self."""

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
        peak_mib: Memory a call needs on top of the weights, at its peak (:func:`peak_memory`).
        gflop: Operations a call needs by formula (2 a multiply-add; attention in full), 3 times that when training.
        matmul_share: Those per second over the rate of a large matrix product on this machine in the same run.
        gbyte: Bytes that the operators of an eager call read and write, views left out, fused attention as one.
        copy_share: Those per second over the bandwidth of a large copy in the same run (above 1: caches).
        peg_share: The largest share of a call that one PEG takes (:func:`peg_share`); nan where it is not measured.
        machine: Where, and with which versions (:func:`describe_machine`).
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


def describe_machine(device: str) -> dict[str, str]:
    """What a figure must carry beside it: processor, threads, versions."""
    processor = platform.processor() or platform.machine()
    if Path('/proc/cpuinfo').exists():
        names = [
            line.partition(':')[2].strip()
            for line in Path('/proc/cpuinfo').read_text().splitlines()
            if line.startswith('model name')
        ]
        processor = names[0] if names else processor
    described = dict(
        processor=f'{processor}, {os.cpu_count()} cores',
        threads=str(torch.get_num_threads()),
        python=platform.python_version(),
        torch=torch.__version__,
    )
    if device == 'cuda':
        described['gpu'] = torch.cuda.get_device_name()
    return described


def synchronize(device: str) -> None:
    if device == 'cuda':
        torch.cuda.synchronize()


def best_time(call: Callable[[], object], device: str, *, calls: int = 1) -> float:
    """Seconds a call takes, the best of five looks at the clock with ``calls`` in between."""
    times = []
    for _ in range(6):
        synchronize(device)
        start = time.perf_counter()
        for _ in range(calls):
            call()
        synchronize(device)
        times.append((time.perf_counter() - start) / calls)
    return min(times[1:])


def measure_limits(device: str, dtype: str) -> tuple[float, float]:
    """The machine's own limits, measured now: (matmul rate in FLOP/s, copy bandwidth in bytes/s read plus written)."""
    element = torch.float32 if dtype == 'fp32' else torch.bfloat16
    side, length = (2048, 1 << 26) if device == 'cpu' else (8192, 1 << 30)
    a, b = (torch.randn(side, side, device=device).to(element) for _ in range(2))
    rate = 2 * side**3 / best_time(lambda: a @ b, device)
    source = torch.zeros(length // 4, device=device)
    target = torch.empty_like(source)
    return rate, 2 * length / best_time(lambda: target.copy_(source), device)


def count_flops(name: str, group: Group) -> float:
    """Operations of one forward call, counted on the meta device with attention written out."""
    # torch.nn.MultiheadAttention has a fast path that the counter does not see.
    torch.backends.mha.set_fastpath_enabled(False)
    model = CONTESTANTS[name.removesuffix(COMPILED)]()
    model.requires_grad_(False).to('meta')
    model.eval()  # on a line of its own: mmseg's ViT returns nothing here
    images = torch.empty(group.batch, 3, group.height, group.width, device='meta')
    with FlopCounterMode(display=False) as counter, reference_attention(), torch.no_grad():
        model(images)
    torch.backends.mha.set_fastpath_enabled(True)
    return float(counter.get_total_flops())


class _Traffic(TorchDispatchMode):
    """Counts the bytes of what each operator takes and gives."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not any(value.alias_info is not None and not value.alias_info.is_write for value in func._schema.returns):
            tensors = (leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor))
            self.bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return result


def _flatten(outputs: object) -> Iterator[Tensor]:
    if isinstance(outputs, Tensor):
        yield outputs
    elif isinstance(outputs, Iterable):
        for output in outputs:
            yield from _flatten(output)


def _make_call(model: nn.Module, group: Group, *, compiled: bool) -> Callable[[], None]:
    element = torch.bfloat16 if group.dtype == 'bf16' else torch.float32
    model = model.to(group.device, element)
    run = torch.compile(model) if compiled else model
    images = torch.randn(group.batch, 3, group.height, group.width, device=group.device, dtype=element)

    def autocast() -> AbstractContextManager[object]:
        return torch.autocast(group.device, torch.bfloat16) if group.dtype == 'amp-bf16' else nullcontext()

    def forward() -> None:
        with torch.no_grad(), autocast():
            run(images)

    def train() -> None:
        with autocast():
            outputs = run(images)
        torch.stack([output.float().mean() for output in _flatten(outputs)]).sum().backward()
        model.zero_grad(set_to_none=True)

    model.train(group.mode == 'train')
    return forward if group.mode == 'forward' else train


def run_group(
    names: Sequence[str],
    group: Group,
    *,
    repeats: int,
    number: int = 1,
) -> list[Row]:
    """Measure models in turns.

    Args:
        names: Names in :data:`CONTESTANTS`, perhaps with :data:`COMPILED` behind them.
        group: The setting.
        repeats: Timed calls of each model, after one that is not counted.
        number: Which round this is.

    Returns:
        A row for each model; its shares are not known yet (:func:`with_shares`).
    """
    for name in names:
        if name.removesuffix(COMPILED) not in CONTESTANTS:
            raise ValueError(f'models must be among {sorted(CONTESTANTS)}, got {name!r}')
        if group.mode == 'train' and name.removesuffix(COMPILED).endswith('_fused'):
            raise ValueError(f"models must be trainable with mode='train', got {name!r}: fuse() is for inference")
    check_int('repeats', repeats)
    calls, peaks, traffic, pegs = {}, {}, {}, {}
    for name in names:
        torch.manual_seed(0)
        model = CONTESTANTS[name.removesuffix(COMPILED)]()
        compiled = name.endswith(COMPILED)
        eager = _make_call(model, group, compiled=False)
        with _Traffic() as counter:  # not counted as time: allocations, kernel choices
            eager()
        traffic[name] = counter.bytes
        calls[name] = _make_call(model, group, compiled=compiled)
        if compiled:
            calls[name]()
        elif group.mode == 'forward' and group.device == 'cpu':  # waiting for a GPU would cost more than a PEG
            pegs[name] = [module for module in model.modules() if isinstance(module, PEG)]
        peaks[name] = peak_memory(calls[name], group.device)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(repeats):
        # Another model begins each time: what one leaves behind in the caches and the heap meets another one next.
        for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
            call = calls[name]
            synchronize(group.device)
            start = time.perf_counter()
            call()
            synchronize(group.device)
            times[name].append(time.perf_counter() - start)
    machine = ', '.join(f'{key} {value}' for key, value in describe_machine(group.device).items())
    rows = []
    for name in names:
        median = statistics.median(times[name])
        low, high = (statistics.quantiles(times[name], n=4)[i] for i in (0, 2)) if repeats > 1 else (median, median)
        flops = count_flops(name, group) * (3 if group.mode == 'train' else 1)
        rows.append(
            Row(
                model=name,
                **asdict(group),
                round=number,
                seconds=median,
                quartile1=low,
                quartile3=high,
                images_per_second=group.batch / median,
                peak_mib=peaks[name],
                gflop=flops / 1e9,
                matmul_share=math.nan,
                gbyte=traffic[name] / 1e9,
                copy_share=math.nan,
                peg_share=peg_share(pegs.get(name, ()), calls[name], repeats=repeats),
                machine=machine,
            )
        )
    return rows


def with_shares(row: Row, *, matmul_rate: float, bandwidth: float) -> Row:
    """A row with its shares of the machine's limits, see :func:`measure_limits`."""
    return replace(
        row,
        matmul_share=row.gflop * 1e9 / row.seconds / matmul_rate,
        copy_share=row.gbyte * 1e9 / row.seconds / bandwidth,
    )


def peg_share(pegs: Sequence[nn.Module], call: Callable[[], object], *, repeats: int) -> float:
    """The largest share of a call that one PEG takes, median over calls; nan without PEGs.

    Args:
        pegs: The layers.
        call: What runs each of them, on the CPU.
        repeats: Timed calls.
    """
    if not pegs:
        return math.nan
    started: dict[nn.Module, float] = {}
    spent: dict[nn.Module, float] = {}

    def start(module: nn.Module, _: Any) -> None:
        started[module] = time.perf_counter()

    def stop(module: nn.Module, *_: Any) -> None:
        spent[module] = time.perf_counter() - started[module]

    hooks = [peg.register_forward_pre_hook(start) for peg in pegs] + [peg.register_forward_hook(stop) for peg in pegs]
    shares = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        shares.append(max(spent.values()) / (time.perf_counter() - begin))
    for hook in hooks:
        hook.remove()
    return statistics.median(shares)


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

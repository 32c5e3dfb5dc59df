"""Speed and memory of backbones, measured side by side.

The models of a group take turns, call by call, so that whatever else the machine does hits all of them alike; a row
of one run is comparable with the other rows of its group and with nothing else.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from cpvt_backbones.layers import PEG, reference_attention
from cpvt_backbones.layers.checks import check_int

from .benchmark_rows import Group, Row
from .contestants import CONTESTANTS
from .machine import describe_machine, synchronize
from .memory import peak_memory

COMPILED = '_compiled'
"""Behind a contestant's name: this one goes through ``torch.compile``, taking turns with its eager self."""


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
    """A row with its shares of the machine's limits, see :func:`.machine.measure_limits`."""
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

"""Time, memory and operations of models that take turns, and the limits of the machine in the same
run.
"""

import math
import platform
import statistics
import time
import timeit
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from cpvt.command_line import keep_memory
from cpvt_backbones.analysis.complexity import explicit_attention
from cpvt_backbones.analysis.memory import peak_memory, synchronize
from cpvt_backbones.layers import PEG

from . import instructions, processor
from .cases import BenchmarkCase
from .models import MODELS
from .routes import base_of, route_of, runs_in_torch

KEPT, DEFAULT = 'memory kept', "the allocator's default"
"""What becomes of freed memory: it decides how many page faults a call has."""


def measure_keeping_memory(case: BenchmarkCase, number: int) -> list[dict[str, Any]]:
    """Measure a case in a process that keeps freed memory, unless the environment has settings."""
    kept = keep_memory()
    return measure_case(case, number, memory=KEPT if kept else DEFAULT)


def measure_case(case: BenchmarkCase, number: int, memory: str = DEFAULT) -> list[dict[str, Any]]:
    """Measure every model of a case, in round ``number``: a row for each, with the columns of
    ``report.COLUMNS``.

    The models take turns call by call, so that other load on the machine affects all of them alike.
    ``memory`` says what becomes of freed memory in this process, for the record.
    """
    before = measure_limits(case)
    measured = [_Measured(name, case) for name in case.models]
    for turn in range(case.repeats):
        # Another model begins each turn, so that no model always runs on the caches and the heap
        # left by the same one.
        start = turn % len(measured)
        for model in (*measured[start:], *measured[:start]):
            model.time_call()
    # The faster of the rates before and after: other load on the machine can only lower them.
    rate, bandwidth = map(max, before, measure_limits(case))
    machine = f'{describe_machine(case.device)}, {date.today().isoformat()}, {memory}'
    return [
        dict(**case.setting, round=number, machine=machine, **model.figures(rate, bandwidth))
        for model in measured
    ]


class _Measured:
    def __init__(self, name: str, case: BenchmarkCase) -> None:
        self.name, self.case = name, case
        self.pegs: list[nn.Module] = []
        self.times: list[float] = []
        torch.manual_seed(0)
        model = MODELS[base_of(name)]()
        self.call = make_call(model, model, case)
        with CountBytes() as counter:  # this call also makes torch choose its kernels
            self.call()
        self.gbyte = counter.bytes / 1e9
        if name != base_of(name):
            self.call = make_call(model, route_of(name, model), case)
            self.call()
        elif (
            case.mode == 'forward' and case.device == 'cpu'
        ):  # on a GPU, waiting for a PEG costs more than the PEG
            self.pegs = [module for module in model.modules() if isinstance(module, PEG)]
        self.peak_mib = peak_memory(self.call, case.device) if runs_in_torch(name) else math.nan

    def time_call(self) -> None:
        synchronize(self.case.device)
        start = time.perf_counter()
        self.call()
        synchronize(self.case.device)
        self.times.append(time.perf_counter() - start)

    def figures(self, rate: float, bandwidth: float) -> dict[str, Any]:
        quartile1, seconds, quartile3 = statistics.quantiles(
            self.times if len(self.times) > 1 else 2 * self.times
        )
        gflop = count_flops(self.name, self.case) / 1e9
        speed = dict(
            quartile1=quartile1, quartile3=quartile3, images_per_second=self.case.batch / seconds
        )
        matmul_share, copy_share = (
            gflop * 1e9 / seconds / rate,
            self.gbyte * 1e9 / seconds / bandwidth,
        )
        work = dict(gflop=gflop, matmul_share=matmul_share, gbyte=self.gbyte, copy_share=copy_share)
        share = peg_share(self.pegs, self.call, repeats=self.case.repeats)
        return dict(
            model=self.name,
            seconds=seconds,
            **speed,
            peak_mib=self.peak_mib,
            **work,
            peg_share=share,
        )


def make_call(
    model: nn.Module, run: Callable[[Tensor], Any], case: BenchmarkCase
) -> Callable[[], None]:
    """One call of a case on random images, through ``run``: ``model``, or the same compiled."""
    dtype = torch.bfloat16 if case.dtype == 'bf16' else torch.float32
    if run is model:  # a route has its own precision
        model.to(case.device, dtype)
    model.train(case.mode == 'train')
    images = torch.randn(case.batch, 3, case.height, case.width, device=case.device, dtype=dtype)
    autocast = torch.autocast(case.device, torch.bfloat16, enabled=case.dtype == 'amp-bf16')

    def forward() -> None:
        with torch.no_grad(), autocast:
            run(images)

    def train() -> None:
        with autocast:
            outputs = run(images)
        torch.stack([output.float().mean() for output in _tensors(outputs)]).sum().backward()
        model.zero_grad(set_to_none=True)

    return forward if case.mode == 'forward' else train


def _tensors(outputs: object) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor))


def count_flops(name: str, case: BenchmarkCase) -> float:
    """Operations of one call, on the meta device with attention written out.

    Three forward calls for training.
    """
    model = MODELS[base_of(name)]().requires_grad_(False).to('meta')
    model.eval()  # not chained: the eval() of mmseg's ViT returns None
    images = torch.empty(case.batch, 3, case.height, case.width, device='meta')
    with FlopCounterMode(display=False) as counter, explicit_attention(), torch.no_grad():
        model(images)
    return float(counter.get_total_flops()) * (3 if case.mode == 'train' else 1)


class CountBytes(TorchDispatchMode):
    """Counts the bytes that operators read and write, views left out and fused attention as one
    operator.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not any(
            value.alias_info is not None and not value.alias_info.is_write
            for value in func._schema.returns
        ):
            self.bytes += sum(
                tensor.numel() * tensor.element_size()
                for tensor in _tensors((args, kwargs, result))
            )
        return result


def peg_share(pegs: Sequence[nn.Module], call: Callable[[], object], *, repeats: int) -> float:
    """The largest share of the time of a call (on the CPU) that one PEG takes, median over calls.

    Nan without PEGs.
    """
    if not pegs:
        return math.nan
    started: dict[nn.Module, float] = {}
    spent: dict[nn.Module, float] = {}

    def start(module: nn.Module, _: Any) -> None:
        started[module] = time.perf_counter()

    def stop(module: nn.Module, *_: Any) -> None:
        spent[module] = time.perf_counter() - started[module]

    hooks = [peg.register_forward_pre_hook(start) for peg in pegs] + [
        peg.register_forward_hook(stop) for peg in pegs
    ]
    shares = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        shares.append(max(spent.values()) / (time.perf_counter() - begin))
    for hook in hooks:
        hook.remove()
    return statistics.median(shares)


def measure_limits(case: BenchmarkCase) -> tuple[float, float]:
    """Limits of the machine now: matmul rate in FLOP/s, copy bandwidth in bytes/s, read plus
    written.
    """
    dtype = torch.float32 if case.dtype == 'fp32' else torch.bfloat16
    side, length = (2048, 1 << 26) if case.device == 'cpu' else (8192, 1 << 30)
    a, b = (torch.randn(side, side, device=case.device).to(dtype) for _ in range(2))
    source = torch.zeros(length // 4, device=case.device)
    target = torch.empty_like(source)

    def best_time(call: Callable[[], object]) -> float:
        def finished() -> None:
            call()
            synchronize(case.device)

        return min(timeit.repeat(finished, number=1, repeat=6)[1:])

    return 2 * side**3 / best_time(lambda: a @ b), 2 * length / best_time(
        lambda: target.copy_(source)
    )


def describe_machine(device: str) -> str:
    """Processor, threads and versions, in one line."""
    versions = f'python {platform.python_version()}, torch {torch.__version__}'
    text = (
        f'processor {processor()}, {instructions()}, threads {torch.get_num_threads()}, {versions}'
    )
    return f'{text}, gpu {torch.cuda.get_device_name()}' if device == 'cuda' else text

"""Time and memory of attention with the relative positions of ViTDet and SAM.

    python benchmarks/relative_positions.py --out docs/benchmarks/relative_positions.csv

The way that `cpvt_backbones.layers.axial_bias` chooses follows from this table.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pandas as pd
import torch
from torch import Tensor

from benchmarks.in_turns import machine, milliseconds, parse_args, time_in_turns
from cpvt.command_line import run
from cpvt_backbones.analysis.memory import peak_memory
from cpvt_backbones.layers import DecomposedRelative, Stage
from cpvt_backbones.layers.attention import attend
from cpvt_backbones.layers.axial_bias import whole_bias

HEADS, WIDTH = 12, 64  # of ViT-B
# Maps and the side of their grid: a global block at 1024 px and at 512 px, the 25 windows of a
# block at 1024 px.
CASES = ((1, 64), (1, 32), (25, 14))


@contextmanager
def by_channels() -> Iterator[None]:
    """Context in which the bias is appended to queries and keys."""
    with mock.patch('cpvt_backbones.layers.attention.stores_bias', return_value=False):
        yield


# `whole` stores an N x N matrix; `parts` adds it in parts, and is for inference.
WAYS: dict[str, Callable[[], Any]] = {
    'none': nullcontext,
    'whole': whole_bias,
    'parts': nullcontext,
    'channels': by_channels,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Write milliseconds and MiB of each way, in inference and in training, for all cases."""
    args = parse_args(__doc__, argv, repeats=5)
    rows = []
    for maps, side in CASES:
        for training in (False, True):
            for way, figures in measure_ways(maps, side, training, args.repeats).items():
                row = dict(maps=maps, side=side, training=training, way=way, **figures)
                rows.append(dict(**row, threads=args.threads, machine=machine()))
    table = pd.DataFrame(rows)
    print(table.drop(columns='machine').to_string(index=False), flush=True)
    table.to_csv(args.out, index=False)


def measure_ways(maps: int, side: int, training: bool, repeats: int) -> dict[str, dict[str, float]]:
    """Median time of a call, and its peak memory, by way. The ways take turns."""
    torch.manual_seed(0)
    stage = Stage(
        dim=HEADS * WIDTH, depth=1, used=1, head_dim=WIDTH, grid=(side, side), num_prefix=0
    )
    encoding = DecomposedRelative([stage])
    parts = [torch.randn(maps, HEADS, side * side, WIDTH, requires_grad=training) for _ in range(3)]

    def call(way: str) -> None:
        with torch.set_grad_enabled(training), WAYS[way]():
            bias = None
            if way != 'none':
                bias = encoding.attention_bias(0, 0, parts[0], (side, side))
            out: Tensor = attend(*parts, bias=bias)
            if training:
                out.sum().backward()

    calls = {way: partial(call, way) for way in WAYS if not (training and way == 'parts')}
    times = time_in_turns(calls, repeats)
    return {
        way: dict(ms=round(milliseconds(times[way]), 1), mib=round(peak_memory(one, 'cpu'), 1))
        for way, one in calls.items()
    }


if __name__ == '__main__':
    run(main)

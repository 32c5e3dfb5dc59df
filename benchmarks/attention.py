"""Time attention in bfloat16 on a CPU: torch's fused kernel against blocks of queries.

    python benchmarks/attention.py --out docs/benchmarks/attention.csv

The blocks that `cpvt_backbones.layers.blocked_attention` chooses follow from this table.
"""

import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.in_turns import machine, milliseconds, parse_args, time_in_turns
from cpvt.command_line import run
from cpvt_backbones.layers import blocked_attention

# Images, heads, queries and keys of the four stages of PyramidCPVT-S and of CPVT-S at
# 800 x 1344 px, of CPVT-S at 224 px alone and in a batch, and of windows of 14 x 14 tokens.
SHAPES = (
    (1, 1, 67_200, 1_050),
    (1, 2, 16_800, 1_050),
    (1, 5, 4_200, 1_050),
    (1, 8, 1_050, 1_050),
    (1, 6, 4_200, 4_200),
    (1, 6, 197, 197),
    (8, 6, 197, 197),
    (24, 6, 196, 196),
    (64, 6, 49, 49),
)
ROWS = (64, 128, 256, 512, 1024)


def main(argv: Sequence[str] | None = None) -> None:
    """Write the speed of each size of block, relative to the fused kernel, for all shapes."""
    args = parse_args(__doc__, argv, repeats=7)
    rows = []
    for batch, heads, queries, keys in SHAPES:
        ratios = relative_speed(batch, heads, queries, keys, args.repeats)
        row = dict(batch=batch, heads=heads, queries=queries, keys=keys, **ratios)
        rows.append(dict(**row, threads=args.threads, machine=machine()))
        print(pd.DataFrame(rows[-1:]).drop(columns='machine').to_string(index=False), flush=True)
    pd.DataFrame(rows).to_csv(args.out, index=False)


@torch.inference_mode()
def relative_speed(
    batch: int, heads: int, queries: int, keys: int, repeats: int
) -> dict[str, float]:
    """Milliseconds of the fused kernel, and how many times as fast each size of block is.

    The ways take turns; a median over the turns.
    """
    torch.manual_seed(0)

    def tensor(tokens: int) -> Tensor:
        packed = torch.randn(batch, tokens, heads, 64, dtype=torch.bfloat16)
        return packed.transpose(1, 2)

    query, key, value = tensor(queries), tensor(keys), tensor(keys)
    ways: dict[str, Callable[[], Tensor]] = {
        'fused_ms': lambda: F.scaled_dot_product_attention(query, key, value)
    }
    for rows in ROWS:
        if rows < 2 * queries:
            ways[f'rows_{rows}'] = partial(_in_blocks, query, key, value, rows)
    times = time_in_turns(ways, repeats)
    fused = times.pop('fused_ms')
    found = {'fused_ms': round(milliseconds(fused), 3)}
    for name, seconds in times.items():
        found[name] = round(statistics.median(map(float.__truediv__, fused, seconds)), 2)
    return found


def _in_blocks(query: Tensor, key: Tensor, value: Tensor, rows: int) -> Tensor:
    with mock.patch.object(blocked_attention, 'block_rows', lambda *_: rows):
        return blocked_attention.attend_in_blocks(query, key, value)


if __name__ == '__main__':
    run(main)

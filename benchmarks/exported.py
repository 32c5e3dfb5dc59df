"""Time of whole models in the runtimes of an exported file, beside PyTorch.

python benchmarks/exported.py --out docs/benchmarks/exported.csv

A call takes one normalised image to boxes or a class map: 800 x 1344 px for RetinaNet, 512 x 512 px
for segmentors. Weights are random, so that no box passes the score threshold and suppression has
nothing to do. The runtimes take turns. A row has milliseconds, and times as fast as PyTorch.
"""

import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for `benchmarks`, where this file runs as a script

import pandas as pd  # noqa: E402
import torch  # noqa: E402

from benchmarks.detector_price import SIZES, build  # noqa: E402
from benchmarks.in_turns import machine, milliseconds, parse_args, time_in_turns  # noqa: E402
from cpvt.command_line import run  # noqa: E402
from cpvt_backbones.export import ExportedModel, ExportGraph, export, graph_of  # noqa: E402

MODELS = [
    ('retinanet', 'PyramidCPVT-S'),
    ('retinanet', 'PVTv2-B2'),
    ('semantic_fpn', 'PyramidCPVT-S'),
    ('upernet', 'PyramidCPVT-S'),
]
RUNTIMES = ('onnxruntime', 'openvino', 'openvino-bfloat16')


def predict(graph: ExportGraph, images: torch.Tensor) -> None:
    """A prediction in PyTorch."""
    with torch.inference_mode():
        graph(images)


def measure(
    model: str, backbone: str, *, repeats: int, size: tuple[int, int] | None = None
) -> dict[str, float]:
    """Milliseconds of a call by runtime; PyTorch comes first."""
    graph = graph_of(build(model, backbone).eval(), pixels=False)
    images = torch.rand(1, 3, *(size or SIZES[model]))
    ways: dict[str, Callable[[], object]] = {'PyTorch': partial(predict, graph, images)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, 'model.onnx')
        export(graph, path)
        for runtime in RUNTIMES:
            exported = ExportedModel(path, device='cpu', runtime=runtime)
            ways[runtime] = partial(exported.run, images.numpy())
        times = time_in_turns(ways, repeats)
    return {name: milliseconds(seconds) for name, seconds in times.items()}


def main(argv: Sequence[str] | None = None) -> None:
    """Write a row for each model and runtime."""
    args = parse_args(__doc__, argv, repeats=3)
    rows = []
    for model, backbone in MODELS:
        found = measure(model, backbone, repeats=args.repeats)
        for runtime, ms in found.items():
            ratio = round(found['PyTorch'] / ms, 2)
            row = dict(model=model, backbone=backbone, runtime=runtime, ms=round(ms), ratio=ratio)
            rows.append(row | dict(threads=args.threads, machine=machine()))
            print(*row.values(), sep='\t', flush=True)
    pd.DataFrame(rows).to_csv(args.out, index=False)


if __name__ == '__main__':
    run(main)

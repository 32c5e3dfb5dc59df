"""Time and memory of RetinaNet with ResNet-50, Swin-T, PVT-S, PyramidCPVT-S and PVTv2-B0 to B5.

python benchmarks/detector_price.py --out docs/benchmarks/detectors.csv
python benchmarks/detector_price.py --train --out docs/benchmarks/detectors_train.csv
python benchmarks/detector_price.py --memory --out docs/benchmarks/detectors.csv

The last line measures the memory alone, of the models that the file has, and keeps its times.

A call is the backbone, the neck and the head for one image of 800 x 1344 px in float32, without
the post-processing. A training step is the losses of two images of 512 x 512 px and the backward
pass. The models take turns. Memory is the peak of what the second call asks of torch's
allocator. Weights are random: they change neither.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for `benchmarks`, where this file runs as a script

import pandas as pd  # noqa: E402
import torch  # noqa: E402
from mmengine.hub import get_config  # noqa: E402
from mmengine.registry import MODELS, init_default_scope  # noqa: E402
from torch import nn  # noqa: E402

import cpvt_backbones  # noqa: E402, F401  (registers the models)
from benchmarks.in_turns import machine, milliseconds, parse_args, time_in_turns  # noqa: E402
from benchmarks.training import WithLosses  # noqa: E402
from cpvt.command_line import run  # noqa: E402
from cpvt_backbones.analysis.memory import peak_memory  # noqa: E402
from cpvt_backbones.toolboxes import read_config  # noqa: E402

CONFIGS = {
    'ResNet-50': 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py',
    'Swin-T': str(ROOT / 'configs/retinanet/retinanet_swin-t_fpn_1x_coco.py'),
    'PVT-S': str(ROOT / 'configs/published/pvt/retinanet_pvt-s_fpn_1x_coco.py'),
    'PyramidCPVT-S': str(ROOT / 'configs/retinanet/retinanet_pyramid-cpvt-s_fpn_1x_coco.py'),
    **{
        f'PVTv2-B{size}': str(
            ROOT / f'configs/published/pvt/retinanet_pvtv2-b{size}_fpn_1x_coco.py'
        )
        for size in range(6)
    },
}
IMAGE = torch.rand(1, 3, 800, 1344)
BATCH = torch.rand(2, 3, 512, 512)


def build(config: str) -> nn.Module:
    """The detector of a config, with random weights."""
    cfg = get_config(config) if '::' in config else read_config(config)
    init_default_scope('mmdet')
    cfg.model.backbone.init_cfg = None
    return MODELS.build(cfg.model)


def predict(model: nn.Module) -> None:
    """A prediction, without its post-processing."""
    with torch.inference_mode():
        model.eval()(IMAGE)


def train(model: nn.Module) -> None:
    """The losses of random boxes, and their gradients."""
    detector = WithLosses(model).train()
    loss, _ = detector.model.parse_losses(detector(BATCH))
    loss.backward()


def measure_memory(config: str, call: Callable[[nn.Module], None]) -> dict[str, int]:
    """MiB that a call asks of torch's allocator at its peak, gradients included; parameters."""
    model = build(config)
    call(model)  # buffers that a model keeps are made here
    model.zero_grad(set_to_none=True)
    mib = round(peak_memory(partial(call, model), 'cpu'))
    return dict(mib=mib, parameters=sum(one.numel() for one in model.parameters()))


def measure_times(
    call: Callable[[nn.Module], None], repeats: int, threads: int
) -> list[dict[str, object]]:
    """A row for each detector, without its memory."""
    ways = {name: partial(call, build(config)) for name, config in CONFIGS.items()}
    times = time_in_turns(ways, repeats)
    on = dict(threads=threads, machine=machine())
    return [dict(backbone=name, ms=round(milliseconds(times[name])), **on) for name in CONFIGS]


def main(argv: Sequence[str] | None = None) -> None:
    """Write a row for each detector."""
    args = parse_args(
        __doc__,
        argv,
        repeats=5,
        train='a training step, not a prediction',
        memory='measure the memory only, and keep the times of the file',
    )
    call = train if args.train else predict
    if args.memory:
        table = pd.read_csv(args.out)
    else:
        table = pd.DataFrame(measure_times(call, args.repeats, args.threads))
    memory = pd.DataFrame([measure_memory(CONFIGS[name], call) for name in table.backbone])
    table = table.assign(mib=memory.mib, mib_machine=machine(), parameters=memory.parameters)
    print(table[['backbone', 'ms', 'mib', 'threads']].to_string(index=False))
    table.to_csv(args.out, index=False)


if __name__ == '__main__':
    run(main)

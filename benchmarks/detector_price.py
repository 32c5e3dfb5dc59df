"""Time and memory of RetinaNet with ResNet-50, Swin-T, PVT-S, PyramidCPVT-S and PVTv2-B0 to B5.

python benchmarks/detector_price.py --out docs/benchmarks/detectors.csv
python benchmarks/detector_price.py --train --out docs/benchmarks/detectors_train.csv

A call is the backbone, the neck and the head for one image of 800 x 1344 px in float32, without
the post-processing. A training step is the losses of two images of 512 x 512 px and the backward
pass. The models take turns. Memory is what one call adds to a process of its own at its peak.
Weights are random: they change neither.
"""

import multiprocessing
import resource
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


def peak_mib(config: str, call: Callable[[nn.Module], None]) -> float:
    """MiB that a call adds to the memory of this process at its peak."""
    model = build(config)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    call(model)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def main(argv: Sequence[str] | None = None) -> None:
    """Write a row for each detector."""
    args = parse_args(__doc__, argv, repeats=5, train='a training step, not a prediction')
    call = train if args.train else predict
    memory = {}
    for name, config in CONFIGS.items():
        with multiprocessing.get_context('spawn').Pool(1) as pool:
            memory[name] = pool.apply(peak_mib, (config, call))
    ways = {name: partial(call, build(config)) for name, config in CONFIGS.items()}
    times = time_in_turns(ways, args.repeats)
    rows = [
        dict(
            backbone=name,
            ms=round(milliseconds(times[name])),
            mib=round(memory[name]),
            threads=args.threads,
            machine=machine(),
        )
        for name in CONFIGS
    ]
    print(pd.DataFrame(rows).drop(columns='machine').to_string(index=False))
    pd.DataFrame(rows).to_csv(args.out, index=False)


if __name__ == '__main__':
    run(main)

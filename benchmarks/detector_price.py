"""Time and memory of detectors and segmentors that differ in the backbone.

python benchmarks/detector_price.py --out docs/benchmarks/detectors.csv
python benchmarks/detector_price.py --model semantic_fpn --out docs/benchmarks/semantic_fpn.csv
python benchmarks/detector_price.py --model upernet --out docs/benchmarks/upernet.csv
python benchmarks/detector_price.py --train --out docs/benchmarks/detectors_train.csv
python benchmarks/detector_price.py --memory --out docs/benchmarks/detectors.csv

The last line measures the memory alone, of the models that the file has, and keeps its times.

A call is the backbone, the neck and the head for one image in float32, without the
post-processing: 800 x 1344 px for RetinaNet, 512 x 512 px for segmentors. A training step is the
losses of two images of 512 x 512 px and the backward pass. The models take turns. Memory is the
peak of what the second call asks of torch's allocator. Weights are random: they change neither.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for `benchmarks`, where this file runs as a script

import pandas as pd  # noqa: E402
import torch  # noqa: E402
from mmengine.config import Config  # noqa: E402
from mmengine.hub import get_config  # noqa: E402
from mmengine.model import revert_sync_batchnorm  # noqa: E402
from mmengine.registry import MODELS, init_default_scope  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import cpvt_backbones  # noqa: E402, F401  (registers the models)
from benchmarks.in_turns import machine, milliseconds, parse_args, time_in_turns  # noqa: E402
from benchmarks.training import WithLosses  # noqa: E402
from cpvt.command_line import run  # noqa: E402
from cpvt_backbones.analysis.memory import peak_memory  # noqa: E402
from cpvt_backbones.toolboxes import read_config  # noqa: E402

SEMANTIC_FPN = 'configs/semantic_fpn/semantic-fpn_pyramid-cpvt-s_8xb4-40k_ade20k-512x512.py'
# By model and backbone. No config has Semantic FPN with PVT-S: its backbone is that of RetinaNet's,
# in the place of PyramidCPVT-S, whose maps have the same channels.
CONFIGS = {
    'retinanet': {
        'ResNet-50': 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py',
        'Swin-T': 'configs/retinanet/retinanet_swin-t_fpn_1x_coco.py',
        'PVT-S': 'configs/published/pvt/retinanet_pvt-s_fpn_1x_coco.py',
        'PyramidCPVT-S': 'configs/retinanet/retinanet_pyramid-cpvt-s_fpn_1x_coco.py',
        **{
            f'PVTv2-B{size}': f'configs/published/pvt/retinanet_pvtv2-b{size}_fpn_1x_coco.py'
            for size in range(6)
        },
    },
    'semantic_fpn': {
        'ResNet-50': 'mmseg::sem_fpn/fpn_r50_4xb4-160k_ade20k-512x512.py',
        'Swin-T': 'configs/semantic_fpn/semantic-fpn_swin-t_8xb4-40k_ade20k-512x512.py',
        'PVT-S': SEMANTIC_FPN,
        'PyramidCPVT-S': SEMANTIC_FPN,
    },
    'upernet': {
        'ResNet-50': 'mmseg::upernet/upernet_r50_4xb4-160k_ade20k-512x512.py',
        'Swin-T': (
            'mmseg::swin/swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512.py'
        ),
        'PyramidCPVT-S': 'configs/upernet/upernet_pyramid-cpvt-s_8xb4-160k_ade20k-512x512.py',
    },
}
SIZES = dict(retinanet=(800, 1344), semantic_fpn=(512, 512), upernet=(512, 512))
BATCH = torch.rand(2, 3, 512, 512)


def read(config: str) -> Config:
    """A config of a toolbox, or of this repository."""
    return get_config(config) if '::' in config else read_config(ROOT / config)


def build(name: str, backbone: str) -> nn.Module:
    """A model of ``CONFIGS``, with random weights."""
    cfg = read(CONFIGS[name][backbone])
    if backbone == 'PVT-S':
        cfg.model.backbone = read(CONFIGS['retinanet'][backbone]).model.backbone
    init_default_scope(cfg.default_scope)
    cfg.model.pop('pretrained', None)
    cfg.model.backbone.init_cfg = None
    return revert_sync_batchnorm(MODELS.build(cfg.model))


def predict(image: Tensor, model: nn.Module) -> None:
    """A prediction, without its post-processing."""
    with torch.inference_mode():
        model.eval()(image)


def train(model: nn.Module) -> None:
    """The losses of random labels, and their gradients."""
    trained = WithLosses(model).train()
    loss, _ = trained.model.parse_losses(trained(BATCH))
    loss.backward()


def measure_memory(model: nn.Module, call: Callable[[nn.Module], None]) -> dict[str, int]:
    """MiB that a call asks of torch's allocator at its peak, gradients included; parameters."""
    call(model)  # buffers that a model keeps are made here
    model.zero_grad(set_to_none=True)
    mib = round(peak_memory(partial(call, model), 'cpu'))
    return dict(mib=mib, parameters=sum(one.numel() for one in model.parameters()))


def measure_times(
    name: str, call: Callable[[nn.Module], None], repeats: int, threads: int
) -> list[dict[str, object]]:
    """A row for each backbone, without its memory."""
    ways = {one: partial(call, build(name, one)) for one in CONFIGS[name]}
    times = time_in_turns(ways, repeats)
    on = dict(threads=threads, machine=machine())
    return [dict(backbone=one, ms=round(milliseconds(times[one])), **on) for one in ways]


def main(argv: Sequence[str] | None = None) -> None:
    """Write a row for each backbone."""
    args = parse_args(
        __doc__,
        argv,
        repeats=5,
        choices=dict(model=[*CONFIGS]),
        train='a training step, not a prediction',
        memory='measure the memory only, and keep the times of the file',
    )
    call = train if args.train else partial(predict, torch.rand(1, 3, *SIZES[args.model]))
    if args.memory:
        table = pd.read_csv(args.out)
    else:
        table = pd.DataFrame(measure_times(args.model, call, args.repeats, args.threads))
    memory = pd.DataFrame([measure_memory(build(args.model, one), call) for one in table.backbone])
    table = table.assign(mib=memory.mib, mib_machine=machine(), parameters=memory.parameters)
    print(table[['backbone', 'ms', 'mib', 'threads']].to_string(index=False))
    table.to_csv(args.out, index=False)


if __name__ == '__main__':
    run(main)

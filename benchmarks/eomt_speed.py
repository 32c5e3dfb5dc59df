"""Time and memory of EoMT beside transformers' and its authors', at 640 px.

python benchmarks/eomt_speed.py --transformers FOLDER --authors FOLDER \\
    --threads 2 --model s --dtype float32 --out docs/benchmarks/eomt.csv

--transformers takes a folder with that package (pip install --target), and --authors a clone of
tue-mps/eomt, which needs transformers too. Their code runs. Either may be left out.

A call is the model of COCO panoptic without the post-processing: class logits and mask logits of
200 queries. Weights are random, and the same: the logits are compared first, in float32. With
--dtype bfloat16, the model here is cast as by `cpvt infer --dtype`, transformers' as by its own
`dtype`, and the authors' runs in autocast, as in their notebook. The models take turns,
with batches of 1 and 4. "times" is the median, over the turns, of a model's time by ours. Memory
is the peak of what a call asks of torch's allocator.
"""

import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for `benchmarks`, where this file runs as a script

import pandas as pd  # noqa: E402
import torch  # noqa: E402
from mmengine.registry import MODELS, init_default_scope  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import cpvt_backbones  # noqa: E402, F401  (registers the models)
from benchmarks.in_turns import machine, milliseconds, parse_args, time_in_turns  # noqa: E402
from cpvt.command_line import run  # noqa: E402
from cpvt_backbones.analysis.memory import peak_memory  # noqa: E402
from cpvt_backbones.checkpoints import load_weights  # noqa: E402
from cpvt_backbones.errors import InputError  # noqa: E402
from cpvt_backbones.inference.predictors import reduce_precision  # noqa: E402
from cpvt_backbones.toolboxes import read_config  # noqa: E402

SIDE = 640
BATCHES = (1, 4)
QUERIES, CLASSES = 200, 133
LAYER_SCALE = 0.5  # or the blocks of a random model would change nothing
Call = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Class logits and mask logits of normalised images (B, 3, 640, 640)."""


def config_of(size: str) -> Any:
    """Config of the published model of a size."""
    return read_config(ROOT / f'configs/published/eomt/coco_panoptic_eomt_{size}_640_2x.py').model


def ours(size: str) -> tuple[nn.Module, Call]:
    """The published model of a size, with random weights."""
    init_default_scope('mmdet')
    model = MODELS.build(config_of(size)).eval()

    def call(images: Tensor) -> tuple[Tensor, Tensor]:
        (classes,), (masks,) = model(images, mode='tensor')
        return classes, masks

    return model, call


def of_transformers(
    arch: Mapping[str, Any], num_blocks: int, scratch: Path
) -> tuple[nn.Module, Call, Path]:
    """transformers' model, its call, and the folder with its weights."""
    package: Any = import_module('transformers')
    config = package.EomtConfig(
        hidden_size=arch['embed_dims'],
        num_hidden_layers=arch['depth'],
        num_attention_heads=arch['num_heads'],
        num_blocks=num_blocks,
        num_queries=QUERIES,
        num_labels=CLASSES,
        image_size=SIDE,
        num_register_tokens=4,
        layerscale_value=LAYER_SCALE,
    )
    model = package.EomtForUniversalSegmentation(config).eval()
    model.attn_mask_probs.zero_()  # as in published files
    model.save_pretrained(scratch / 'transformers')

    def call(images: Tensor) -> tuple[Tensor, Tensor]:
        found = model(images.to(model.dtype))
        return found.class_queries_logits, found.masks_queries_logits

    return model, call, scratch / 'transformers'


def of_authors(size: str, num_blocks: int, scratch: Path) -> tuple[Call, Path]:
    """The model of the authors' clone, and the file with its weights."""
    encoder = import_module('models.vit').ViT(
        (SIDE, SIDE), backbone_name=f'vit_{size}_patch14_reg4_dinov2', ckpt_path='none'
    )
    model = import_module('models.eomt').EoMT(
        encoder, CLASSES, QUERIES, num_blocks=num_blocks, masked_attn_enabled=False
    )
    model.eval().attn_mask_probs.zero_()  # as in published files
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith('gamma'):
                value.fill_(LAYER_SCALE)
    file = scratch / 'authors.pth'
    weights = {f'network.{key}': value for key, value in model.state_dict().items()}
    torch.save(dict(state_dict=weights), file)
    mean, std = encoder.pixel_mean, encoder.pixel_std

    def call(images: Tensor) -> tuple[Tensor, Tensor]:
        masks, classes = model(images * std + mean)  # it normalises them itself
        return classes[-1], masks[-1]

    return call, file


def check_same(call: Call, peer: Call, name: str) -> None:
    """Refuse to compare models that compute different logits."""
    images = torch.randn(1, 3, SIDE, SIDE)
    for found, wanted in zip(call(images), peer(images), strict=True):
        difference = (found - wanted).abs().max() / wanted.abs().max()
        if not difference < 1e-4:
            raise InputError(f'{name}: the logits differ from ours by {difference:.1e}')


def models(size: str, args: Namespace) -> dict[str, Call]:
    """Our model and its peers, by name; all peers compute what ours does with their weights."""
    model, call = ours(size)
    dtype = getattr(torch, args.dtype)
    # Only now: mmdet imports what it finds of their packages.
    sys.path[:0] = [str(path.resolve()) for path in (args.authors, args.transformers) if path]
    config = config_of(size)
    num_blocks = config.panoptic_head.num_blocks
    found = {'ours': call}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        if args.transformers:
            peer, found['transformers'], weights = of_transformers(
                config.backbone.arch, num_blocks, scratch
            )
            load_weights(model, weights)
            check_same(call, found['transformers'], 'transformers')
            peer.to(dtype)
        if args.authors:
            found['authors'], weights = of_authors(size, num_blocks, scratch)
            load_weights(model, weights)
            check_same(call, found['authors'], 'authors')
            found['authors'] = partial(autocast, found['authors'], dtype)
    if dtype != torch.float32:
        reduce_precision(model, dtype)
    return found


def autocast(call: Call, dtype: torch.dtype, images: Tensor) -> tuple[Tensor, Tensor]:
    """A call in torch's autocast; float32 is left as it is."""
    with torch.autocast('cpu', dtype=dtype, enabled=dtype != torch.float32):
        return call(images)


def measure(size: str, args: Namespace) -> Iterator[dict[str, object]]:
    """A row for each model and batch."""
    calls = models(size, args)
    for batch in BATCHES:
        images = torch.randn(batch, 3, SIDE, SIDE)
        ways = {name: partial(call, images) for name, call in calls.items()}
        times = time_in_turns(ways, args.repeats)
        for name, way in ways.items():
            ratios = [b / a for a, b in zip(times['ours'], times[name], strict=True)]
            yield dict(
                model=f'EoMT-{size[0].upper()}',
                of=name,
                batch=batch,
                dtype=args.dtype,
                ms=round(milliseconds(times[name])),
                times=round(median(ratios), 3),
                mib=round(peak_memory(way, 'cpu')),
                threads=args.threads,
                machine=machine(),
            )


def main(argv: Sequence[str] | None = None) -> None:
    """Write a row for each model and batch."""
    args = parse_args(
        __doc__,
        argv,
        repeats=5,
        folders=dict(transformers='with that package', authors='a clone of tue-mps/eomt'),
        choices=dict(model=('s', 'b'), dtype=('float32', 'bfloat16')),
    )
    if not (args.transformers or args.authors):
        raise InputError('one of --transformers and --authors must be given')
    with torch.inference_mode():
        table = pd.DataFrame(measure(dict(s='small', b='base')[args.model], args))
    print(table.drop(columns=['threads', 'machine']).to_string(index=False))
    table.to_csv(args.out, index=False)


if __name__ == '__main__':
    run(main)

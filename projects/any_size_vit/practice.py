"""Adapt one's own pretrained ViT to many image sizes."""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cpvt_backbones.checkpoints import check_destination, read_checkpoint, write_checkpoint
from cpvt_backbones.engine.launch import read_config

from .adapt import Recipe, adapt
from .images import decode, files_in, prepare
from .stored import stored_array
from .student import TABLE, Source, merge


def adapt_own(args: argparse.Namespace) -> None:
    """Stage ``adapt``: write the weights of the backbone in ``args.config``, adapted to ``args.sizes``.

    Raises:
        ValueError: The backbone is no CPVT with a class token, or has an encoding that acts in every block.
    """
    out = check_destination(args.out)
    cfg = read_config(args.config).to_dict()
    normalisation = cfg.get('data_preprocessor') or cfg['model']['data_preprocessor']
    mean, std = (tuple(value / 255 for value in normalisation[name]) for name in ('mean', 'std'))
    backbone: dict[str, Any] = dict(cfg['model']['backbone'])
    position = backbone.pop('position', None)
    if backbone.pop('type', None) != 'CPVT' or not backbone.get('with_cls_token', True):
        raise ValueError(f'config: the backbone must be a CPVT with a class token, got {cfg["model"]["backbone"]}')
    types = [part['type'] for part in ([position] if isinstance(position, dict) else position or [])]
    if others := set(types) - {'Learned', 'PEG', 'SinCos'}:
        raise ValueError(f'config: {sorted(others)} act in every block; only Learned, SinCos and PEG are accepted')
    source = Source(backbone, read_weights(args.weights), mean, std)
    whole = source.build(TABLE).eval()
    blocks = whole.depth // 2
    side = int(backbone.get('img_size', 224))
    precision = torch.bfloat16 if args.precision == 'bf16' else torch.float32
    pixels = decode(files_in(args.images), max(args.sizes))
    teacher = source.build(TABLE, blocks=blocks).eval()

    def tokens(start: int, end: int) -> Tensor:
        print(f'teacher: image {start} of {len(pixels)}', flush=True)
        with torch.inference_mode(), torch.autocast('cpu', precision, enabled=precision != torch.float32):
            return teacher(prepare(pixels[start:end], side, source.mean, source.std))[0]

    shape = (len(pixels), (side // teacher.out_strides[0]) ** 2 + 1, teacher.embed_dims)
    targets = stored_array(args.work_dir / 'teacher_tokens.npy', shape, tokens)
    student = source.build(position, blocks=blocks)
    recipe = Recipe(sizes=tuple(args.sizes), steps=args.steps)
    adapt(student, source, pixels, targets, recipe, args.work_dir / 'checkpoint.pth', precision=precision)
    write_checkpoint(merge(student, whole), out, meta=dict(source=str(args.weights), recipe=str(recipe)))
    print(f'{out}: load it with init_cfg=dict(type="Pretrained", checkpoint={str(out)!r})')


def read_weights(name: str) -> dict[str, Tensor]:
    """Weights in a file, or those that timm has for ``timm://NAME``."""
    if name.startswith('timm://'):
        import timm  # an extra of the package

        return timm.create_model(name.removeprefix('timm://'), pretrained=True).state_dict()
    content = read_checkpoint(Path(name))
    return content.get('state_dict', content)

"""Adapt one's own pretrained ViT to many image sizes."""

import argparse
import hashlib
from dataclasses import asdict
from typing import Any

import torch
from positional_encoding.runs import fix_plan
from torch import Tensor

from cpvt_backbones import CPVT, convert_state_dict
from cpvt_backbones.checkpoints import check_destination, read_checkpoint, write_checkpoint
from cpvt_backbones.toolboxes import read_config

from .adapt import Recipe, adapt
from .images import decode, files_in, prepare
from .stored import stored_array
from .student import TABLE, Source


def adapt_own(args: argparse.Namespace) -> None:
    """Stage ``adapt``: write the weights of the backbone in ``args.config``, adapted to
    ``args.sizes``.

    Raises:
        ValueError: The backbone is no CPVT with a class token, or the folder was begun with other
            weights, images or settings.
    """
    out = check_destination(args.out)
    cfg = read_config(args.config).to_dict()
    normalisation = cfg.get('data_preprocessor') or cfg['model']['data_preprocessor']
    mean, std = (tuple(value / 255 for value in normalisation[name]) for name in ('mean', 'std'))
    backbone: dict[str, Any] = dict(cfg['model']['backbone'])
    position = backbone.pop('position', None)
    if backbone.pop('type', None) != 'CPVT' or not backbone.get('with_cls_token', True):
        raise ValueError(
            'config: the backbone must be a CPVT with a class token, got'
            f' {cfg["model"]["backbone"]}'
        )
    pretrained = CPVT(**backbone, position=TABLE)
    weights, _ = convert_state_dict(read_checkpoint(args.weights), pretrained)
    weights = {
        name.replace('pos_embed.0', 'pos_embed'): value for name, value in weights.items()
    }  # timm's name
    source = Source(backbone, weights, mean, std)
    student = source.build(position)
    side = int(backbone.get('img_size', 224))
    precision = torch.bfloat16 if args.precision == 'bf16' else torch.float32
    pixels = decode(files_in(args.images), max(side, *args.sizes))
    digests = dict(weights_sha256=digest(*weights.values()), images_sha256=digest(pixels))
    recipe, folder = Recipe(sizes=tuple(args.sizes), steps=args.steps), args.work_dir / 'adapt'
    plan = dict(backbone=backbone, position=position, mean=mean, std=std, precision=args.precision)
    fix_plan(folder, plan | asdict(recipe) | digests)
    teacher = source.build(TABLE).eval()

    def tokens(start: int, end: int) -> Tensor:
        print(f'teacher: image {start} of {len(pixels)}', flush=True)
        with (
            torch.inference_mode(),
            torch.autocast('cpu', precision, enabled=precision != torch.float32),
        ):
            return teacher(prepare(pixels[start:end], side, source.mean, source.std))[0]

    shape = (len(pixels), (side // teacher.out_strides[0]) ** 2 + 1, teacher.embed_dims)
    targets = stored_array(folder / 'teacher_tokens.npy', shape, tokens)
    adapt(student, source, pixels, targets, recipe, folder / 'checkpoint.pth', precision=precision)
    write_checkpoint(
        student.state_dict(), out, meta=dict(source=str(args.weights), recipe=str(recipe))
    )
    print(f'{out}: load it with init_cfg=dict(type="Pretrained", checkpoint={str(out)!r})')


def digest(*tensors: Tensor) -> str:
    """SHA-256 of the values."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.flatten().contiguous().view(torch.uint8).numpy().data)
    return found.hexdigest()

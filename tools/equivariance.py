"""Shift the image by whole patches and by single pixels: relative error of the features against
shifted features.

    python tools/equivariance.py --encodings none SinCos Learned Relative PEG
    python tools/equivariance.py --models peg=CONFIG:CHECKPOINT \\
        --images a.jpg b.jpg --size 224 --shifts 0 1 8 16 32

The models of --encodings have random weights; without --images, images are generated. With --object
SIDE one object (the middle of each image) moves over a uniform background: the change of the pooled
vector, and of a classifier's probabilities, relative to the object's effect. Writes the CSV and,
beside it, the plot. Without --encodings and --models the CSV is only drawn.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.progress import track

from cpvt import command_line as cli

if TYPE_CHECKING:
    import torch

    Vectors = Callable[[torch.Tensor], torch.Tensor]

ENCODINGS: dict[str, dict[str, Any] | None] = {
    'none': None,
    **{name: dict(type=name) for name in ('SinCos', 'Learned', 'Relative', 'PEG')},
    'PEG-0-5': dict(type='PEG', after_blocks='0-5'),
}


def build_untrained(
    encoding: str, *, size: int, arch: str | dict[str, Any] = 'tiny'
) -> 'torch.nn.Module':
    """Build a CPVT with random weights, global average pooling and one of ``ENCODINGS``, for
    ``size`` px.

    Learned and relative tables have a standard deviation of 0.5, similar to that of patch tokens
    (0.6 for normalised images), as in a trained model. All other weights are equal for every
    encoding.
    """
    import torch

    from cpvt_backbones import CPVT

    torch.manual_seed(0)
    plain = CPVT(arch=arch, img_size=size, position=None, with_cls_token=False)
    model = CPVT(
        arch=arch, img_size=size, position=ENCODINGS[encoding], with_cls_token=False
    ).eval()
    model.load_state_dict(plain.state_dict(), strict=False)
    if encoding in ('Learned', 'Relative'):
        for table in model.position_encodings[0].parameters():
            torch.nn.init.normal_(table, std=0.5)
    return model


def synthetic_images(count: int, side: int) -> 'torch.Tensor':
    """Normalised noise (count, 3, side, side) with amplitude proportional to 1 / frequency, like
    photographs.
    """
    import torch

    rng = np.random.default_rng(0)
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side))
    frequency[0, 0] = np.inf  # no mean
    noise = np.fft.irfft2(
        np.fft.rfft2(rng.standard_normal((count, 3, side, side))) / frequency, s=(side, side)
    )
    noise /= noise.std(axis=(2, 3), keepdims=True)
    return torch.from_numpy(noise).float()


def images_for(model: 'torch.nn.Module', args: argparse.Namespace) -> 'torch.Tensor':
    """Input of the model: photographs under its own normalisation, or generated images, which are
    normalised.
    """
    import torch

    from cpvt_backbones.analysis.features import FeatureExtractor, load_picture

    side = args.object or args.size + max(args.shifts)
    if not args.images:
        return synthetic_images(args.count, side)
    pictures = [load_picture(path) for path in args.images]
    for path, picture in zip(args.images, pictures, strict=True):
        if min(picture.shape[:2]) < side:
            raise cli.UsageError(
                f'images must be at least {side} px (size and largest shift, or the object), got'
                f' {path} {picture.shape}'
            )
    # The centre at its own scale: resizing would invent content.
    tops = [
        ((picture.shape[0] - side) // 2, (picture.shape[1] - side) // 2) for picture in pictures
    ]
    cut = [
        picture[y : y + side, x : x + side] for picture, (y, x) in zip(pictures, tops, strict=True)
    ]
    if isinstance(model, FeatureExtractor):
        return model.normalise(cut)
    images = torch.stack(
        [torch.from_numpy(picture.copy()).permute(2, 0, 1) for picture in cut]
    ).float()
    return (images - images.mean(dim=(2, 3), keepdim=True)) / images.std(dim=(2, 3), keepdim=True)


def vectors_of(model: 'torch.nn.Module', cfg: Any, checkpoint: str) -> dict[str, 'Vectors']:
    """Functions of images (B, 3, H, W): the pooled vector (B, C) and, of a classifier, the
    probabilities (B, K).
    """
    if cfg is None or 'head' not in cfg.model:
        return {'pooled': lambda images: model(images)[-1].mean(dim=(2, 3))}
    from cpvt_backbones.analysis.complexity import build_model
    from cpvt_backbones.checkpoints import load_weights

    classifier: Any = build_model(cfg)
    load_weights(classifier, checkpoint)
    return {
        'pooled': lambda images: classifier.extract_feat(images)[-1],
        'prediction': lambda images: classifier(images, mode='tensor').softmax(dim=1),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    parser.add_argument(
        '--encodings',
        nargs='+',
        choices=tuple(ENCODINGS),
        default=[],
        metavar='NAME',
        help=f'columns with random weights: {", ".join(ENCODINGS)}',
    )
    parser.add_argument(
        '--models', nargs='+', type=cli.parse_model, default=[], metavar='NAME=CONFIG:CHECKPOINT'
    )
    parser.add_argument(
        '--images', nargs='+', default=[], help='image files (default: generated, see --count)'
    )
    parser.add_argument('--count', type=cli.positive, default=4, help='generated images')
    parser.add_argument(
        '--size', type=cli.positive, default=224, metavar='SIDE', help='of the crops'
    )
    shifts = [0, 1, 2, *range(4, 49, 4)]
    parser.add_argument(
        '--shifts', nargs='+', type=int, default=shifts, metavar='PX', help='default: %(default)s'
    )
    parser.add_argument(
        '--object', type=cli.positive, metavar='SIDE', help='px; measure invariance to its place'
    )
    parser.add_argument('--out', type=Path, default=Path('work_dirs/equivariance/equivariance.csv'))
    cli.add_config_arguments(parser)
    args = parser.parse_args(argv)
    from cpvt.plots import draw_equivariance
    from cpvt_backbones.analysis.equivariance import measure_equivariance, measure_invariance
    from cpvt_backbones.analysis.features import FeatureExtractor
    from cpvt_backbones.analysis.tables import read_table, write_table

    models: dict[str, tuple[torch.nn.Module, Any, str]] = {
        name: (build_untrained(name, size=args.size), None, '') for name in args.encodings
    }
    for name, config, checkpoint in args.models:
        cfg = cli.config_from(args, config)
        models[name] = FeatureExtractor(cfg, checkpoint), cfg, checkpoint
    if models:
        records = []
        for name, (model, cfg, checkpoint) in track(models.items(), description='Models'):
            images = images_for(model, args)
            options = dict(size=args.size, shifts=args.shifts)
            found = {}
            if args.object:
                for output, vector in vectors_of(model, cfg, checkpoint).items():
                    found[f'{name} {output}'] = measure_invariance(vector, images, **options)
            else:
                found[name] = measure_equivariance(model, images, **options)
            for key, rows in found.items():
                records += [dict(model=key, size=args.size, **asdict(row)) for row in rows]
        write_table(args.out, records)
    draw_equivariance(args.out, args.out.with_suffix('.png'))
    cli.print_table(read_table(args.out))
    print(f'written: {args.out} and {args.out.with_suffix(".png")}')


if __name__ == '__main__':
    cli.run(main)

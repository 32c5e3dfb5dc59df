"""Draw a backbone's feature maps of an image of any size: principal components of each level as
colours, and norms.

    python tools/feature_maps.py CONFIG CHECKPOINT photo.jpg --shape 768x1024 \\
        --out work_dirs/features/photo.csv

Writes the CSV and, beside it, the picture. Without CHECKPOINT ('-') the weights are random. With
--draw the picture is drawn again from the CSV.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cpvt import command_line as cli


def measure(
    args: argparse.Namespace, config: str | None, checkpoint: str, picture: np.ndarray
) -> None:
    """Write the CSV."""
    import torch

    from cpvt_backbones.analysis.attention_maps import cell_side
    from cpvt_backbones.analysis.features import FeatureExtractor, channel_norm, principal_colours
    from cpvt_backbones.analysis.tables import write_table

    model = FeatureExtractor(
        cli.config_from(args, config), None if checkpoint == '-' else checkpoint
    )
    with torch.no_grad():
        levels = model(model.normalise([picture]))
    height, width = picture.shape[:2]
    records = []
    for level, (feature_map,) in enumerate(levels):
        cell = cell_side((feature_map.shape[1], feature_map.shape[2]), height=height, width=width)
        colours, norms = principal_colours(feature_map), channel_norm(feature_map)
        for row, column in np.ndindex(*norms.shape):
            red, green, blue = colours[row, column].tolist()
            colour = dict(red=red, green=green, blue=blue, norm=norms[row, column].item())
            records.append(dict(level=level, row=row, column=column, **colour, cell=cell))
    write_table(args.out, records)


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    cli.add_model_arguments(parser, images=True)
    cli.add_shape_argument(parser)
    parser.add_argument(
        '--out', type=Path, default=Path('work_dirs/features/features.csv'), help='CSV'
    )
    parser.add_argument('--draw', action='store_true', help='draw the CSV again, run nothing')
    cli.add_config_arguments(parser)
    args = parser.parse_args(argv)
    config, checkpoint, images = cli.split_model([args.config, *args.rest], images=True)
    if len(images) > 1:
        raise cli.UsageError(f'one image is accepted, got {images}')
    from cpvt.plots import draw_feature_maps
    from cpvt_backbones.analysis.features import load_picture

    picture = load_picture(images[0], size=args.shape)
    if not args.draw:
        measure(args, config, checkpoint, picture)
    draw_feature_maps(args.out, picture, args.out.with_suffix('.png'))
    print(f'written: {args.out} and {args.out.with_suffix(".png")}')


if __name__ == '__main__':
    cli.run(main)

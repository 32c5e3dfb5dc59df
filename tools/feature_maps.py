"""Draw what a backbone hands out over an image of any size: each level's principal components as colours, and norms.

python tools/feature_maps.py CONFIG CHECKPOINT photo.jpg --size 768x1024 --out work_dirs/features/photo.csv
Writes the CSV and, beside it, the picture. Without CHECKPOINT ('-') the weights are random. With --draw the picture is
drawn again from the CSV.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from _analysis import parse_size, read
from _common import add_config_arguments

from cpvt_backbones.analysis.attention_maps import cell_side
from cpvt_backbones.analysis.features import FeatureExtractor, channel_norm, load_picture, principal_colours
from cpvt_backbones.analysis.plots import draw_feature_maps
from cpvt_backbones.analysis.tables import write_table
from cpvt_backbones.checkpoints import CheckpointError


def measure(parser: argparse.ArgumentParser, args: argparse.Namespace, picture: np.ndarray) -> None:
    """Write the CSV."""
    model = FeatureExtractor(
        read(parser, args.config, args.cfg_options), None if args.checkpoint == '-' else args.checkpoint
    )
    with torch.no_grad():
        levels = model(model.normalise([picture]))
    height, width = picture.shape[:2]
    records = []
    for level, (feature_map,) in enumerate(levels):
        cell = cell_side((feature_map.shape[1], feature_map.shape[2]), height=height, width=width)
        colours, norms = principal_colours(feature_map).tolist(), channel_norm(feature_map).tolist()
        for row, (line, norm_line) in enumerate(zip(colours, norms, strict=True)):
            for column, ((red, green, blue), norm) in enumerate(zip(line, norm_line, strict=True)):
                records.append(
                    dict(level=level, row=row, column=column, red=red, green=green, blue=blue, norm=norm, cell=cell)
                )
    write_table(args.out, records)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config file of the model')
    parser.add_argument('checkpoint', help="checkpoint file; '-' for random weights")
    parser.add_argument('image', help='image file')
    parser.add_argument('--size', type=parse_size, metavar='HEIGHTxWIDTH', help="resize to that; default: image's own")
    parser.add_argument(
        '--out', type=Path, default=Path('work_dirs/features/features.csv'), help='default: %(default)s'
    )
    parser.add_argument('--draw', action='store_true', help='draw again from the CSV, run nothing')
    add_config_arguments(parser)
    args = parser.parse_args()
    try:
        picture = load_picture(args.image, size=args.size)
        if not args.draw:
            measure(parser, args, picture)
        draw_feature_maps(args.out, picture, args.out.with_suffix('.png'))
    except (FileNotFoundError, CheckpointError, ValueError) as error:
        parser.error(str(error))
    print(f'written: {args.out} and {args.out.with_suffix(".png")}')


if __name__ == '__main__':
    main()

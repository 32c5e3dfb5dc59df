"""How much a model's answer changes when large images are cut into tiles, on images that also fit whole.

python tools/tile_agreement.py CONFIG CHECKPOINT photos/ --tiles 512:256 320:128 --long-side 1280
Of a segmentor: share of pixels of the same class, and mIoU. Of a detector: share of the whole images' boxes found in
the tiles' (same class, IoU 0.5), and the other way round. Written as CSV.
"""

import argparse
from pathlib import Path

from _analysis import print_table, read
from _common import add_config_arguments
from rich.progress import Progress

from cpvt_backbones.analysis.tables import write_table
from cpvt_backbones.analysis.tile_agreement import measure_agreement
from cpvt_backbones.inference import ImageError, ToolboxPredictor, find_images


def parse_tile(text: str) -> tuple[int, int]:
    """``SIDE:OVERLAP`` to both, in px."""
    side, _, overlap = text.partition(':')
    if not (side.isdecimal() and overlap.isdecimal() and int(overlap) < int(side)):
        raise argparse.ArgumentTypeError(f'SIDE:OVERLAP is expected, the overlap smaller, as 512:128, got {text!r}')
    return int(side), int(overlap)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config file of a detector or segmentor')
    parser.add_argument('checkpoint', help='checkpoint file, or the name of weights that come with the package')
    parser.add_argument('images', nargs='+', help='image files, folders, patterns')
    parser.add_argument('--tiles', nargs='+', type=parse_tile, required=True, metavar='SIDE:OVERLAP', help='in px')
    parser.add_argument('--long-side', type=int, metavar='PX', help="of the images; default: each image's own size")
    parser.add_argument('--score-threshold', type=float, default=0.3, help='for boxes; default: %(default)s')
    parser.add_argument('--device', help='cpu, cuda:1, ... (default: a GPU if there is one)')
    parser.add_argument('--out', type=Path, default=Path('work_dirs/tile_agreement.csv'), help='default: %(default)s')
    add_config_arguments(parser)
    args = parser.parse_args()
    try:
        predictor = ToolboxPredictor(
            cfg=read(parser, args.config, args.cfg_options), checkpoint=args.checkpoint, device=args.device
        )
        with Progress() as progress:
            task = progress.add_task('Images', total=len(find_images(args.images)) * (1 + len(args.tiles)))
            records = measure_agreement(
                predictor,
                args.images,
                long_side=args.long_side,
                tiles=args.tiles,
                score_thr=args.score_threshold,
                on_image=lambda: progress.advance(task),
            )
    except (FileNotFoundError, ImageError, ImportError, ValueError) as error:
        parser.error(str(error))
    write_table(args.out, records)
    print_table(records)
    print(f'written: {args.out}')


if __name__ == '__main__':
    main()

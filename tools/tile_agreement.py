"""Agreement of predictions on tiles with predictions on whole images, for images that fit whole.

python tools/tile_agreement.py CONFIG CHECKPOINT photos/ --tiles 512:256 320:128 --long-side 1280
Segmentors: share of pixels of the same class, and mIoU. Detectors: share of the whole images' boxes that the tiles'
boxes match (same class, IoU 0.5), and the reverse. Written as CSV.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.progress import Progress

from cpvt_backbones.engine import command_line as cli


def parse_tile(text: str) -> tuple[int, int]:
    """``SIDE:OVERLAP`` to both, in px."""
    side, _, overlap = text.partition(':')
    if not (side.isdecimal() and overlap.isdecimal() and int(overlap) < int(side)):
        raise argparse.ArgumentTypeError(f'SIDE:OVERLAP is expected, the overlap smaller, as 512:128, got {text!r}')
    return int(side), int(overlap)


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__, renamed={'--score-threshold': '--score-thr'})
    cli.add_model_arguments(parser, images=True)
    parser.add_argument('--tiles', nargs='+', type=parse_tile, required=True, metavar='SIDE:OVERLAP', help='in px')
    parser.add_argument('--long-side', type=cli.positive, metavar='PX', help='of the images; default: do not resize')
    parser.add_argument('--score-thr', type=float, default=0.3, help='minimum score of a box')
    parser.add_argument('--device', help='cpu, cuda:1, ... (default: a GPU if there is one)')
    parser.add_argument('--out', type=Path, default=Path('work_dirs/tile_agreement.csv'), help='default: %(default)s')
    cli.add_config_arguments(parser)
    args = parser.parse_args(argv)
    config, checkpoint, images = cli.split_model([args.config, *args.rest], images=True)
    from cpvt_backbones.analysis.tables import write_table
    from cpvt_backbones.analysis.tile_agreement import measure_agreement
    from cpvt_backbones.inference import ToolboxPredictor, find_images

    predictor = ToolboxPredictor(cfg=cli.config_from(args, config), checkpoint=checkpoint, device=args.device)
    with Progress() as progress:
        task = progress.add_task('Images', total=len(find_images(images)) * (1 + len(args.tiles)))
        options = dict(long_side=args.long_side, tiles=args.tiles, score_thr=args.score_thr)
        records = measure_agreement(predictor, images, on_image=lambda: progress.advance(task), **options)
    write_table(args.out, records)
    cli.print_table(records)
    print(f'written: {args.out}')


if __name__ == '__main__':
    cli.run(main)

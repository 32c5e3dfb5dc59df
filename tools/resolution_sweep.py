"""Evaluate trained models at several image sizes without fine-tuning: metric, time and memory, CSV and plot.

python tools/resolution_sweep.py --models \\
    pyramid=configs/camvid/semantic-fpn_pyramid-cpvt-t_camvid.py:work_dirs/pyramid/iter_400.pth \\
    columnar=configs/camvid/semantic-fpn_multiscale-cpvt-t_camvid.py:work_dirs/columnar/iter_400.pth \\
    --sizes 0.5 1 2 --out work_dirs/sweep/camvid.csv
What the CSV already holds is not evaluated again. Without --models the CSV is only drawn.
"""

import argparse
from pathlib import Path

from _analysis import parse_model, print_table, read
from _common import add_config_arguments

from cpvt_backbones.analysis.image_size import TestSize
from cpvt_backbones.analysis.plots import draw_sweep
from cpvt_backbones.analysis.resolution import SweepModel, main_metric, read_rows, sweep


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--models', nargs='+', type=parse_model, default=[], metavar='NAME=CONFIG:CHECKPOINT')
    parser.add_argument(
        '--sizes',
        nargs='+',
        default=['0.5', '0.75', '1', '1.5', '2'],
        metavar='FACTOR|SIDEpx',
        help="factors of the config's test scale, or the shorter side in px, as 640px (default: %(default)s)",
    )
    parser.add_argument('--limit', type=int, metavar='N', help='test on N images, evenly spaced in the test set')
    parser.add_argument('--metric', help='column of the CSV to draw (default: mAP, mIoU or top-1)')
    parser.add_argument('--out', type=Path, default=Path('work_dirs/sweep/sweep.csv'), help='CSV; the plot beside it')
    add_config_arguments(parser)
    args = parser.parse_args()
    candidates = [
        SweepModel(name, read(parser, config, args.cfg_options), checkpoint) for name, config, checkpoint in args.models
    ]
    try:
        sizes = [TestSize.parse(text) for text in args.sizes]
        rows = sweep(candidates, sizes, table=args.out, limit=args.limit) if candidates else read_rows(args.out)
        metric = args.metric or main_metric(rows)
        draw_sweep(args.out, args.out.with_suffix('.png'), metric=metric)
    except (FileNotFoundError, ValueError) as error:
        parser.error(str(error))
    print_table(
        [
            {
                'model': row.model,
                'size': row.size,
                'px': f'{row.width:.0f} x {row.height:.0f}',
                metric: row.metrics.get(metric, float('nan')),
                's / image': row.seconds,
                'peak MiB': row.peak_mib,
                'images': row.images,
            }
            for row in rows
        ]
    )
    print(f'written: {args.out} and {args.out.with_suffix(".png")}')


if __name__ == '__main__':
    main()

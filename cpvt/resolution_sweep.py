"""Evaluate trained models at several image sizes without fine-tuning: metric, time and memory.

    cpvt resolution-sweep --models pyramid=CONFIG:CHECKPOINT NAME \\
        --sizes 0.5 1 2 --out work_dirs/sweep/camvid.csv

Rows that are already in the CSV are not evaluated again. --write stores each model's range of good
sizes beside its checkpoint, where cpvt infer and cpvt export find it.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cpvt import command_line as cli

if TYPE_CHECKING:
    from cpvt_backbones.analysis.resolution import SweepModel, SweepRow


def check(args: argparse.Namespace) -> None:
    """Refuse missing files."""
    for _, config, checkpoint in args.models:
        cli.check_config(config)
        cli.check_checkpoint(checkpoint)


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    parser.add_argument(
        '--models',
        nargs='+',
        type=cli.parse_model,
        required=True,
        metavar='NAME=CONFIG:CHECKPOINT',
    )
    parser.add_argument(
        '--sizes',
        nargs='+',
        default=['0.5', '0.75', '1', '1.5', '2'],
        metavar='FACTOR|SIDEpx',
        help="factors of the config's test scale, or shorter sides such as 640px",
    )
    parser.add_argument(
        '--limit', type=cli.positive, metavar='N', help='test on N images, evenly spaced'
    )
    parser.add_argument('--out', type=Path, default=Path('work_dirs/sweep/sweep.csv'), help='CSV')
    parser.add_argument(
        '--write', action='store_true', help="store each model's range, CHECKPOINT.sizes.json"
    )
    cli.add_config_arguments(parser)
    parser.checks.append(check)
    args = parser.parse_args(argv)
    from cpvt_backbones.analysis.image_size import TestSize
    from cpvt_backbones.analysis.resolution import (
        SweepModel,
        main_metric,
        sweep,
    )

    models = [
        SweepModel(name, cli.config_from(args, config), checkpoint)
        for name, config, checkpoint in args.models
    ]
    sizes = [TestSize.parse(text) for text in args.sizes]
    rows = sweep(models, sizes, table=args.out, limit=args.limit)
    if args.write:
        for model in models:
            _write_range(model, rows, args.limit)
    metric = main_metric(rows)
    records = [
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
    cli.print_table(records)
    print(f'written: {args.out}')


def _write_range(model: 'SweepModel', rows: 'Sequence[SweepRow]', limit: int | None) -> None:
    """Store the range of good sizes beside the checkpoint."""
    from cpvt_backbones.analysis.resolution import fingerprint, good_sizes
    from cpvt_backbones.weights import shipped_weights

    if model.checkpoint in shipped_weights():
        raise cli.UsageError(
            f'--write: the range of {model.checkpoint!r} is stored by'
            ' projects/shipped_weights/ship_weights.py --sizes'
        )
    source = fingerprint(model, limit)
    own = [row for row in rows if (row.model, row.source) == (model.name, source)]
    found = good_sizes(own)
    print(f'{found.write(model.checkpoint)}: {model.name} is good at {found}')

"""Evaluate a checkpoint on the test set of a detection, segmentation or classification config.

cpvt test CONFIG CHECKPOINT
cpvt test NAME    # shipped weights, or a published model on data/coco and others
torchrun --nproc-per-node 8 -m cpvt test CONFIG FILE --launcher pytorch
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from cpvt import command_line as cli


def check(args: argparse.Namespace) -> None:
    """Refuse a picture of another format."""
    if args.worst and Path(args.worst).suffix.lower() not in ('.jpg', '.jpeg'):
        raise cli.UsageError(f'--worst: must be FILE.jpg, got {args.worst!r}')


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    cli.add_model_arguments(parser)
    parser.add_argument(
        '--out', help='file (.pkl) for predictions; for segmentors, folder for class maps (PNG)'
    )
    parser.add_argument('--show-dir', help='folder for pictures of the predictions')
    parser.add_argument(
        '--worst',
        metavar='FILE.jpg',
        help='draw the 20 images with the lowest scores: labels left, predictions right',
    )
    parser.add_argument(
        '--tta',
        action='store_true',
        help="test-time augmentation by the config's tta_pipeline",
    )
    cli.add_run_arguments(parser)
    parser.checks.append(check)
    args = parser.parse_args(argv)
    from cpvt_backbones.engine.launch import test

    cli.print_file_of(args.checkpoint)
    cfg = cli.config_from(args)
    if args.worst:
        from cpvt_backbones.analysis.worst_images import draw_worst

        draw_worst(cfg, args.worst)
    test(
        cfg,
        checkpoint=args.checkpoint,
        out=args.out,
        show_dir=args.show_dir,
        tta=args.tta,
    )

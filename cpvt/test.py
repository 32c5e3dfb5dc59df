"""Evaluate a checkpoint on the test set of a detection, segmentation or classification config.

cpvt test CONFIG CHECKPOINT
cpvt test NAME    # shipped weights
torchrun --nproc-per-node 8 -m cpvt test CONFIG FILE --launcher pytorch
"""

from collections.abc import Sequence

from cpvt import command_line as cli


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    cli.add_model_arguments(parser)
    parser.add_argument(
        '--out', help='file (.pkl) for the predictions; of a segmentor: folder for class maps (PNG)'
    )
    parser.add_argument('--show-dir', help='folder for pictures of the predictions')
    parser.add_argument(
        '--tta',
        action='store_true',
        help="test-time augmentation, as the config's tta_pipeline says",
    )
    cli.add_run_arguments(parser)
    args = parser.parse_args(argv)
    from cpvt_backbones.engine.launch import test

    config, checkpoint, _ = cli.split_model([args.config, *args.rest])
    cli.print_file_of(checkpoint)
    test(
        cli.config_from(args, config),
        checkpoint=checkpoint,
        out=args.out,
        show_dir=args.show_dir,
        tta=args.tta,
    )

"""Evaluate a checkpoint on the test set of a detection, segmentation or classification config.

python tools/test.py CONFIG CHECKPOINT
python tools/test.py NAME            # shipped weights
torchrun --nproc-per-node 8 tools/test.py CONFIG CHECKPOINT --launcher pytorch
"""

from collections.abc import Sequence

from cpvt_backbones.engine.command_line import (
    add_model_arguments,
    add_run_arguments,
    config_from,
    make_parser,
    run,
    split_model,
)
from cpvt_backbones.engine.launch import test


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    add_model_arguments(parser)
    parser.add_argument('--out', help='file (.pkl) for the predictions; of a segmentor: folder for class maps (PNG)')
    parser.add_argument('--show-dir', help='folder for pictures of the predictions')
    parser.add_argument('--tta', action='store_true', help="test-time augmentation, as the config's tta_pipeline says")
    add_run_arguments(parser)
    args = parser.parse_args(argv)
    config, checkpoint, _ = split_model([args.config, *args.rest])
    test(config_from(args, config), checkpoint=checkpoint, out=args.out, show_dir=args.show_dir, tta=args.tta)


if __name__ == '__main__':
    run(main)

"""Evaluate a checkpoint on the test set of a detection, segmentation or classification config.

python tools/test.py CONFIG CHECKPOINT
torchrun --nproc-per-node 8 tools/test.py CONFIG CHECKPOINT --launcher pytorch
"""

import argparse

from _common import add_run_arguments, config_from

from cpvt_backbones.engine.launch import test


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument(
        '--out', help='write the predictions: a .pkl file, or for segmentation a folder of index maps (PNG)'
    )
    parser.add_argument('--show-dir', help='folder for pictures of the predictions')
    parser.add_argument('--tta', action='store_true', help="test-time augmentation, as the config's tta_pipeline says")
    add_run_arguments(parser)
    args = parser.parse_args()
    cfg = config_from(parser, args)
    test(cfg, checkpoint=args.checkpoint, out=args.out, show_dir=args.show_dir, tta=args.tta)


if __name__ == '__main__':
    main()

"""Run a trained detector, segmentor or classifier on images of any size.

python tools/infer.py photo.jpg photos/ 'scans/**/*.tif' CONFIG CHECKPOINT
python tools/infer.py photos/ model.onnx      # a file that tools/export.py wrote
python tools/infer.py photos/ NAME            # weights that come with the package

Writes to the output folder predictions.json (of a detector: COCO results), images.json (which image has which id),
failed.json (what could not be predicted, and why), vis/ (pictures), and for segmentation pred/ (class maps, PNG).
Interrupted and started again, it goes on where it was.
"""

import argparse
import re
import sys
from pathlib import Path

from _common import add_config_arguments, config_from

from cpvt_backbones.inference import (
    EXPORTED_SUFFIXES,
    ExportedModel,
    ImageError,
    Inferencer,
    find_images,
    predict_to_folder,
)
from cpvt_backbones.inference.inferencer import MAX_PIXELS, OVERLAP, TILE_SIZE
from cpvt_backbones.inference.images import READ_LIMIT
from cpvt_backbones.weights import find_shipped, shipped_weights


def parse_scale(text: str) -> tuple[int, int] | str | None:
    """``'native'``, ``'config'`` or ``'1333x800'`` to what :class:`Inferencer` takes."""
    if text in ('native', 'config'):
        return None if text == 'native' else text
    match = re.fullmatch(r'([1-9]\d*)x([1-9]\d*)', text)
    if not match:
        raise argparse.ArgumentTypeError(f'{text!r}: native, config or WIDTHxHEIGHT is accepted')
    return int(match[1]), int(match[2])


def parse_arguments() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        'inputs',
        nargs='*',
        metavar='INPUT ... MODEL',
        help="image files, folders of images, patterns ('**' is any folders); then the model: CONFIG CHECKPOINT, "
        f'a file of tools/export.py ({", ".join(EXPORTED_SUFFIXES)}), or shipped weights by name',
    )
    parser.add_argument('--out-dir', default='outputs', help='default: %(default)s')
    parser.add_argument('--device', help='cpu, cuda:1, ... (default: a GPU if there is one)')
    parser.add_argument('--score-threshold', type=float, default=0.3, help='for boxes; default: %(default)s')
    parser.add_argument('--no-pictures', action='store_true', help='write no vis/')
    parser.add_argument('--fresh', action='store_true', help='throw away what an earlier run left in the output folder')
    parser.add_argument(
        '--strict',
        action='store_true',
        help='exit code 1 if any image could not be predicted; without it, if none could',
    )
    size = parser.add_argument_group('size').add_mutually_exclusive_group()
    size.add_argument(
        '--scale',
        type=parse_scale,
        metavar='native|config|WIDTHxHEIGHT',
        help="native (default): the image's own size; config: as in the config's test pipeline; "
        '1333x800: as large as fits in there, the larger number for the longer side',
    )
    size.add_argument('--long-side', type=int, metavar='PX', help='the longer side')
    memory = parser.add_argument_group('memory')
    memory.add_argument('--batch-size', type=int, default=1, help='images of equal size together; default: %(default)s')
    memory.add_argument(
        '--max-pixels',
        type=int,
        default=MAX_PIXELS,
        help='most pixels of one forward, all images together; larger images are tiled; default: %(default)s',
    )
    memory.add_argument('--tile-size', type=int, default=TILE_SIZE, metavar='PX', help='default: %(default)s')
    memory.add_argument(
        '--overlap', type=int, default=OVERLAP, metavar='PX', help='of tiles, at least; default: %(default)s'
    )
    memory.add_argument(
        '--read-limit', type=int, default=READ_LIMIT, help='most pixels of an image file; default: %(default)s'
    )
    add_config_arguments(parser)
    args = parser.parse_args()
    split_model(parser, args)
    return parser, args


def split_model(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Take the model off the end of ``args.inputs``."""
    *inputs, last = args.inputs or ['']
    if Path(last).suffix in EXPORTED_SUFFIXES:
        args.config = None
    elif inputs and Path(inputs[-1]).suffix == '.py':
        args.config = inputs.pop()
    elif last in shipped_weights():
        args.config = find_shipped(last).config_file
    else:
        shipped = ''.join(f'\n  {name}: {entry.about}' for name, entry in shipped_weights().items())
        parser.error(
            'the last arguments must be a model: CONFIG.py CHECKPOINT, a file that tools/export.py wrote '
            f'({", ".join(EXPORTED_SUFFIXES)}), or weights that come with the package:{shipped or " (none)"}'
        )
    if not inputs:
        parser.error('inputs: there is nothing to predict on, only a model')
    args.inputs, args.checkpoint = inputs, last


def main() -> None:
    sys.stdout.reconfigure(errors='backslashreplace')  # type: ignore[union-attr]  # file names may be no text
    parser, args = parse_arguments()
    if args.config is None and args.cfg_options:
        parser.error(
            f'--cfg-options: {args.checkpoint} is an exported file, which has no config, got {args.cfg_options}'
        )
    cfg = None if args.config is None else config_from(parser, args)
    try:
        images = find_images(args.inputs)
        exported = ExportedModel(args.checkpoint, device=args.device) if cfg is None else None
        inferencer = Inferencer(
            cfg=cfg,
            checkpoint=None if cfg is None else args.checkpoint,
            device=args.device,
            predictor=exported,
            scale=args.scale,
            long_side=args.long_side,
            batch_size=args.batch_size,
            max_pixels=args.max_pixels,
            tile_size=args.tile_size,
            overlap=args.overlap,
            read_limit=args.read_limit,
        )
        summary = predict_to_folder(
            inferencer,
            images,
            out_dir=args.out_dir,
            score_thr=args.score_threshold,
            vis=not args.no_pictures,
            overwrite=args.fresh,
        )
    except (OSError, ImageError, ImportError, ValueError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print('interrupted; the same command goes on where this one was')
        sys.exit(130)
    for name, reason in summary.failed.items():
        print(f'not predicted: {name}: {reason}')
    for file in summary.orphaned:
        print(f'left by an earlier run: {args.out_dir}/{file}: its image is gone or could not be predicted now')
    print(
        f'{args.out_dir}: {summary.predicted} images predicted, {summary.found} were there already, '
        f'{len(summary.failed)} could not be'
    )
    if summary.failed and (args.strict or not summary.predicted + summary.found):
        sys.exit(1)


if __name__ == '__main__':
    main()

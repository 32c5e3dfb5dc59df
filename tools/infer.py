"""Run a trained detector, segmentor or classifier on images of any size.

python tools/infer.py CONFIG CHECKPOINT photo.jpg photos/ 'scans/**/*.tif'
python tools/infer.py model.onnx photos/      # a file that tools/export.py wrote
python tools/infer.py NAME photos/            # shipped weights

Writes predictions.json (boxes: COCO results), images.json, failed.json, vis/ (pictures) and pred/
(class maps) to the output folder. The same command resumes an interrupted run.
"""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from cpvt_backbones.engine import command_line as cli
from cpvt_backbones.options import (
    DTYPES,
    EXPORTED_SUFFIXES,
    MAX_PIXELS,
    OVERLAP,
    READ_LIMIT,
    RUNTIMES,
    TILE_SIZE,
)

SHARDS = [
    ('RANK', 'WORLD_SIZE'),
    ('SLURM_ARRAY_TASK_ID', 'SLURM_ARRAY_TASK_COUNT'),
    ('SLURM_PROCID', 'SLURM_NTASKS'),
]
SCALES = 'config|native|FACTOR|HEIGHTxWIDTH'


def parse_scale(text: str) -> tuple[int, int] | float | str:
    """A word, a factor, ``HEIGHTxWIDTH`` or ``SIDE`` to the argument ``scale`` of
    :class:`Inferencer`.
    """
    if text in ('native', 'config'):
        return text
    try:
        if re.fullmatch(r'\d*\.\d*[1-9]\d*|[1-9]\d*\.\d*', text):
            return float(text)
        # The larger number is for the longer side, so that the order does not matter.
        return max(cli.parse_size(text)), min(cli.parse_size(text))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f'{SCALES} or SIDE is expected, got {text!r}') from None


def parse_shard(text: str) -> tuple[int, int]:
    """``I/N``, or ``auto`` from torchrun, a Slurm array or Slurm's tasks, to (i, n)."""
    if text == 'auto':
        first, step = (
            int(os.environ.get(f'SLURM_ARRAY_TASK_{key}', i))
            for i, key in enumerate(('MIN', 'STEP'))
        )
        for index, count in SHARDS:
            if index in os.environ and count in os.environ:
                shard = int(os.environ[index])
                return (shard - first) // step if 'ARRAY' in index else shard, int(
                    os.environ[count]
                )
    if not re.fullmatch(r'\d+/\d+', text) or not int(text.split('/')[0]) < int(text.split('/')[1]):
        known = ', '.join(f'{index}/{count}' for index, count in SHARDS)
        raise argparse.ArgumentTypeError(
            f'I/N with I from 0 to N - 1, or auto ({known}) is expected, got {text!r}'
        )
    return int(text.split('/')[0]), int(text.split('/')[1])


def own_device(shard: tuple[int, int] | None, device: str | None) -> str | None:
    """The GPU of a shard where it has a machine with others, unless a device is given."""
    import torch

    local = int(os.environ.get('LOCAL_RANK', os.environ.get('SLURM_LOCALID', 0)))
    several = shard is not None and device is None and torch.cuda.device_count() > 1
    return f'cuda:{local % torch.cuda.device_count()}' if several else device


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    cli.add_model_arguments(parser, images=True, exported=True)
    parser.add_argument('--out-dir', default='outputs', help='default: %(default)s')
    parser.add_argument('--device', help='cpu, cuda:1, ... (default: a GPU if there is one)')
    dtype = 'float32 (default), bfloat16, float16; auto: bfloat16 where faster'
    parser.add_argument('--dtype', choices=DTYPES, default='float32', metavar='TYPE', help=dtype)
    about = 'of an .onnx file: onnxruntime (default), openvino, openvino-bfloat16'
    parser.add_argument(
        '--runtime', choices=RUNTIMES, default=RUNTIMES[0], metavar='NAME', help=about
    )
    parser.add_argument('--score-thr', type=float, default=0.3, help='minimum score of a box')
    parser.add_argument('--no-vis', action='store_true', help='write no vis/')
    parser.add_argument(
        '--overwrite', action='store_true', help='delete the results of an earlier run in --out-dir'
    )
    ann = 'COCO JSON with the ids: images by file name, categories by name'
    parser.add_argument('--ann', type=Path, metavar='FILE', help=ann)
    strict = 'exit code 1 if any image failed; without it, if all did'
    parser.add_argument('--strict', action='store_true', help=strict)
    size = parser.add_argument_group('size').add_mutually_exclusive_group()
    scale = (
        "config: the test pipeline's (default: docs/inference.md); native: own size; 0.5: a factor"
        ' of it; '
    )
    scale += '800x1333: largest that fits'
    size.add_argument('--scale', type=parse_scale, metavar=SCALES, help=scale)
    size.add_argument('--long-side', type=int, metavar='PX', help='length of the longer side')
    memory = parser.add_argument_group('memory')
    memory.add_argument(
        '--batch-size',
        type=int,
        default=1,
        help='maximum images, of equal size, of one forward call',
    )
    most = 'of one forward call; a larger image is tiled'
    memory.add_argument('--max-pixels', type=int, default=MAX_PIXELS, help=most)
    memory.add_argument(
        '--tile-size', type=int, default=TILE_SIZE, metavar='PX', help='default: %(default)s'
    )
    memory.add_argument(
        '--overlap', type=int, default=OVERLAP, metavar='PX', help='minimum overlap of two tiles'
    )
    memory.add_argument(
        '--read-limit',
        type=int,
        default=READ_LIMIT,
        help='maximum pixels of a file decoded as a whole',
    )
    many = parser.add_argument_group('many processes (docs/scale.md)')
    shard = 'predict shard I, from 0, of N; auto: as torchrun or Slurm numbers it'
    many.add_argument('--shard', type=parse_shard, metavar='I/N', help=shard)
    many.add_argument(
        '--merge', action='store_true', help='when all shards have ended: make their results one'
    )
    formats = 'by Ray Data, to files of this format in --out-dir'
    many.add_argument('--ray', choices=('parquet', 'json'), help=formats)
    many.add_argument(
        '--workers', type=cli.positive, help="Ray's actors (default: one for each GPU or core)"
    )
    cli.add_config_arguments(parser)
    args = parser.parse_args(argv)
    words = [args.config, *args.rest]
    config, checkpoint, inputs = cli.split_model(words, images=True, exported=EXPORTED_SUFFIXES)
    if config is not None and args.runtime != RUNTIMES[0]:
        raise ValueError(
            f'--runtime: only an exported .onnx file runs in another runtime, got {args.runtime!r}'
        )
    if config is None and args.cfg_options:
        raise ValueError(
            f'--cfg-options: the exported file {checkpoint} has no config, got {args.cfg_options}'
        )
    from cpvt_backbones.export import ExportedModel
    from cpvt_backbones.inference import Inferencer, find_images, predict_to_folder

    images = find_images(inputs)
    names = (
        'device',
        'dtype',
        'scale',
        'long_side',
        'batch_size',
        'max_pixels',
        'tile_size',
        'overlap',
        'read_limit',
    )
    args.device = own_device(args.shard, args.device)
    options = {name: getattr(args, name) for name in names}
    if config is not None:
        options |= dict(cfg=cli.config_from(args, config), checkpoint=checkpoint)
    if args.ray:
        from ray_data import predict_with_ray

        options |= (
            dict(exported=os.path.abspath(checkpoint), runtime=args.runtime)
            if config is None
            else {}
        )
        output = dict(
            out_dir=args.out_dir,
            score_thr=args.score_thr,
            file_format=args.ray,
            workers=args.workers,
        )
        predict_with_ray(options, images, **output)
        return print(f'{args.out_dir}: {len(images)} images')
    if config is None:
        options['predictor'] = ExportedModel(checkpoint, device=args.device, runtime=args.runtime)
    inferencer = Inferencer(**options)
    print(inferencer.sizing)
    if args.dtype != 'float32' and config is not None:
        print(f'dtype: {inferencer.predictor.dtype}, {inferencer.predictor.dtype_reason}')
    output = dict(
        out_dir=args.out_dir,
        score_thr=args.score_thr,
        vis=not args.no_vis,
        overwrite=args.overwrite,
    )
    output |= dict(shard=args.shard, merge=args.merge)
    summary = predict_to_folder(inferencer, images, ann=args.ann, **output)
    if summary.skipped:
        named = ', '.join(summary.skipped[:3]) + (', ...' if len(summary.skipped) > 3 else '')
        print(
            f'skipped: {len(summary.skipped)} images in pred/ and vis/ of {args.out_dir}: {named}'
        )
    for file in summary.orphaned:
        print(
            f'left by an earlier run: {args.out_dir}/{file}: its image is gone or could not be'
            ' predicted now'
        )
    for name, reason in summary.failed.items():
        print(f'not predicted: {name}: {reason}')
    if inferencer.outside:
        print(f'outside the sizes at which the model is good: {inferencer.outside} images')
    shard = (
        f', shard {args.shard[0]}/{args.shard[1]}; when all have ended: --merge'
        if args.shard
        else ''
    )
    counts = f'{summary.predicted} images predicted, {summary.found} found from earlier runs'
    print(f'{args.out_dir}: {counts}, {len(summary.failed)} failed{shard}')
    if summary.failed and (args.strict or not summary.predicted + summary.found):
        sys.exit(1)


if __name__ == '__main__':
    cli.run(main, interrupted='interrupted; the same command resumes')

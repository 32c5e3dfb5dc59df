"""Run a trained detector, segmentor or classifier on images of any size.

    cpvt infer CONFIG CHECKPOINT photo.jpg photos/ 'scans/**/*.tif'
    cpvt infer model.onnx photos/    # a file of cpvt export
    cpvt infer NAME photos/          # a model by name

It writes records.jsonl after each image, and predictions.json (boxes: COCO results), images.json
and failed.json at the end. Pictures go to vis/ and class maps to pred/. Run it again after an
interruption.
"""

import argparse
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from cpvt import command_line as cli
from cpvt.command_line import plain

if TYPE_CHECKING:
    from cpvt_backbones.inference import Summary

SHARDS = [
    ('RANK', 'WORLD_SIZE'),
    ('SLURM_ARRAY_TASK_ID', 'SLURM_ARRAY_TASK_COUNT'),
    ('SLURM_PROCID', 'SLURM_NTASKS'),
]
SCALES = 'config|native|FACTOR|SIDE|HEIGHTxWIDTH'
LEAST_SIDE = 16  # px; a smaller whole number must be a factor


def parse_scale(text: str) -> tuple[int, int] | float | str:
    """Parse a word, a factor or a size as ``scale`` of :class:`Inferencer`."""
    if text in ('native', 'config'):
        return text
    if re.fullmatch(r'\d*\.\d*[1-9]\d*|[1-9]\d*\.\d*', text):
        return float(text)
    if re.fullmatch('[1-9][0-9]*', text) and int(text) < LEAST_SIDE:
        raise argparse.ArgumentTypeError(
            f'{text}.0 is a factor, {text} a side of {text} px; got {text!r}: write {text}.0, or'
            f' {text}x{text}'
        )
    try:
        size = cli.parse_size(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f'{SCALES} is expected, got {text!r}') from None
    # The larger number applies to the longer side, so the order does not matter.
    return max(size), min(size)


def parse_shard(text: str) -> tuple[int, int]:
    """Parse ``I/N`` as (i, n); ``auto`` reads torchrun, a Slurm array or Slurm's tasks."""
    if text == 'auto':
        for index, count in SHARDS:
            if index in os.environ and count in os.environ:
                return _shard_number(index), int(os.environ[count])
    match = re.fullmatch(r'(\d+)/(\d+)', text)
    if not match or not int(match[1]) < int(match[2]):
        known = ', '.join(f'{index}/{count}' for index, count in SHARDS)
        raise argparse.ArgumentTypeError(
            f'I/N with I from 0 to N - 1, or auto ({known}) is expected, got {text!r}'
        )
    return int(match[1]), int(match[2])


def _shard_number(variable: str) -> int:
    number = int(os.environ[variable])
    if 'ARRAY' not in variable:
        return number
    first = int(os.environ.get('SLURM_ARRAY_TASK_MIN', 0))
    return (number - first) // int(os.environ.get('SLURM_ARRAY_TASK_STEP', 1))


def own_device(shard: tuple[int, int] | None, device: str | None) -> str | None:
    """Choose this shard's GPU on a machine with several shards, unless a device is given."""
    if shard is None or device is not None:
        return device
    import torch

    count = torch.cuda.device_count()
    local = int(os.environ.get('LOCAL_RANK', os.environ.get('SLURM_LOCALID', 0)))
    return f'cuda:{local % count}' if count > 1 else None


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of this command."""
    parser = cli.make_parser(__doc__)
    cli.add_model_arguments(parser, images=True, exported=True)
    parser.add_argument(
        '--out-dir', type=parse_folder, default='outputs', help='default: %(default)s'
    )
    parser.add_argument('--device', help='cpu, cuda:1, ... (default: a GPU if there is one)')
    parser.add_argument(
        '--dtype',
        choices=plain.DTYPES,
        default='float32',
        metavar='TYPE',
        help='float32 (default), bfloat16, float16; auto: bfloat16 where faster',
    )
    parser.add_argument(
        '--runtime',
        choices=plain.RUNTIMES,
        default=plain.RUNTIMES[0],
        metavar='NAME',
        help='for .onnx files: onnxruntime (default), openvino, openvino-bfloat16',
    )
    parser.add_argument(
        '--score-thr', type=cli.fraction, default=0.3, help='minimum score of a box'
    )
    parser.add_argument('--no-vis', action='store_true', help='write no vis/')
    parser.add_argument(
        '--csv', action='store_true', help='also write predictions.csv: one row per box or class'
    )
    parser.add_argument(
        '--overwrite',
        action='store_true',
        help='delete the results of an earlier run in --out-dir',
    )
    parser.add_argument(
        '--ann',
        type=Path,
        metavar='FILE',
        help='COCO JSON with the ids: images by file name, categories by name',
    )
    parser.add_argument(
        '--strict',
        action='store_true',
        help='exit code 1 if any image failed or has an unsupported format; default: only if all'
        ' failed',
    )
    size = parser.add_argument_group('size').add_mutually_exclusive_group()
    size.add_argument(
        '--scale',
        type=parse_scale,
        metavar=SCALES,
        help="config: the test pipeline's (default: docs/inference.md); native: the image's size;"
        ' 0.5: a factor of it; 800, 800x1333: largest that fits',
    )
    size.add_argument(
        '--long-side', type=cli.positive, metavar='PX', help='length of the longer side'
    )
    memory = parser.add_argument_group('memory')
    memory.add_argument(
        '--batch-size',
        type=cli.positive,
        default=1,
        metavar='N',
        help='maximum number of images of equal size per forward call',
    )
    memory.add_argument(
        '--max-pixels',
        type=cli.positive,
        default=plain.MAX_PIXELS,
        metavar='N',
        help='maximum pixels per forward call; larger images are tiled',
    )
    memory.add_argument(
        '--tile-size',
        type=cli.positive,
        default=plain.TILE_SIZE,
        metavar='PX',
        help='default: %(default)s',
    )
    memory.add_argument(
        '--overlap',
        type=cli.natural,
        default=plain.OVERLAP,
        metavar='PX',
        help='minimum overlap of two tiles',
    )
    memory.add_argument(
        '--read-limit',
        type=cli.positive,
        default=plain.READ_LIMIT,
        metavar='N',
        help='maximum pixels of a file decoded as a whole',
    )
    processes = parser.add_argument_group('many processes (docs/scale.md)')
    processes.add_argument(
        '--shard',
        type=parse_shard,
        metavar='I/N',
        help='predict shard I of N, counted from 0; auto: from torchrun or Slurm',
    )
    processes.add_argument(
        '--merge',
        action='store_true',
        help='merge the results of all shards after they have ended',
    )
    cli.add_config_arguments(parser)
    return parser


def parse_folder(text: str) -> str:
    """Parse the path of a folder, which need not exist."""
    if Path(text).exists() and not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f'{text!r} is a file, not a folder')
    return text


def main(argv: Sequence[str] | None = None) -> None:
    args = make_parser().parse_args(argv)
    cli.keep_memory()
    cli.print_file_of(args.checkpoint)
    if args.config is not None and args.runtime != plain.RUNTIMES[0]:
        raise cli.UsageError(
            f'--runtime: only an exported .onnx file runs in another runtime, got {args.runtime!r}'
        )
    if args.config is None and args.cfg_options:
        raise cli.UsageError(
            f'--cfg-options: the exported file {args.checkpoint} has no config, got'
            f' {args.cfg_options}'
        )
    if args.merge and (args.shard or args.overwrite):
        raise cli.UsageError(
            '--merge: it joins what shards have written, without --shard and --overwrite'
        )
    from cpvt_backbones.inference import merge_shards, search_images
    from cpvt_backbones.inference.outputs import write_csv

    found, unread = search_images(args.inputs)
    images = cast(list[Path], found)  # arrays come from Python only
    try:
        summary = merge_shards(images, args.out_dir) if args.merge else _predict(args, images)
        _report(args, summary, unread)
        if args.csv:
            print(f'table: {write_csv(_folder_of(args))}')
    except KeyboardInterrupt:
        raise KeyboardInterrupt('interrupted; the same command resumes') from None
    incomplete = summary.failed or (unread and args.strict)
    if incomplete and (args.strict or not summary.predicted + summary.found):
        sys.exit(1)


def _predict(args: argparse.Namespace, images: list[Path]) -> 'Summary':
    from cpvt_backbones.inference import Inferencer, predict_to_folder

    options: dict[str, Any] = dict(
        device=own_device(args.shard, args.device),
        dtype=args.dtype,
        scale=args.scale,
        long_side=args.long_side,
        batch_size=args.batch_size,
        max_pixels=args.max_pixels,
        tile_size=args.tile_size,
        overlap=args.overlap,
        read_limit=args.read_limit,
    )
    if args.config is None:
        from cpvt_backbones.export import ExportedModel

        options['predictor'] = ExportedModel(
            args.checkpoint, device=options['device'], runtime=args.runtime
        )
    else:
        options |= dict(cfg=cli.config_from(args), checkpoint=args.checkpoint)
    inferencer = Inferencer(**options)
    print(inferencer.sizing)
    if args.dtype != 'float32' and args.config is not None:
        predictor: Any = inferencer.predictor
        print(f'dtype: {predictor.dtype}, {predictor.dtype_reason}')
    start = time.monotonic()
    summary = predict_to_folder(
        inferencer,
        images,
        out_dir=args.out_dir,
        score_thr=args.score_thr,
        vis=not args.no_vis,
        overwrite=args.overwrite,
        ann=args.ann,
        shard=args.shard,
    )
    if inferencer.outside:
        print(f'images outside the sizes at which the model is good: {inferencer.outside}')
    if summary.predicted:
        device = getattr(inferencer.predictor, 'device', None)
        print(f'time: {time.monotonic() - start:.1f} s' + (f' on {device}' if device else ''))
    return summary


def _report(args: argparse.Namespace, summary: 'Summary', unread: list[Path]) -> None:
    """Print what was not predicted, and then what was.

    ``unread`` are image files of unsupported formats.
    """
    from cpvt_backbones.images.finding import about_unread

    lines = [f'left out: {about_unread(unread)}'] if unread else []
    if summary.skipped:
        named = ', '.join(summary.skipped[:3]) + (', ...' if len(summary.skipped) > 3 else '')
        lines.append(
            f'skipped: {len(summary.skipped)} images in outputs of {args.out_dir}: {named}'
        )
    for file in summary.orphaned:
        reason = 'its image is gone or could not be predicted now'
        lines.append(f'left by an earlier run: {args.out_dir}/{file}: {reason}')
    for name, reason in summary.failed.items():
        lines.append(f'not predicted: {name}: {reason}')
    if summary.boxes == 0 and summary.predicted + summary.found:
        lines.append(_nothing_found(args.score_thr, summary.best))
    for line in (*lines, *_outcome(args, summary)):
        print(cli.text.printable(line))


def _folder_of(args: argparse.Namespace) -> Path:
    """Return the folder of the JSON files."""
    from cpvt_backbones.inference.folders import shard_folder

    return shard_folder(Path(args.out_dir), args.shard) if args.shard else Path(args.out_dir)


def _outcome(args: argparse.Namespace, summary: 'Summary') -> list[str]:
    """Return the last lines: what was found, where it is, and the numbers of images."""
    lines, shard = [], ''
    if args.shard:
        index, count = args.shard
        shard = f', shard {index}/{count}; when all have ended: --merge'
    if summary.classes:
        lines.append(_found(summary, args.score_thr))
    folders = [*Path(args.out_dir).glob('shard-*')] if args.merge else [_folder_of(args)]
    shown = Path(args.out_dir, 'shard-*') if args.merge else folders[0]
    kinds = []
    for kind, name in (('pictures', 'vis'), ('class maps', 'pred')):
        if summary.predicted + summary.found and any((one / name).is_dir() for one in folders):
            kinds.append(f'{kind}: {shown / name}')
    if kinds:
        lines.append(', '.join(kinds))
    counts = []
    if summary.predicted or not summary.found:
        counts.append(f'{_count(summary.predicted)} predicted')
    if summary.found:
        counts.append(f'{_count(summary.found)} already predicted by earlier runs')
    if summary.failed:
        counts.append(f'{len(summary.failed)} failed')
    return [*lines, f'{args.out_dir}: {", ".join(counts)}{shard}']


def _count(images: int) -> str:
    return f'{images} image' if images == 1 else f'{images} images'


def _found(summary: 'Summary', score_thr: float) -> str:
    """Format the counts of the most frequent classes, of boxes or of classified images."""
    named = [f'{name} ({count})' for name, count in summary.classes.items()]
    shown = plain.SHOWN_CLASSES
    rest = sum([*summary.classes.values()][shown:])
    if rest:
        named[shown:] = [f'{len(named) - shown} more ({rest})']
    if summary.boxes is None:
        return f'classes: {", ".join(named)}'
    return f'boxes with a score of {score_thr:g} or more: {", ".join(named)}'


def _nothing_found(score_thr: float, best: float | None) -> str:
    if best is None:
        return 'nothing was found: the model has no box in any image, of any score'
    advice = 'a lower --score-thr shows what there is'
    return (
        f'nothing was found: no box has a score of --score-thr {score_thr:g} or more, the highest'
        f' is {best:.3g}; {advice}'
    )

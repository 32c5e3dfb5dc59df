"""Write a trained model to one file for any batch size and image size.

The file is ONNX, a torch.export program or an AOTInductor package.

    cpvt export CONFIG CHECKPOINT --format onnx --out model.onnx
    cpvt export CONFIG CHECKPOINT --format aoti --out model.pt2
    cpvt export NAME --part backbone --out features.onnx

The file is first compared with the model at several sizes; if they differ, nothing is written.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from cpvt import command_line as cli
from cpvt.command_line import plain

if TYPE_CHECKING:
    import numpy as np

    from cpvt_backbones.export import Comparison, ExportedModel, ExportGraph
    from cpvt_backbones.images import ImageInput
    from cpvt_backbones.inference import ToolboxPredictor


def show(comparisons: 'Iterable[Comparison]') -> 'list[Comparison]':
    """Print each comparison when it is made; return them all."""
    from rich.console import Console

    console, done = Console(soft_wrap=True), []
    with console.status('verifying'):
        for one in comparisons:
            done.append(one)
            case = f'{one.height:5d} x {one.width:<5d} batch {one.batch:<3d} {one.measure}'
            allowed = f'(allowed {one.tolerance:.0e}, {one.compared} compared)'
            console.print(f'{case}: {one.difference:.1e} {allowed}  {one.verdict}')
    return done


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of this tool."""
    parser = cli.make_parser(__doc__)
    cli.add_model_arguments(parser)
    parser.add_argument(
        '--out', type=Path, required=True, help='the file: .onnx, or .pt2 for the other formats'
    )
    parser.add_argument(
        '--format',
        choices=tuple(plain.EXPORT_FORMATS),
        default='onnx',
        help='default: %(default)s',
    )
    parser.add_argument(
        '--part', choices=('model', 'backbone'), default='model', help='default: %(default)s'
    )
    parser.add_argument(
        '--normalised',
        action='store_true',
        help='take normalised float32 images; default: uint8 BGR pixels, which the file normalises',
    )
    parser.add_argument(
        '--logits', action='store_true', help='for segmentors: return logits instead of classes'
    )
    parser.add_argument('--opset', type=int, default=plain.OPSET, help="ONNX's: 18, 21 or 23")
    parser.add_argument(
        '--portable',
        action='store_true',
        help="ONNX: no operator of onnxruntime's own, for runtimes other than it and OpenVINO;"
        ' slower in these',
    )
    parser.add_argument('--device', default='cpu', help='for .pt2: device that runs the file')
    parser.add_argument(
        '--int8',
        action='store_true',
        help='ONNX: quantise to 8 bits for the --runtime; needs --verify-images, and is refused if'
        ' it agrees with fp32 in less than 98 %%',
    )
    _add_verification(parser)
    cli.add_config_arguments(parser)
    return parser


def _add_verification(parser: argparse.ArgumentParser) -> None:
    verification = parser.add_argument_group('verification')
    verification.add_argument(
        '--runtime',
        choices=plain.RUNTIMES[:2],
        default=plain.RUNTIMES[0],
        help='runtime that verifies an .onnx file, and for which --int8 quantises; default:'
        ' %(default)s',
    )
    verification.add_argument(
        '--verify-sizes',
        type=cli.parse_size,
        nargs='+',
        default=list(plain.VERIFIED_SIZES),
        metavar='HEIGHTxWIDTH',
        help='default: ' + ' '.join(f'{height}x{width}' for height, width in plain.VERIFIED_SIZES),
    )
    verification.add_argument(
        '--verify-batches',
        type=cli.positive,
        nargs='+',
        default=list(plain.VERIFIED_BATCHES),
        metavar='N',
        help='default: %(default)s',
    )
    verification.add_argument(
        '--verify-images',
        nargs='+',
        default=[],
        help='files and folders; default: generated images; with --int8 for openvino, every second'
        ' one sets the range of the 8 bits',
    )


def main(argv: Sequence[str] | None = None) -> None:
    args = make_parser().parse_args(argv)
    cli.print_file_of(args.checkpoint)
    _check_suffix(args)
    _check_int8(args)
    from cpvt_backbones.export import graph_of
    from cpvt_backbones.inference import ToolboxPredictor

    cfg = cli.config_from(args)
    predictor = ToolboxPredictor(cfg=cfg, checkpoint=args.checkpoint, device=args.device)
    graph = graph_of(
        predictor.model, part=args.part, pixels=not args.normalised, logits=args.logits
    )
    _write_verified(args, graph, predictor)
    precision = ' in int8' if args.int8 else ''
    size = f'{args.out.stat().st_size / 2**20:.1f} MiB'
    print(f'{args.out}  {size}  {args.format}{precision}, {graph.task}')
    _say_next(args, graph.task)


def _say_next(args: argparse.Namespace, task: str) -> None:
    """Print how to use the file."""
    if task == 'features':
        print(f'its outputs as arrays: ExportedModel({str(args.out)!r}).predict(images)')
        return
    if args.int8:
        chosen = '' if args.runtime == plain.RUNTIMES[0] else f' --runtime {args.runtime}'
        print(f'made for {args.runtime}: {cli.command("infer")} {args.out} IMAGE ...{chosen}')
    elif args.format == 'onnx':
        print(f'predict with it in onnxruntime: {cli.command("infer")} {args.out} IMAGE ...')
    if args.format == 'onnx' and (not args.int8 or args.runtime == plain.RUNTIMES[1]):
        print(
            f'on a processor with bfloat16 instructions, add --runtime {plain.RUNTIMES[2]}'
            ' (speed: docs/export.md)'
        )


def _check_suffix(args: argparse.Namespace) -> None:
    """Refuse a wrong file name before the model is loaded."""
    suffix = plain.EXPORTED_SUFFIXES[args.format != 'onnx']
    if args.out.suffix != suffix:
        raise cli.UsageError(
            f'--out: must have the suffix {suffix} for --format {args.format}, got'
            f' {str(args.out)!r}'
        )


def _check_int8(args: argparse.Namespace) -> None:
    if not args.int8:
        return
    if args.format != 'onnx':
        raise cli.UsageError(f'--int8: accepted with --format onnx, got --format {args.format}')
    if args.part != 'model' or args.logits or args.normalised:
        raise cli.UsageError('--int8: accepted without --part backbone, --logits and --normalised')
    if not args.verify_images:
        raise cli.UsageError(
            '--int8: give images of the kind that the model is for by --verify-images; generated'
            ' images do not show how often int8 and fp32 agree'
        )


def _find_photos(args: argparse.Namespace) -> 'list[Path | np.ndarray]':
    """Find the files of --verify-images."""
    from cpvt_backbones.inference import find_images

    if not args.verify_images:
        return []
    try:
        files = find_images(args.verify_images)
    except FileNotFoundError as error:
        reason = str(error).removeprefix('inputs: ')
        raise FileNotFoundError(f'--verify-images: {reason}') from None
    if args.int8 and args.runtime == plain.RUNTIMES[1] and len(files) < 2:
        raise cli.UsageError(
            f'--verify-images: --int8 for {args.runtime} needs at least two images, one to'
            f' calibrate and one to compare, got {len(files)}'
        )
    return files


def _write_verified(
    args: argparse.Namespace, graph: 'ExportGraph', predictor: 'ToolboxPredictor'
) -> None:
    """Write the file under its name after it was verified."""
    from cpvt_backbones.export import ExportedModel, export, finds_something, reference_of, verify
    from cpvt_backbones.images import ImageError
    from cpvt_backbones.images.windows import open_image

    files = _find_photos(args)
    read_as = predictor.value_range
    try:
        opened = [
            open_image(file, name=str(file), read_limit=None, value_range=read_as) for file in files
        ]
    except ImageError as error:
        raise ImageError(f'--verify-images: {error.source}', error.reason) from None
    # The whole image if it is read by windows.
    photos = [image[: image.shape[0], : image.shape[1]] for image in opened]
    cases: Any = dict(
        sizes=args.verify_sizes,
        batches=args.verify_batches,
        photos=photos,
    )
    reference = reference_of(graph, predictor)
    channels = graph.in_channels
    if graph.task == 'detection' and not finds_something(reference, channels=channels, **cases):
        images = '--verify-images' if args.verify_images else 'the generated images'
        sys.exit(
            f'{args.out} was not written: the model finds nothing in {images}, so that nothing can'
            ' be compared; give images with its objects by --verify-images, or lower its'
            ' threshold: --cfg-options model.test_cfg.score_thr=0 (of an R-CNN'
            ' model.test_cfg.rcnn.score_thr)'
        )
    settings = dict(
        classes=predictor.classes,
        palette=predictor.palette,
        size_steps=predictor.size_steps,
        sizes=asdict(predictor.sizes) if predictor.sizes else None,
        value_range=read_as.settings if read_as else None,
    )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    # In a new folder, so that no existing file is replaced.
    with TemporaryDirectory(prefix='.export-', dir=args.out.parent) as folder:
        unverified = Path(folder, args.out.name)
        export(
            graph,
            unverified,
            format=args.format,
            settings=settings,
            opset=args.opset,
            portable=args.portable,
        )
        exported = ExportedModel(unverified, device=args.device, runtime=args.runtime)
        comparisons = show(verify(exported, reference, **cases))
        if not all(one.agrees for one in comparisons):
            sys.exit(f"{args.out} was not written: its results differ from the model's")
        if args.int8:
            _write_int8(args, exported, unverified, files)
        else:
            unverified.replace(args.out)


def _write_int8(
    args: argparse.Namespace, original: 'ExportedModel', path: Path, images: 'Sequence[ImageInput]'
) -> None:
    """Write the int8 copy of a verified file to the same folder if both agree on the images."""
    from rich.progress import track

    from cpvt_backbones.export import ExportedModel
    from cpvt_backbones.export.int8 import (
        AGREEMENTS,
        MIN_AGREEMENT,
        calibration_inputs,
        compare,
        quantise,
        split_images,
        total_of,
    )

    copy = path.with_name(f'int8-{path.name}')
    if args.runtime == plain.RUNTIMES[1]:
        calibration, images = split_images(images)
        inputs = calibration_inputs(original, calibration)
        shown = track(inputs, 'calibration', total=len(calibration))
        quantise(path, copy, runtime=args.runtime, calibration=shown)
    else:
        quantise(path, copy)
    agreements = compare(ExportedModel(copy, runtime=args.runtime), original, images)
    agreement = total_of(list(track(agreements, 'int8 against fp32', total=len(images))))
    about = (
        f'{AGREEMENTS[original.task]}, {len(images)} {"image" if len(images) == 1 else "images"}'
    )
    if not agreement.total:
        sys.exit(f'{args.out} was not written: neither file finds anything in the images')
    if agreement.share < MIN_AGREEMENT:
        sys.exit(
            f'{args.out} was not written: int8 and fp32 agree in {agreement.share:.1%}'
            f' ({about}), and {MIN_AGREEMENT:.0%} are needed; leave out --int8'
        )
    print(f'int8 and fp32 agree in {agreement.share:.1%} ({about})')
    copy.replace(args.out)

"""Write a trained model to one file for any batch size and image size: ONNX, torch.export or
AOTInductor.

python tools/export.py CONFIG CHECKPOINT --format onnx --out model.onnx
python tools/export.py CONFIG CHECKPOINT --format aoti --out model.pt2 --verify-images photos/
python tools/export.py CONFIG CHECKPOINT --format onnx --out features.onnx --part backbone

Before it gets its name, the file is run at several sizes against the model itself; if they differ,
nothing is written.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from cpvt_backbones.engine import command_line as cli
from cpvt_backbones.options import EXPORT_FORMATS, OPSET, RUNTIMES, VERIFIED_BATCHES, VERIFIED_SIZES

if TYPE_CHECKING:
    from cpvt_backbones.export import Comparison


def show(comparisons: 'Iterable[Comparison]') -> 'list[Comparison]':
    """Print each comparison when it is made; returns them all."""
    console, done = Console(soft_wrap=True), []
    with console.status('verifying'):
        for one in comparisons:
            done.append(one)
            verdict = 'agrees' if one.agrees else f'DIFFERS {one.problem}'.rstrip()
            case = f'{one.height:5d} x {one.width:<5d} batch {one.batch:<3d} {one.measure}'
            allowed = f'(allowed {one.tolerance:.0e}, {one.compared} compared)'
            console.print(f'{case}: {one.difference:.1e} {allowed}  {verdict}')
    return done


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    cli.add_model_arguments(parser)
    parser.add_argument(
        '--out', type=Path, required=True, help='the file: .onnx, or .pt2 for the other formats'
    )
    parser.add_argument(
        '--format', choices=tuple(EXPORT_FORMATS), default='onnx', help='default: %(default)s'
    )
    parser.add_argument(
        '--part', choices=('model', 'backbone'), default='model', help='default: %(default)s'
    )
    normalised = (
        'take normalised images, float32; without it uint8 pixels, BGR, which the file normalises'
        ' itself'
    )
    parser.add_argument('--normalised', action='store_true', help=normalised)
    parser.add_argument(
        '--logits', action='store_true', help='of a segmentor: return logits instead of classes'
    )
    parser.add_argument('--opset', type=int, default=OPSET, help='of ONNX: 18, 21 or 23')
    about = (
        "ONNX: no operator of onnxruntime's own, for runtimes other than it and OpenVINO; slower in"
        ' these'
    )
    parser.add_argument('--portable', action='store_true', help=about)
    parser.add_argument('--device', default='cpu', help='for .pt2: where it is to run')
    checks = parser.add_argument_group('verification')
    about = 'in which an .onnx file is verified'
    checks.add_argument(
        '--runtime',
        choices=RUNTIMES[:2],
        default=RUNTIMES[0],
        help=f'{about}; default: %(default)s',
    )
    sizes = dict(
        type=cli.parse_size, nargs='+', default=list(VERIFIED_SIZES), metavar='HEIGHTxWIDTH'
    )
    checks.add_argument(
        '--verify-sizes',
        **sizes,
        help='default: ' + ' '.join(f'{h}x{w}' for h, w in VERIFIED_SIZES),
    )
    batches = dict(type=cli.positive, nargs='+', default=list(VERIFIED_BATCHES), metavar='N')
    checks.add_argument('--verify-batches', **batches, help='default: %(default)s')
    checks.add_argument(
        '--verify-images',
        nargs='+',
        default=[],
        help='files and folders; default: generated images',
    )
    cli.add_config_arguments(parser)
    args = parser.parse_args(argv)
    config, checkpoint, _ = cli.split_model([args.config, *args.rest])
    from cpvt_backbones.export import ExportedModel, export, graph_of, reference_of, verify
    from cpvt_backbones.inference import ToolboxPredictor, find_images, read_image

    cfg = cli.config_from(args, config)
    # The file gets its name when it has been verified.
    unverified = args.out.with_name(f'{args.out.stem}.unverified{args.out.suffix}')
    try:
        photos = [
            read_image(path)
            for path in (find_images(args.verify_images) if args.verify_images else [])
        ]
        predictor = ToolboxPredictor(cfg=cfg, checkpoint=checkpoint, device=args.device)
        graph = graph_of(
            predictor.model, part=args.part, pixels=not args.normalised, logits=args.logits
        )
        args.out.parent.mkdir(parents=True, exist_ok=True)
        settings = dict(
            classes=predictor.classes, palette=predictor.palette, size_steps=predictor.size_steps
        )
        settings['sizes'] = asdict(predictor.sizes) if predictor.sizes else None
        export(
            graph,
            unverified,
            format=args.format,
            settings=settings,
            opset=args.opset,
            portable=args.portable,
        )
        exported = ExportedModel(unverified, device=args.device, runtime=args.runtime)
        reference = reference_of(graph, predictor)
        checked = verify(
            exported, reference, sizes=args.verify_sizes, batches=args.verify_batches, photos=photos
        )
        comparisons = show(checked)
        if not all(one.agrees for one in comparisons):
            sys.exit(f"{args.out} was not written: its results differ from the model's")
        if not sum(one.compared for one in comparisons):
            sys.exit(
                f'{args.out} was not written: the model found nothing, so nothing was compared;'
                ' --verify-images'
            )
        unverified.replace(args.out)
    finally:
        unverified.unlink(missing_ok=True)
    print(f'{args.out}  {args.out.stat().st_size / 2**20:.1f} MiB  {args.format}, {graph.task}')
    if args.format == 'onnx':
        print(
            f'fastest on a CPU (docs/export.md): python tools/infer.py {args.out} IMAGE ..., in'
            ' onnxruntime; with'
        )
        print(f'bfloat16 instructions in the processor: --runtime {RUNTIMES[2]}')


if __name__ == '__main__':
    cli.run(main)

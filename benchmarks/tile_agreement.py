"""Agreement of predictions on tiles with predictions on whole images, for images that fit whole.

    python benchmarks/tile_agreement.py CONFIG CHECKPOINT photos/ \\
        --tiles 512:256 320:128 --long-side 1280

Segmentors: share of pixels of the same class, and mIoU. Detectors: share of the whole images' boxes
that the tiles' boxes match (same class, IoU 0.5), and the reverse. Written as CSV.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import Progress
from torchvision.ops import box_iou

from cpvt import command_line as cli
from cpvt_backbones.analysis.tables import write_table
from cpvt_backbones.errors import InputError
from cpvt_backbones.inference import Inferencer, Predictor, ToolboxPredictor, find_images
from cpvt_backbones.inference.predictions import Prediction

WHOLE = 2**62
"""Value of ``max_pixels`` that disables tiling."""


def measure_agreement(
    predictor: Predictor,
    inputs: Sequence[str],
    *,
    long_side: int | None,
    tiles: Sequence[tuple[int, int]],
    score_thr: float = 0.3,
    on_image: Callable[[], object] = lambda: None,
) -> list[dict[str, Any]]:
    """Predict on whole images and on tiles of them, and compare.

    Args:
        predictor: A detector or segmentor.
        inputs, long_side, score_thr: See :class:`~cpvt_backbones.inference.Inferencer`.
        tiles: (side, minimum overlap) in px. Each gives a dict: ``tile``, ``overlap``, ``images``
            (their number), and the result of :func:`compare_maps` (segmentor) or
            :func:`compare_boxes` (detector).
        on_image: Called after each image, ``len(images) * (1 + len(tiles))`` times.

    Raises:
        ValueError: The model is a classifier, or an image is no larger than a tile.
        ImageError: An image cannot be read.
    """
    if predictor.task == 'classification':
        raise InputError(
            "predictor.task must be 'detection' or 'segmentation', got 'classification'"
        )
    images = find_images(inputs)

    def predict(tile: int | None, **options: Any) -> list[Prediction]:
        scale = 'native' if long_side is None else None
        inferencer = Inferencer(predictor=predictor, scale=scale, long_side=long_side, **options)
        predictions: list[Any] = []
        counts: list[int] = []
        for image in images:
            counts.clear()
            results = inferencer.stream(
                [image], score_thr=score_thr, on_tiles=lambda _, total: counts.append(total)
            )
            ((_, result),) = results
            if result.error is not None:
                raise result.error
            if tile is not None and not counts:
                raise InputError(
                    f'tiles must be smaller than the images, got {tile} px for {image}'
                )
            predictions.append(result.prediction)
            on_image()
        return predictions

    compare = compare_maps if predictor.task == 'segmentation' else compare_boxes
    whole = predict(None, max_pixels=WHOLE)
    rows = []
    for side, overlap in tiles:
        tiled = predict(side, max_pixels=side * side, tile_size=side, overlap=overlap)
        rows.append(dict(tile=side, overlap=overlap, images=len(images), **compare(whole, tiled)))
    return rows


def compare_maps(whole: Sequence[Prediction], tiled: Sequence[Prediction]) -> dict[str, float]:
    """Share of pixels of the same class (``equal``), and ``mIoU`` over the classes that occur, over
    all images.
    """
    a, b = (
        np.concatenate([one['seg_map'].ravel() for one in some]).astype(np.int64)
        for some in (whole, tiled)
    )
    classes = int(max(a.max(), b.max())) + 1
    pairs = np.bincount(a * classes + b, minlength=classes**2).reshape(classes, classes)
    both, either = pairs.diagonal(), pairs.sum(0) + pairs.sum(1) - pairs.diagonal()
    return dict(
        equal=float(both.sum() / pairs.sum()),
        mIoU=float((both[either > 0] / either[either > 0]).mean()),
    )


def compare_boxes(whole: Sequence[Prediction], tiled: Sequence[Prediction]) -> dict[str, float]:
    """Numbers of boxes (``whole``, ``tiled``), and the shares that match a box of the same class at
    IoU >= 0.5.

    ``found``: of the whole images' boxes; ``confirmed``: of the tiles' boxes; nan without boxes.
    """
    found, confirmed = [], []
    for one, other in zip(whole, tiled, strict=True):
        boxes = [torch.tensor(prediction['boxes']).reshape(-1, 4) for prediction in (one, other)]
        labels = [torch.tensor(prediction['labels']) for prediction in (one, other)]
        same = (box_iou(*boxes) >= 0.5) & (labels[0][:, None] == labels[1][None])
        found += same.any(1).tolist()
        confirmed += same.any(0).tolist()
    shares = dict(
        found=float(np.mean(found or np.nan)), confirmed=float(np.mean(confirmed or np.nan))
    )
    return dict(whole=len(found), tiled=len(confirmed), **shares)


def parse_tile(text: str) -> tuple[int, int]:
    """``SIDE:OVERLAP`` to both, in px."""
    side, _, overlap = text.partition(':')
    if not (side.isdecimal() and overlap.isdecimal() and int(overlap) < int(side)):
        raise argparse.ArgumentTypeError(
            f'SIDE:OVERLAP is expected, the overlap smaller, as 512:128, got {text!r}'
        )
    return int(side), int(overlap)


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    cli.add_model_arguments(parser, images=True)
    parser.add_argument(
        '--tiles', nargs='+', type=parse_tile, required=True, metavar='SIDE:OVERLAP', help='in px'
    )
    parser.add_argument(
        '--long-side', type=cli.positive, metavar='PX', help='of the images; default: do not resize'
    )
    parser.add_argument('--score-thr', type=float, default=0.3, help='minimum score of a box')
    parser.add_argument('--device', help='cpu, cuda:1, ... (default: a GPU if there is one)')
    parser.add_argument(
        '--out',
        type=Path,
        default=Path('work_dirs/tile_agreement.csv'),
        help='default: %(default)s',
    )
    cli.add_config_arguments(parser)
    args = parser.parse_args(argv)
    predictor = ToolboxPredictor(
        cfg=cli.config_from(args), checkpoint=args.checkpoint, device=args.device
    )
    with Progress() as progress:
        task = progress.add_task(
            'Images', total=len(find_images(args.inputs)) * (1 + len(args.tiles))
        )
        options = dict(long_side=args.long_side, tiles=args.tiles, score_thr=args.score_thr)
        records = measure_agreement(
            predictor, args.inputs, on_image=lambda: progress.advance(task), **options
        )
    write_table(args.out, records)
    cli.print_table(records)
    print(f'written: {args.out}')


if __name__ == '__main__':
    cli.run(main)

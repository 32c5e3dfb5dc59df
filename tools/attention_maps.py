"""Draw the attention of a trained model: each layer's matrix, and where each head attends to from
a point of the image.

    python tools/attention_maps.py CONFIG CHECKPOINT photo.jpg --query 120 80 \\
        --layers 0 -1 --shape 480x640

Writes DIR/maps.csv and maps.png (weights over the first image); DIR/matrix_<layer>.csv,
matrices.png and grids.png (means over the images and heads); DIR/locality.csv: the distance of keys
and the weight of the 3 x 3 cells around a query, relative to uniform attention. Without CHECKPOINT
('-') the weights are random. With --draw the pictures are drawn again from there.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.progress import track

from cpvt import command_line as cli

if TYPE_CHECKING:
    import torch

    from cpvt_backbones.analysis.attention_maps import AttentionWeights


def mean_matrix(weights: 'torch.Tensor', num_prefix: int, *, largest: int = 1024) -> 'torch.Tensor':
    """Mean attention matrix (queries, keys) over images and heads, patch tokens only as in the CPVT
    paper's figure.

    Sides longer than ``largest`` are average-pooled.
    """
    import torch.nn.functional as F

    matrix = weights[:, :, num_prefix:, num_prefix:].mean(dim=(0, 1))
    return F.avg_pool2d(
        matrix[None], [-(-side // largest) for side in matrix.shape], ceil_mode=True
    )[0]


def locality(found: 'AttentionWeights') -> tuple['torch.Tensor', 'torch.Tensor']:
    """Mean distance of the keys that a query attends to, and the weight of the 3 x 3 cells around
    it, (heads,) each.

    Both are relative to uniform attention: 1 and 1 without locality, less than 1 and more than 1
    with it. Patch tokens only, means over images and queries.
    """
    import torch

    device, p = found.weights.device, found.num_prefix
    offsets = []  # (h, h of keys), (w, w of keys), in cells of the queries
    for side, keys in zip(found.grid, found.key_grid, strict=True):
        centres = (torch.arange(keys, device=device) + 0.5) * -(-side // keys) - 0.5
        offsets.append((torch.arange(side, device=device)[:, None] - centres).abs())
    y, x = offsets[0][:, None, :, None], offsets[1][:, None, :]
    distance = torch.hypot(y, x).flatten(2).flatten(0, 1)
    near = ((y < 1.5) & (x < 1.5)).float().flatten(2).flatten(0, 1)
    weights = found.weights[:, :, p:, p:]
    weights = (weights / weights.sum(dim=-1, keepdim=True)).mean(dim=0)  # (heads, N, S)
    return tuple(
        (weights * kind).sum(dim=-1).mean(dim=-1) / kind.mean() for kind in (distance, near)
    )  # type: ignore


def measure(
    args: argparse.Namespace, config: str | None, checkpoint: str, pictures: list[np.ndarray]
) -> None:
    """Write the CSV files."""
    from cpvt_backbones.analysis import attention_maps as maps
    from cpvt_backbones.analysis.features import FeatureExtractor
    from cpvt_backbones.analysis.tables import write_table

    model = FeatureExtractor(
        cli.config_from(args, config), None if checkpoint == '-' else checkpoint
    )
    args.out_dir.mkdir(parents=True, exist_ok=True)
    names = list(maps.attention_layers(model))
    chosen = range(len(names)) if args.layers is None else args.layers
    if not names or not all(-len(names) <= number < len(names) for number in chosen):
        raise cli.UsageError(
            f'--layers must be in [{-len(names)}, {len(names) - 1}] for this model, got'
            f' {list(chosen)}'
        )
    images = model.normalise(pictures)
    height, width = pictures[0].shape[:2]
    records, near = [], []
    for number in track(chosen, description='Layers'):
        found = maps.attention_weights(model, images, names[number])
        cell = maps.cell_side(found.grid, height=height, width=width)
        reach = (
            max(-(-side // keys) for side, keys in zip(found.grid, found.key_grid, strict=True))
            * cell
        )
        points = args.query or [(width // 2, height // 2)]
        queries = {
            f'{x} {y}': maps.query_at(found, x=x, y=y, height=height, width=width)
            for x, y in points
        }
        if found.num_prefix:
            queries['cls'] = 0
        layer = names[number].removeprefix('backbone.')
        for query, index in queries.items():
            for (head, row, column), weight in np.ndenumerate(
                maps.map_of_query(found, index)[0].numpy()
            ):
                place = dict(layer=layer, query=query, head=head, row=row, column=column)
                records.append(dict(**place, weight=float(weight), cell=reach))
        matrix = mean_matrix(found.weights, found.num_prefix)
        np.savetxt(args.out_dir / f'matrix_{layer}.csv', matrix.numpy(), delimiter=',', fmt='%.5g')
        sides = dict(
            zip(
                ('height', 'width', 'key_height', 'key_width'),
                (*found.grid, *found.key_grid),
                strict=True,
            )
        )
        distance, weight = locality(found)
        means = dict(distance=f'{distance.mean():.3g}', near=f'{weight.mean():.3g}')
        extremes = dict(shortest_head=f'{distance.min():.3g}', nearest_head=f'{weight.max():.3g}')
        near.append(dict(layer=layer, **sides, **means, **extremes))
    write_table(args.out_dir / 'maps.csv', records)
    write_table(args.out_dir / 'locality.csv', near)


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    cli.add_model_arguments(parser, images=True)
    query = (
        "px within the image as the model sees it, repeatable; default: the image's centre and the"
        ' class token'
    )
    parser.add_argument(
        '--query', nargs=2, type=int, action='append', metavar=('X', 'Y'), help=query
    )
    parser.add_argument(
        '--layers',
        nargs='+',
        type=int,
        help='numbers of layers, negative from the end; default: all',
    )
    cli.add_shape_argument(parser)
    parser.add_argument(
        '--out-dir', type=Path, default=Path('work_dirs/attention'), help='default: %(default)s'
    )
    parser.add_argument(
        '--draw', action='store_true', help="draw the folder's CSV files again, run nothing"
    )
    cli.add_config_arguments(parser)
    args = parser.parse_args(argv)
    config, checkpoint, images = cli.split_model([args.config, *args.rest], images=True)
    from cpvt.plots import draw_attention_grids, draw_attention_maps, draw_attention_matrices
    from cpvt_backbones.analysis.features import load_picture
    from cpvt_backbones.analysis.tables import read_table

    pictures = [load_picture(path, size=args.shape) for path in images]
    if len({picture.shape for picture in pictures}) > 1:
        raise cli.UsageError('images must be of one size, or --shape HEIGHTxWIDTH be given')
    if not args.draw:
        measure(args, config, checkpoint, pictures)
    draw_attention_maps(args.out_dir / 'maps.csv', pictures[0], args.out_dir / 'maps.png')
    draw_attention_matrices(args.out_dir / 'locality.csv', args.out_dir / 'matrices.png')
    draw_attention_grids(args.out_dir / 'locality.csv', args.out_dir / 'grids.png')
    cli.print_table(read_table(args.out_dir / 'locality.csv'))
    print(f'written: {args.out_dir}: maps, matrices, grids, locality')


if __name__ == '__main__':
    cli.run(main)

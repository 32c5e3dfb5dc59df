"""Parameters, multiply-adds, attention's share and peak memory of models against the image size: CSV and plot.

python tools/complexity.py --sizes 224 512 800x1344 --models \\
    retinanet=configs/retinanet/retinanet_pyramid-cpvt-s_fpn_1x_coco.py \\
    column="dict(type='CPVT', arch='small')" pcpvt="dict(type='mmpretrain.PCPVT', arch='small')"
get_flops.py says more of one config at one size. Without --models the CSV is only drawn.
"""

import argparse
import ast
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from _analysis import print_table, read, split_name
from _common import add_config_arguments
from mmengine.config import Config
from rich.progress import Progress

import cpvt_backbones  # noqa: F401  registers the backbones
from cpvt_backbones.analysis.complexity import complexity_against_size
from cpvt_backbones.analysis.plots import draw_complexity
from cpvt_backbones.analysis.tables import read_table, write_table


def parse_size(text: str) -> tuple[int, int]:
    """``'224'`` or ``'800x1344'`` to (height, width)."""
    sides = text.split('x')
    if len(sides) > 2 or not all(side.isdecimal() and int(side) for side in sides):
        raise argparse.ArgumentTypeError(f'SIDE or HEIGHTxWIDTH in px is expected, got {text!r}')
    return int(sides[0]), int(sides[-1])


def parse_backbone(text: str) -> dict[str, Any]:
    """``dict(type='CPVT', ...)`` of plain data, or the same in braces.

    Raises:
        ValueError: Anything else.
    """
    expression = ast.parse(text, mode='eval').body
    if isinstance(expression, ast.Call) and getattr(expression.func, 'id', '') == 'dict' and not expression.args:
        return {word.arg: ast.literal_eval(word.value) for word in expression.keywords if word.arg}
    found = ast.literal_eval(expression)
    if not isinstance(found, dict):
        raise ValueError(f'a dict is expected, got {text!r}')
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--models', nargs='+', type=split_name, default=[], metavar='NAME=CONFIG|NAME=dict(type=...)')
    parser.add_argument('--sizes', nargs='+', type=parse_size, default=[(224, 224), (448, 448)], metavar='HEIGHTxWIDTH')
    parser.add_argument('--memory', action='store_true', help='run every size for its peak memory; else only count')
    parser.add_argument('--device', choices=('cpu', 'cuda'), default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument('--out', type=Path, default=Path('work_dirs/complexity/complexity.csv'), help='CSV')
    add_config_arguments(parser)
    args = parser.parse_args()
    models: dict[str, Config | dict[str, Any]] = {}
    try:
        for name, described in args.models:
            is_config = described.endswith('.py')
            models[name] = read(parser, described, args.cfg_options) if is_config else parse_backbone(described)
        if models:
            with Progress() as bar:
                task = bar.add_task('Models and sizes', total=len(models) * len(args.sizes))
                rows = complexity_against_size(
                    models,
                    args.sizes,
                    memory=args.device if args.memory else None,
                    progress=lambda: bar.advance(task),
                )
            write_table(args.out, [asdict(row) for row in rows])
        draw_complexity(args.out, args.out.with_suffix('.png'))
    except (FileNotFoundError, ValueError, SyntaxError) as error:
        parser.error(str(error))
    print_table(read_table(args.out))
    print(f'written: {args.out} and {args.out.with_suffix(".png")}')


if __name__ == '__main__':
    main()

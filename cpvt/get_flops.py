"""Parameters, multiply-adds, attention's share and peak memory of models at any image size.

    cpvt get-flops CONFIG --shape 800x1344
    cpvt get-flops retinanet=CONFIG \\
        plain="dict(type='CPVT', arch='small')" \\
        --shape 224 512 800x1344 --memory --out work_dirs/flops.csv
"""

import argparse
import ast
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cpvt import command_line as cli


class DictCalls(ast.NodeTransformer):
    """Rewrites ``dict(key=value)`` as ``{'key': value}``, which `ast.literal_eval` accepts."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if getattr(node.func, 'id', '') != 'dict' or node.args:
            return node
        keys: list[ast.expr | None] = [ast.Constant(word.arg) for word in node.keywords]
        return ast.Dict(keys, [word.value for word in node.keywords])


def parse_described(text: str) -> tuple[str, str | dict[str, Any]]:
    """Parse ``[NAME=]CONFIG`` or ``[NAME=]dict(type=...)``.

    Returns:
        The name, and the config file or the backbone's arguments.
    """
    start = text.partition('=')[0]
    name, described = (
        ('', text) if start == text or '(' in start else (start, text[len(start) + 1 :])
    )
    if described.endswith('.py'):
        return name or Path(described).stem, described
    try:
        arguments = ast.literal_eval(DictCalls().visit(ast.parse(described, mode='eval')))
        return name or arguments['type'], arguments
    except (SyntaxError, ValueError, TypeError, KeyError):
        message = f'CONFIG.py or dict(type=...) of plain data is expected, got {text!r}'
        raise argparse.ArgumentTypeError(message) from None


def check(args: argparse.Namespace) -> None:
    """Refuse missing config files."""
    for _, described in args.models:
        if isinstance(described, str):
            cli.check_config(described)


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    described = '[NAME=]CONFIG or [NAME=]dict(type=...)'
    parser.add_argument('models', nargs='+', type=parse_described, metavar='MODEL', help=described)
    parser.add_argument(
        '--shape', nargs='+', default=['224'], metavar='HEIGHTxWIDTH', help='or SIDE; default: 224'
    )
    parser.add_argument(
        '--memory',
        action='store_true',
        help='also run each size and measure its peak memory',
    )
    parser.add_argument(
        '--device', choices=('cpu', 'cuda'), help='for --memory; default: a GPU if there is one'
    )
    parser.add_argument('--out', type=Path, help='CSV')
    cli.add_config_arguments(parser)
    parser.checks.append(check)
    args = parser.parse_args(argv)
    if len(args.shape) == 2 and all(text.isdecimal() for text in args.shape):
        # In the toolboxes' get_flops.py, two numbers are one size.
        height, width = args.shape
        parser.error(
            f'--shape: write {height}x{width} for one size, {height}x{height} {width}x{width}'
            ' for two'
        )
    try:
        sizes = [cli.parse_size(text) for text in args.shape]
    except argparse.ArgumentTypeError as error:
        parser.error(f'--shape: {error}')
    import torch
    from rich.progress import track

    from cpvt_backbones.analysis.complexity import complexity_against_size
    from cpvt_backbones.analysis.tables import write_table

    device = args.device or ('cuda' if torch.cuda.is_available() else 'cpu')
    memory = device if args.memory else None
    rows = []
    for name, described in track(args.models, description='Models'):
        model = cli.config_from(args, described) if isinstance(described, str) else described
        rows += complexity_against_size({name: model}, sizes, memory=memory)
    cli.print_table(
        [
            {
                'model': row.model,
                'image, px': f'{row.height} x {row.width}',
                'parameters, M': f'{row.parameters / 1e6:.2f}',
                'layers, G': f'{row.gmacs - row.attention_gmacs:.2f}',
                'attention, G': f'{row.attention_gmacs:.2f}',
                'peak, MiB': row.peak_mib or '',
            }
            for row in rows
        ]
    )
    print(
        'G: 1e9 multiply-adds (FLOPs in papers and OpenMMLab); attention: queries by keys and'
        ' weights by values'
    )
    if args.out:
        write_table(args.out, [asdict(row) for row in rows])
        print(f'written: {args.out}')

"""List of the public weights that fit a model of this package, for docs/weights.md.

python benchmarks/public_weights.py --docs docs/weights.md
"""

import csv
import inspect
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from mmengine.registry import MODELS

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # for `benchmarks`, where this file runs as a script
sys.path.append(str(Path(__file__).resolve().parents[1] / 'tools'))  # for command_line

import command_line as cli

import cpvt_backbones  # noqa: F401  (registers the models)
from benchmarks import fill_marked
from cpvt_backbones.checkpoints import public_backbone

PVT = 'https://github.com/whai362/PVT/releases/download/v2/pvt_{}.pth'
PUBLISHED = Path(__file__).with_name('public_accuracy.csv')  # as the source prints it, in %


def rows() -> Iterator[tuple[str, ...]]:
    """Name, model, parameters, published accuracy, its source, licence."""
    from timm import list_models
    from timm.models import get_pretrained_cfg

    published = {row['name']: row for row in csv.DictReader(PUBLISHED.open(encoding='utf-8'))}
    names = [
        (f'timm://{name}', name)
        for name in list_models(pretrained=True)
        if public_backbone(f'timm://{name}')
    ]
    names += [(PVT.format(size), f'pvt_{size}') for size in ('tiny', 'small', 'medium', 'large')]
    for address, name in names:
        built: Any = public_backbone(address)
        with torch.device('meta'):
            parameters = sum(p.numel() for p in MODELS.build(dict(built)).parameters())
        licence = get_pretrained_cfg(name).license if address.startswith('timm') else 'apache-2.0'
        accepted = inspect.signature(MODELS.get(built['type'])).parameters
        changed = (
            key
            for key in built
            if key == 'arch' or key != 'type' and accepted[key].default != built[key]
        )
        arguments = ', '.join(f'{key}={built[key]!r}' for key in changed)
        found = published.pop(name, dict(top1='', how='', source=''))
        yield (
            f'`{address}`',
            f'`{built["type"]}({arguments})`',
            f'{parameters / 1e6:.1f}',
            f'{found["top1"]} {found["how"]}'.strip(),
            found['source'],
            licence or 'unknown',
        )
    if published:
        raise ValueError(f'{PUBLISHED}: no model of this timm is named {", ".join(published)}')


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    parser.add_argument(
        '--docs',
        type=Path,
        required=True,
        help='page with the two marks between which the list goes',
    )
    page: Path = parser.parse_args(argv).docs
    if not page.is_file():
        raise FileNotFoundError(f"docs: there is no file '{page}'")
    header = ('checkpoint', 'model', 'parameters (M)', 'top-1 (%)', 'source', 'licence')
    table = '\n'.join(f'| {" | ".join(row)} |' for row in (header, ('---',) * len(header), *rows()))
    fill_marked(page, 'weights', f'\n{table}\n')


if __name__ == '__main__':
    cli.run(main)

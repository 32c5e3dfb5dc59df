"""Lists of published models and of public weights of backbones, for docs/weights.md.

python benchmarks/public_weights.py --docs docs/weights.md
"""

import csv
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from mmengine.registry import MODELS

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # for `benchmarks`, where this file runs as a script

import cpvt_backbones  # noqa: F401  (registers the models)
from benchmarks import fill_marked
from cpvt import command_line as cli
from cpvt_backbones.checkpoints import public_backbone
from cpvt_backbones.errors import InputError
from cpvt_backbones.weights import published_weights

PVT = 'https://github.com/whai362/PVT/releases/download/v2/pvt_{}.pth'
FAMILIES = {  # part of a name; the first that is found decides
    'twins_|/pvt_': 'Twins and PVT',
    'deit': 'DeiT and DeiT III',
    'dinov3': 'DINOv3 and EUPE',
    r'dinov2|\.dino$': 'DINO and DINOv2',
    'clip': 'CLIP',
    'siglip': 'SigLIP',
    'samvit': 'SAM',
    'radio|tipsv2': 'RADIO and TIPSv2',
    'vit_pe_': 'Perception Encoder',
    'eva02': 'EVA-02',
    'rope': 'RoPE-ViT',
    'vit_': 'ViT, MAE and others',
}
PUBLISHED = Path(__file__).with_name('public_accuracy.csv')  # as the source prints it, in %


def rows() -> Iterator[tuple[str, ...]]:
    """Name, parameters, published accuracy, its source, licence, model."""
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
            f'{parameters / 1e6:.1f}',
            f'{found["top1"]} {found["how"]}'.strip(),
            found['source'],
            licence or 'unknown',
            f'`{built["type"]}({arguments})`',
        )
    if published:
        raise InputError(f'{PUBLISHED}: no model of this timm is named {", ".join(published)}')


def family_of(address: str) -> str:
    for part, family in FAMILIES.items():
        if re.search(part, address):
            return family
    raise InputError(f'FAMILIES: no part is in {address!r}')


def listing(found: Iterable[tuple[str, ...]]) -> str:
    """A table for each family, closed, with the number of its rows."""
    header = ('checkpoint', 'parameters (M)', 'top-1 (%)', 'source', 'licence', 'model')
    tables: dict[str, list[tuple[str, ...]]] = {family: [] for family in FAMILIES.values()}
    for row in found:
        tables[family_of(row[0].strip('`'))].append(row)
    return '\n\n'.join(
        folded(f'{family}: {len(found)} names', header, found) for family, found in tables.items()
    )


def whole_models() -> str:
    """A table of published models for each data set, closed, with the number of its rows."""
    header = ('name', 'model', 'published score', 'parameters (M)', 'GMACs', 'source', 'licence')
    tables: dict[str, list[tuple[str, ...]]] = {}
    for name, entry in published_weights().items():
        scores = ', '.join(f'{metric} {value}' for metric, value in entry.scores.items())
        gmacs = ''
        if entry.gmacs is not None and entry.size is not None:
            gmacs = f'{entry.gmacs:,.1f} at {entry.size[0]} x {entry.size[1]}'
        millions = f'{entry.parameters / 1e6:.1f}'
        row = (f'`{name}`', entry.about, scores, millions, gmacs, entry.source, entry.license)
        tables.setdefault(f'{entry.dataset}, {entry.task}', []).append(row)
    return '\n\n'.join(
        folded(f'{title}: {len(r)} models', header, r) for title, r in tables.items()
    )


def folded(summary: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table below its summary, closed."""
    lines = (header, ('---',) * len(header), *rows)
    table = '\n'.join(f'| {" | ".join(line)} |' for line in lines)
    return f'<details markdown>\n<summary>{summary}</summary>\n\n{table}\n\n</details>'


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
    fill_marked(page, 'models', f'\n{whole_models()}\n')
    fill_marked(page, 'weights', f'\n{listing(rows())}\n')


if __name__ == '__main__':
    cli.run(main)

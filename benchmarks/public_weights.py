"""Weights that load by name: the table of docs/weights.md, and docs/weights.csv with all details.

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

# For `benchmarks`, where this file runs as a script.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import cpvt_backbones  # noqa: F401  (registers the models)
from benchmarks import fill_marked
from cpvt import command_line as cli
from cpvt_backbones.checkpoints import find_normalisation, public_backbone
from cpvt_backbones.errors import InputError
from cpvt_backbones.weights import published_weights

ROOT = Path(__file__).resolve().parents[1]
PVT = 'https://github.com/whai362/PVT/releases/download/v2/pvt_{}.pth'
# Family by what the names of public weights have in common. The first that matches.
FAMILIES = {
    'samvit': 'SAM',
    'siglip': 'SigLIP',
    'vit_pe_': 'Perception Encoder',
    'eva02': 'EVA-02',
    'twins[-_]pcpvt': 'Twins-PCPVT',
    'twins[-_]svt': 'Twins-SVT',
    'pvt_': 'PVT',
    'deit.*distilled': 'DeiT, distilled',
    'deit3': 'DeiT-III',
    'deit': 'DeiT',
    'dinov2': 'DINOv2',
    'dinov3': 'DINOv3',
    'rope_mixed': 'RoPE-ViT, mixed',
    'rope': 'RoPE-ViT, axial',
    'clip': 'CLIP',
    'radio|tipsv2': 'RADIO and TIPSv2',
    r'vit[_-](tiny|small|base|large)[_-]p(atch)?\d+_\d+$': 'ViT',
}
TASKS = dict(
    detection='detector',
    panoptic='panoptic segmentor',
    segmentation='segmentor',
    classification='classifier',
)
PUBLISHED = Path(__file__).with_name('public_accuracy.csv')  # as the source prints it, in %
# Differences from other packages, by parity.py for backbones and by published.py for whole models.
PARITY = ROOT / 'docs' / 'weights_parity.csv'
MODELS_PAGE = ROOT / 'configs' / 'published' / 'README.md'
COLUMNS = (
    'name',
    'family',
    'parameters',
    'differs',
    'score',
    'source',
    'licence',
    'gmacs',
    'mean',
    'std',
    'model',
)


def family_of(name: str) -> str:
    """Family of a name of public weights."""
    for pattern, family in FAMILIES.items():
        if re.search(pattern, name):
            return family
    raise InputError(f'name: {name!r} belongs to no family of FAMILIES')


def backbones() -> Iterator[dict[str, str]]:
    """Public weights of backbones, of timm and of PVT's authors."""
    from timm import list_models
    from timm.models import get_pretrained_cfg

    published = {row['name']: row for row in csv.DictReader(PUBLISHED.open(encoding='utf-8'))}
    names = [
        (f'timm://{name}', name)
        for name in list_models(pretrained=True)
        if public_backbone(f'timm://{name}')
    ]
    names += [(PVT.format(size), f'pvt_{size}') for size in ('tiny', 'small', 'medium', 'large')]
    differences = differences_of_backbones()
    for address, name in names:
        built: Any = public_backbone(address)
        with torch.device('meta'):
            parameters = sum(p.numel() for p in MODELS.build(dict(built)).parameters())
        from_timm = address.startswith('timm')
        licence = get_pretrained_cfg(name).license if from_timm else 'apache-2.0'
        family = family_of(name.split('.')[0])
        peer = ('timm', family) if from_timm else ('mmdet', f"{family}, with its authors' names")
        found = published.pop(name, dict(top1='', how='', source=''))
        yield dict(
            name=address,
            family=family,
            parameters=f'{parameters / 1e6:.1f}',
            differs=differences[peer],
            score=f'top-1 {found["top1"]} {found["how"]}'.strip() if found['top1'] else '',
            source=found['source'],
            licence=licence or 'unknown',
            **normalisation_of(address),
            model=call_of(built),
        )
    if published:
        raise InputError(f'{PUBLISHED}: no model of this timm is named {", ".join(published)}')


def normalisation_of(name: str) -> dict[str, str]:
    """Mean and deviation of the images of weights, RGB, in the scale of 8-bit pixels."""
    found = find_normalisation(name)
    if found is None or not found.rgb:
        raise InputError(f'name: mean and deviation of {name!r} are not known')
    mean, std = (' '.join(f'{value:.7g}' for value in one) for one in (found.mean, found.std))
    return dict(mean=mean, std=std)


def call_of(built: dict[str, Any]) -> str:
    """The call that builds a backbone, without arguments that are the default."""
    accepted = inspect.signature(MODELS.get(built['type'])).parameters
    changed = (
        key
        for key in built
        if key == 'arch' or key != 'type' and accepted[key].default != built[key]
    )
    return f'{built["type"]}({", ".join(f"{key}={built[key]!r}" for key in changed)})'


def whole_models() -> Iterator[dict[str, str]]:
    """Detectors, segmentors of both kinds and classifiers that others have published."""
    differences = differences_of_models()
    for name, entry in published_weights().items():
        size = f' at {entry.size[0]} x {entry.size[1]}' if entry.size else ''
        yield dict(
            name=name,
            family=f'{entry.dataset} {TASKS[entry.task]}',
            parameters=f'{entry.parameters / 1e6:.1f}',
            differs=differences.get(Path(entry.config).stem, ''),
            score=', '.join(f'{metric} {value}' for metric, value in entry.scores.items()),
            source=entry.source,
            licence=entry.license,
            gmacs=f'{entry.gmacs:.1f}{size}' if entry.gmacs is not None else '',
            **normalisation_of(name),
            model=entry.about,
        )


def differences_of_backbones() -> dict[tuple[str, str], str]:
    """Largest difference at all sizes, by peer and family."""
    found = {}
    for row in csv.DictReader(PARITY.open(encoding='utf-8')):
        cells = (row['native size'], row['4 x 7'], row['9 x 3 patches'])
        numbers = [cell for cell in cells if not cell.startswith('not ')]
        found[row['peer'], row['models']] = max(numbers, key=float)
    return found


def differences_of_models() -> dict[str, str]:
    """Difference at the test size, by name of the config."""
    text = MODELS_PAGE.read_text(encoding='utf-8')
    text = text.partition('<!-- parity: begin -->')[2].partition('<!-- parity: end -->')[0]
    rows = [line.strip('| ').split(' | ') for line in text.splitlines() if line.startswith('|')]
    return {row[0]: row[1] for row in rows[2:]}


def table(rows: Iterable[dict[str, str]]) -> str:
    """The rows in few words; the licence is left out where it is Apache-2.0."""
    lines = [
        '| name | family or task | parameters, M | published score, other licence |',
        '| --- | --- | ---: | --- |',
    ]
    for row in rows:
        licence = '' if row['licence'] == 'apache-2.0' else row['licence']
        note = ', '.join(filter(None, (row['score'], licence)))
        cells = (f'`{row["name"]}`', row['family'], row['parameters'], note)
        lines.append(f'| {" | ".join(cells)} |')
    return '\n'.join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    parser.add_argument(
        '--docs',
        type=Path,
        required=True,
        help='page with the two marks between which the table goes; a CSV file of its name gets'
        ' the details',
    )
    page: Path = parser.parse_args(argv).docs
    if not page.is_file():
        raise FileNotFoundError(f"docs: there is no file '{page}'")
    rows = [*whole_models(), *sorted(backbones(), key=lambda row: row['family'].lower())]
    with page.with_suffix('.csv').open('w', encoding='utf-8', newline='') as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator='\n')
        writer.writeheader()
        writer.writerows(rows)
    fill_marked(page, 'weights', f'\n{table(rows)}\n')


if __name__ == '__main__':
    cli.run(main)

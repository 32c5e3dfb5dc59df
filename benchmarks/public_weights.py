"""List of the public weights that fit a model of this package, for docs/weights.md.

python benchmarks/public_weights.py --docs docs/weights.md
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from mmengine.registry import MODELS

import cpvt_backbones  # noqa: F401  (registers the models)
from cpvt_backbones.backbones.public import public_backbone
from cpvt_backbones.engine import command_line as cli
from cpvt_backbones.layers.checks import keyword_only

BEGIN, END = '<!-- begin: public_weights.py -->', '<!-- end -->'
PVT = 'https://github.com/whai362/PVT/releases/download/v2/pvt_{}.pth'
# Top-1 on ImageNet-1k as published by the authors: their paper or repository.
PUBLISHED = {
    'deit_tiny_patch16_224.fb_in1k': 72.2,
    'deit_small_patch16_224.fb_in1k': 79.9,
    'deit_base_patch16_224.fb_in1k': 81.8,
    'deit_base_patch16_384.fb_in1k': 83.1,
    'deit_tiny_distilled_patch16_224.fb_in1k': 74.5,
    'deit_small_distilled_patch16_224.fb_in1k': 81.2,
    'deit_base_distilled_patch16_224.fb_in1k': 83.4,
    'deit_base_distilled_patch16_384.fb_in1k': 85.2,
    'deit3_small_patch16_224.fb_in1k': 81.4,
    'deit3_small_patch16_384.fb_in1k': 83.4,
    'deit3_medium_patch16_224.fb_in1k': 83.0,
    'deit3_base_patch16_224.fb_in1k': 83.8,
    'deit3_base_patch16_384.fb_in1k': 85.0,
    'deit3_large_patch16_224.fb_in1k': 84.9,
    'deit3_large_patch16_384.fb_in1k': 85.8,
    'vit_small_patch16_rope_224.naver_in1k': 80.9,
    'vit_small_patch16_rope_mixed_224.naver_in1k': 80.9,
    'vit_base_patch16_rope_224.naver_in1k': 83.6,
    'vit_base_patch16_rope_mixed_224.naver_in1k': 83.8,
    'twins_pcpvt_small.in1k': 81.2,
    'twins_pcpvt_base.in1k': 82.7,
    'twins_pcpvt_large.in1k': 83.1,
    'tiny': 75.1,  # PVT
    'small': 79.8,
    'medium': 81.2,
    'large': 81.7,
}


def rows() -> Iterator[tuple[str, str, str, str, str]]:
    """Name, model, parameters, published accuracy, licence."""
    from timm import list_models
    from timm.models import get_pretrained_cfg

    names = [(f'timm://{name}', name) for name in list_models(pretrained=True) if public_backbone(f'timm://{name}')]
    for address, name in (*names, *((PVT.format(size), size) for size in ('tiny', 'small', 'medium', 'large'))):
        built: Any = public_backbone(address)
        with torch.device('meta'):
            parameters = sum(p.numel() for p in MODELS.build(dict(built)).parameters())
        licence = get_pretrained_cfg(name).license if address.startswith('timm') else 'apache-2.0'
        accepted = keyword_only(MODELS.get(built['type']))
        changed = (key for key in built if key == 'arch' or key != 'type' and accepted[key].default != built[key])
        arguments = ', '.join(f'{key}={built[key]!r}' for key in changed)
        accuracy = f'{PUBLISHED[name]:.1f}' if name in PUBLISHED else ''
        yield (
            f'`{address}`',
            f'`{built["type"]}({arguments})`',
            f'{parameters / 1e6:.1f}',
            accuracy,
            licence or 'unknown',
        )


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    parser.add_argument('--docs', type=Path, required=True, help='page with the two marks between which the list goes')
    page: Path = parser.parse_args(argv).docs
    header = ('checkpoint', 'model', 'parameters (M)', 'top-1 (%), published', 'licence')
    table = '\n'.join(f'| {" | ".join(row)} |' for row in (header, ('---',) * len(header), *rows()))
    before, _, rest = page.read_text(encoding='utf-8').partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f'{before}{BEGIN}\n\n{table}\n\n{END}{after}', encoding='utf-8')


if __name__ == '__main__':
    cli.run(main)

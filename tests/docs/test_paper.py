"""Every computed figure of docs/evidence/paper.md."""

from pathlib import Path

import pytest
import torch

from cpvt_backbones import CPVT, PEG, PyramidCPVT
from cpvt_backbones.analysis.complexity import complexity_against_size

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / 'docs/evidence/paper.md').read_text()
TABLE = [
    [cell.strip() for cell in line.strip('|').split('|')]
    for line in PAGE.splitlines()
    if line.startswith('| ')
]
COMPUTED = {row[1].strip('`'): row[3] for row in TABLE if row[1].startswith('`')}
FIVE = dict(type='PEG', after_blocks='0-5')
ONE = dict(type='PEG', after_blocks=(0,))


def column(arch, position=ONE, with_cls_token=True):
    out_type = 'cls_token' if with_cls_token else 'avg_featmap'
    with torch.device('meta'):
        return CPVT(arch=arch, position=position, with_cls_token=with_cls_token, out_type=out_type)


def pyramid(arch):
    with torch.device('meta'):
        return PyramidCPVT(arch=arch, out_indices=-1, final_norm=True)


def weights(module):
    return sum(parameter.numel() for parameter in module.parameters())


def total(model):
    return weights(model) + (model.out_channels[-1] + 1) * 1000


def gmacs(kind, arch, position=None):
    options = dict(position=position, out_type='cls_token')
    if position is None:
        options = dict(out_indices=-1, final_norm=True)
    (row,) = complexity_against_size({'model': dict(type=kind, arch=arch, **options)}, [(224, 224)])
    return row.gmacs


NAMES = dict(PEG=PEG, column=column, pyramid=pyramid, weights=weights, total=total, gmacs=gmacs)
NAMES |= dict(LEARNED=dict(type='Learned'), FIVE=FIVE)


@pytest.mark.parametrize('expression', COMPUTED)
def test_computed_figures(expression):
    value = eval(expression, NAMES)
    assert COMPUTED[expression] == (f'{value:.2f}' if isinstance(value, float) else f'{value:,}')

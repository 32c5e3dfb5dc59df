"""The tables of docs/paper.md: every computed figure, config and command."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.cases import read_suite
from cpvt_backbones import CPVT, PEG, PyramidCPVT
from cpvt_backbones.analysis.complexity import complexity_against_size
from cpvt_backbones.toolboxes import read_config

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / 'docs/paper.md').read_text()
TABLE = [
    [cell.strip() for cell in line.strip('|').split('|')]
    for line in PAGE.splitlines()
    if line.startswith('| ')
]
COMPUTED = {row[1].strip('`'): row[3] for row in TABLE if row[1].startswith('`')}
BASH = ''.join(re.findall(r'```bash\n(.*?)```', PAGE, re.DOTALL))
COMMANDS = BASH.replace('\\\n', '').splitlines()
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


@pytest.mark.parametrize('command', COMMANDS)
def test_commands_run(command, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, script, *words = shlex.split(command)
    tool = Path(script).stem
    noise = np.random.default_rng(0).integers(0, 255, (60, 60, 3), np.uint8)
    Image.fromarray(noise).save('photo.jpg')
    if tool == 'speed':  # measured for minutes
        cases, ratios = read_suite(words[words.index('--suite') + 1])
        assert cases and ratios
    elif tool in ('train', 'resolution_sweep'):  # they run in tests of their own
        (config,) = re.findall(r'configs/\S+?\.py', command)
        assert read_config(ROOT / config).model.backbone.type == 'CPVT'
    else:
        assert tool == 'get_flops'
        call(tool, *words)

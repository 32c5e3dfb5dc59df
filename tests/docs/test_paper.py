"""The tables of docs/paper.md: every computed figure, config and command."""

import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
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
CONFIGS = re.findall(r'\]\(([^)]+\.py)\)', PAGE)
LISTED = {
    name: (config, text)
    for name, config, text in re.findall(r'^- \[(.+?)\]\((\S+\.py)\): (.+)$', PAGE, re.M)
}
"""Config and text of each entry of the list of what was not run, by name."""
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


def test_every_config_is_there_and_every_ablation_is_listed():
    assert len(set(CONFIGS)) >= 34
    for config in set(CONFIGS):
        assert (ROOT / 'docs' / config).is_file(), config
    ablations = {path.name for path in (ROOT / 'configs/imagenet/ablations').glob('*.py')}
    assert ablations <= {Path(config).name for config, _ in LISTED.values()}


TRAINED = {
    'PEG at -1, k = 3': 'peg-before',
    'PEG at -1, k = 27': 'peg-before-k27',
    'PEG at 0': 'peg-0',
    'PEG at 0-5': 'peg-0-5',
    'twelve 1 x 1, one before each block': 'conv1x1-x12',
    'no zero padding': 'peg-0-unpadded',
    'PEG for Q and K of the next block': 'peg-0-qk',
    'random 3 x 3, frozen': 'peg-0-frozen',
    'learned table, GAP': 'learned-gap',
}
"""Rows of the ablations, and the variants of the study on Imagenette that are the same."""


def section(title):
    """Text of a section of the page."""
    return PAGE.partition(f'## {title}\n')[2].partition('\n## ')[0]


def last_cells(text):
    """Last cell of each row of the tables, by the first."""
    rows = [line.strip('|').split('|') for line in text.splitlines() if line.startswith('| ')]
    return {row[0].strip(): row[-1].strip() for row in rows}


def test_the_ablations_that_were_trained_on_imagenette_are_counted():
    marked = {name for name, (_, text) in LISTED.items() if text.endswith('on Imagenette')}
    assert marked == TRAINED.keys()
    run = set(pd.read_csv(ROOT / 'docs/evidence/positional_encoding.csv')['variant'])
    assert set(TRAINED.values()) <= run
    assert len(TRAINED) == 9 and 'Of the ablations, nine were trained' in ' '.join(PAGE.split())


def test_throughput_is_that_of_the_csv():
    rows = pd.read_csv(ROOT / 'docs/benchmarks/paper.csv')
    told = last_cells(section('Throughput'))
    for row, model, peer, suffix in (
        ('CPVT-Ti‡', 'cpvt_tiny', 'timm_deit_tiny', ''),
        ('CPVT-Ti-GAP‡', 'cpvt_tiny_gap', 'timm_deit_tiny', ''),
        ('CPVT-S‡', 'cpvt_small', 'timm_deit_small', ''),
        ('CPVT-B‡', 'cpvt_base', 'timm_deit_base', ', two rounds'),
    ):
        seconds = rows.pivot(index='round', columns='model', values='seconds')
        seconds = seconds[[peer, model]].dropna()
        speed = seconds[peer] / seconds[model]
        expected = f'{speed.median():.2f} ({speed.min():.2f}-{speed.max():.2f}){suffix}'
        assert told[row] == expected, row


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

"""Code of README, and what it says of its peers."""

import csv
import re
from pathlib import Path

import pytest
import torch
from mmengine.hub import get_config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS
from torch.optim import AdamW

from cpvt_backbones import PyramidCPVT
from cpvt_backbones.toolboxes import read_config

README = Path(__file__).parents[2] / 'README.md'
TEXT = README.read_text(encoding='utf-8')
BLOCKS = re.findall(r'^```python\n(.+?)^```', TEXT, re.DOTALL | re.MULTILINE)


def test_the_config_builds_the_model_with_pretrained_weights(tmp_path):
    pytest.importorskip('mmdet')
    (block,) = BLOCKS
    (tmp_path / 'mine.py').write_text(block)
    cfg = read_config(tmp_path / 'mine.py')
    assert cfg.model.backbone.init_cfg == 'timm://twins_pcpvt_small.in1k'
    model = MODELS.build(dict(cfg.model, _scope_='mmdet'))
    assert isinstance(model.backbone, PyramidCPVT)
    assert list(model.backbone.out_channels) == model.neck.in_channels
    # A ViT learns little by the SGD of many base configs; PEG's weights do not decay.
    options = dict(cfg.optim_wrapper, type='OptimWrapper')  # one of them is of a GPU
    optimizer = build_optim_wrapper(model, options).optimizer
    assert isinstance(optimizer, AdamW)
    decay = {
        id(parameter): group['weight_decay']
        for group in optimizer.param_groups
        for parameter in group['params']
    }
    pegs = [value for name, value in model.backbone.named_parameters() if 'pos_block' in name]
    assert {decay[id(value)] for value in pegs} == {0}
    assert max(decay.values()) > 0


def test_the_price_is_the_measured_one():
    lines = (README.parent / 'docs/benchmarks/detectors.csv').read_text().splitlines()
    measured = {row['backbone']: row for row in csv.DictReader(lines)}
    table = [line.strip('| ').split(' | ') for line in TEXT.splitlines() if ' | ' in line]
    shown = {cells[0]: dict(zip(table[0], cells, strict=True)) for cells in table[2:]}
    assert shown.keys() == measured.keys()
    for name, row in measured.items():
        assert (shown[name]['CPU, ms'], shown[name]['peak, MiB']) == (row['ms'], row['mib'])
    (price,) = re.findall(r'takes ([\d.]+) times as long on a CPU', TEXT)
    ratio = int(measured['PyramidCPVT-S']['ms']) / int(measured['ResNet-50']['ms'])
    assert float(price) == round(ratio, 1)


def test_what_it_says_of_its_peers():
    """The table of docs/bridges.md on timm, mmseg and mmpretrain, as they are installed."""
    timm = pytest.importorskip('timm')
    pytest.importorskip('mmseg')
    pytest.importorskip('mmpretrain')
    from mmpretrain.models.backbones import PCPVT as PretrainPCPVT
    from mmpretrain.models.backbones import VisionTransformer
    from mmseg.models.backbones import PCPVT

    vit = timm.create_model('vit_tiny_patch16_224', features_only=True)
    assert set(vit.feature_info.reduction()) == {16}

    twins = timm.create_model('twins_pcpvt_small', features_only=True, out_indices=(0,))
    cfg = get_config('mmseg::twins/twins_pcpvt-s_fpn_fpnhead_8xb4-80k_ade20k-512x512.py')
    backbone = {key: cfg.model.backbone[key] for key in cfg.model.backbone}
    del backbone['type'], backbone['init_cfg']
    ports = [PCPVT(**backbone), PretrainPCPVT(arch='small', out_indices=(0,), drop_path_rate=0.2)]
    ours = PyramidCPVT(arch='small', out_indices=(0,), drop_path_rate=0.2)
    images = torch.zeros(1, 3, 333, 517)
    sizes = [tuple(model.eval()(images)[0].shape[-2:]) for model in (twins, *ports, ours)]
    assert sizes == [(83, 129), (84, 130), (84, 130), (84, 130)]
    assert 4 * 83 < 333 and 4 * 129 < 517

    plain = VisionTransformer('deit-tiny', out_type='featmap', out_indices=(3, 11))
    assert {tuple(one.shape[-2:]) for one in plain(images)} == {(21, 33)}

    image = torch.randn(1, 3, 64, 96)
    padded = torch.nn.functional.pad(image, (0, 64, 0, 32))
    padded.valid_sizes = [(64, 96)]
    for model, keeps in ((twins, False), (ports[0], False), (ports[1], False), (ours, True)):
        with torch.no_grad():
            alone, beside = model(image)[0], model(padded)[0][..., :16, :24]
        assert torch.allclose(alone, beside, atol=1e-4) == keeps

    for port in ports:  # the rate is that of the block and that of its branches
        block = next(m for m in reversed([*port.modules()]) if hasattr(m, 'drop_path'))
        rates = [m.drop_prob for m in block.modules() if type(m).__name__ == 'DropPath']
        assert len(rates) == 3 and min(rates) > 0
    assert 'paramwise_cfg' not in cfg.optim_wrapper
    assert cfg.optim_wrapper.optimizer.weight_decay > 0
    whole = timm.create_model('twins_pcpvt_small')
    pegs = {name for name, _ in whole.named_parameters() if 'pos_block' in name}
    assert pegs and pegs <= whole.no_weight_decay()

"""Weights that come with the package are found by name, fit their model, and are refused when
damaged.
"""

import hashlib
import importlib
import json
import re
from pathlib import Path

import pytest
import torch
from mmengine.registry import MODELS

from cpvt_backbones import CPVT, MultiScaleCPVT, weights
from cpvt_backbones.analysis.image_size import TestSize
from cpvt_backbones.analysis.resolution import SweepModel, main_metric, sweep
from cpvt_backbones.checkpoints import (
    CheckpointError,
    load_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from cpvt_backbones.toolboxes import find_toolbox, read_config

pytest.importorskip('safetensors')
ROOT = Path(__file__).resolve().parents[1]
BACKBONE = dict(
    type='CPVT',
    arch=dict(embed_dims=32, depth=2, num_heads=2, mlp_ratio=2.0),
    with_cls_token=False,
    out_type='avg_featmap',
    position=dict(type='PEG', after_blocks=[0, 1]),
)


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """A trained classifier's backbone, shipped as 'small-toys'."""
    monkeypatch.setattr(weights, 'FOLDER', tmp_path)
    monkeypatch.setattr(weights, 'INDEX', tmp_path / 'index.json')
    model = MODELS.build(BACKBONE).eval()
    for parameter in model.parameters():  # away from what a new model has
        torch.nn.init.normal_(parameter, std=0.1)
    state = {f'backbone.{name}': value.half() for name, value in model.state_dict().items()}
    state['head.fc.weight'] = torch.zeros(3, 32).half()
    file = tmp_path / 'small-toys.safetensors'
    write_checkpoint(state, file, meta={})
    entry = dict(
        about='toys',
        backbone=BACKBONE,
        config='configs/toys.py',
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
    )
    (tmp_path / 'index.json').write_text(json.dumps({'small-toys': entry}))
    return model


def test_from_pretrained_is_the_trained_model(trained):
    images = torch.randn(1, 3, 40, 56)
    model = CPVT.from_pretrained('small-toys').eval()
    torch.testing.assert_close(model(images)[0], trained(images)[0], atol=2e-2, rtol=2e-2)
    for name, value in trained.state_dict().items():
        assert torch.equal(model.state_dict()[name], value.half().float())


@pytest.mark.parametrize('cls', [CPVT, MultiScaleCPVT])
def test_init_cfg_takes_the_name(trained, cls):
    options = {key: BACKBONE[key] for key in ('arch', 'position')}
    options |= dict(with_cls_token=False) if cls is CPVT else {}
    model = cls(**options, init_cfg=dict(type='Pretrained', checkpoint='small-toys'))
    model.init_weights()
    expected = trained.state_dict()['blocks.1.mlp.fc1.weight'].half().float()
    assert torch.equal(model.state_dict()['blocks.1.mlp.fc1.weight'], expected)


def test_an_unknown_name_is_told_which_there_are(trained):
    with pytest.raises(ValueError, match=r"\['small-toys'\], or .*got 'large-toys'"):
        CPVT.from_pretrained('large-toys')
    with pytest.raises(FileNotFoundError, match=r"'large-toys'.*'small-toys'"):
        read_checkpoint('large-toys')


def test_a_damaged_file_is_refused(trained):
    file = weights.FOLDER / 'small-toys.safetensors'
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match='damaged'):
        CPVT.from_pretrained('small-toys')
    file.unlink()
    with pytest.raises(FileNotFoundError, match='missing'):
        CPVT.from_pretrained('small-toys')


def test_another_architecture_is_refused(trained):
    deeper = CPVT(arch={**BACKBONE['arch'], 'depth': 3})
    with pytest.raises(CheckpointError):
        load_checkpoint(deeper, 'small-toys')


TOPICS = (
    'For, Not for, Classes, Use, Accuracy, Sizes, Development scores, Data, Terms, Recipe, File'
)


def test_one_model_a_task_ships_in_35_MB():
    entries = weights.shipped_weights().values()
    scopes = [read_config(entry.config_file).default_scope for entry in entries]
    assert sorted(scopes) == ['mmdet', 'mmpretrain', 'mmseg']
    assert sum(entry.file.stat().st_size for entry in entries) <= 35_000_000
    names = {path.stem for path in weights.FOLDER.glob('*.safetensors')}
    assert names == set(weights.shipped_weights())


@pytest.mark.parametrize('name', weights.shipped_weights())
def test_card_and_pages_agree_with_the_index(name):
    entry = weights.find_shipped(name)
    card = entry.file.with_suffix('.md').read_text()
    topics = re.findall(r'^\*\*([\w ]+)', card, re.M)
    assert ', '.join(topics) == TOPICS
    assert f'**Classes.** {", ".join(entry.dataset_meta["classes"])}.' in ' '.join(card.split())
    assert entry.sha256 in card
    (picture,) = re.findall(r'<img src="../../docs/(figures/card_.+>)', card)
    assert f'<img src="{picture}' in (ROOT / 'docs/models.md').read_text()
    low, high, side = (entry.sizes[key] for key in ('low', 'high', 'side'))
    row = f'| `{name}` | {low:g} to {high:g} | {low * side:.0f} to {high * side:.0f} |'
    assert row in (ROOT / 'docs/inference.md').read_text()


@pytest.mark.parametrize('name', weights.shipped_weights())
def test_the_toolboxes_take_the_name_and_know_the_classes(name):
    """Without ``dataset_meta`` mmdet names 80 classes of COCO, mmseg 19 of Cityscapes, mmpretrain
    1000 of ImageNet.
    """
    entry = weights.find_shipped(name)
    load_checkpoint(MODELS.build(entry.backbone), name)
    for value in read_checkpoint(name).values():
        assert value.dtype == torch.float16 or not value.is_floating_point()
    cfg = read_config(entry.config_file)
    find_toolbox(cfg)
    api = importlib.import_module(f'{cfg.default_scope}.apis')
    build = dict(mmdet='init_detector', mmseg='init_model', mmpretrain='get_model')
    model = getattr(api, build[cfg.default_scope])(cfg, name, device='cpu')
    seen = getattr(model, 'dataset_meta', None) or model._dataset_meta
    heads = (getattr(model, head, None) for head in ('bbox_head', 'decode_head', 'head'))
    assert len(seen['classes']) == next(head for head in heads if head is not None).num_classes
    assert list(seen['classes']) == entry.dataset_meta['classes']


@pytest.mark.slow
@pytest.mark.parametrize('name', weights.shipped_weights())
def test_the_card_is_true(name, tmp_path, monkeypatch):
    """The accuracy at the first size of the card, measured again."""
    entry = weights.find_shipped(name)
    cfg = read_config(entry.config_file)
    if not (ROOT / cfg.test_dataloader.dataset.data_root).is_dir():
        pytest.skip(f'needs {cfg.test_dataloader.dataset.data_root}')
    monkeypatch.chdir(ROOT)
    table = entry.file.with_suffix('.md').read_text().partition('| ---')[2]
    size, _, told = (cell.strip() for cell in table.splitlines()[1].strip('|').split('|'))
    (row,) = sweep(
        [SweepModel(name, cfg, name)], [TestSize.parse(size)], table=tmp_path / 'row.csv'
    )
    metric = main_metric([row])
    share = 100 if metric == 'coco/bbox_mAP' else 1  # the card is in percent
    assert f'{share * row.metrics[metric]:.4g}' == told

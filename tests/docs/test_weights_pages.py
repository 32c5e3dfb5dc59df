"""Statements of docs/weights.md and docs/weights_reference.md, with small random weights."""

import re

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS
from pages import ROOT, blocks

from cpvt_backbones import CPVT
from cpvt_backbones.checkpoints import CheckpointError, public_backbone
from cpvt_backbones.checkpoints.conversion.transformers_config import MODEL_TYPES

GUIDE, DETAILS = 'docs/weights.md', 'docs/weights_reference.md'
ARCH = dict(embed_dims=192, depth=1, num_heads=3, mlp_ratio=4.0)
TABLE = dict(type='Learned')


def block_with(page, part):
    (block,) = (text for _, text in blocks(page) if part in text)
    return block


def section(page, heading):
    text = (ROOT / page).read_text()
    return text.partition(f'\n{heading}\n')[2].partition('\n## ')[0]


def rows(text):
    """Cells of each row of the tables of a text, without their headings."""
    lines = [line.strip('|').split('|') for line in text.splitlines() if line.startswith('| ')]
    return [[cell.strip() for cell in cells] for cells in lines if '---' not in cells[0]][1:]


def test_names_to_choose_are_in_the_list_and_fit_their_class():
    text = (ROOT / GUIDE).read_text()
    listed = text.partition('<!-- weights: begin -->')[2]
    choices = rows(section(GUIDE, '## Which name to write'))
    assert len(choices) == 6
    for _, name, classes, licence in choices:
        (row,) = re.findall(rf'^\| {re.escape(name)} \|.+$', listed, re.MULTILINE)
        assert f'`{public_backbone(name.strip("`"))["type"]}`' in classes
        assert licence.lower() in row or licence in ("DINOv3's own", 'see [the licences](#list)')


def test_own_checkpoints_load_as_on_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ('runs', 'clip'):
        (tmp_path / folder).mkdir()
    torch.save(CPVT(arch=ARCH, position=TABLE).state_dict(), 'runs/epoch_12.pth')
    clip = CPVT(arch=ARCH, position=TABLE, pre_norm=True, activation='quick_gelu')
    torch.save(clip.state_dict(), 'clip/visual.pt')
    values = {}
    exec(block_with(GUIDE, "'runs/epoch_12.pth'"), values)
    assert values['model'].activation == 'quick_gelu'
    with pytest.raises(ValueError, match='pass activation'):
        CPVT.from_pretrained('clip/visual.pt')


@pytest.mark.parametrize(
    ('arguments', 'asked'),
    [
        (dict(arch={**ARCH, 'embed_dims': 180}, position=TABLE), 'arch'),
        (dict(arch=ARCH, position=TABLE, pre_norm=True), 'activation'),
        (
            dict(arch={**ARCH, 'depth': 2}, position=dict(type='PEG', after_blocks='0-2')),
            'position',
        ),
        (dict(arch=ARCH, position=None), 'position'),
    ],
)
def test_an_error_asks_for_what_a_file_does_not_store(tmp_path, arguments, asked):
    table = rows(section(DETAILS, '### What a file does not store').partition('\n### ')[0])
    assert f'pass `{asked}`' in ' '.join(error for *_, error in table)
    torch.save(CPVT(**arguments).state_dict(), tmp_path / 'file.pth')
    with pytest.raises(ValueError, match=f'pass {asked}: '):
        CPVT.from_pretrained(tmp_path / 'file.pth')


def test_a_file_of_two_models_needs_the_prefix_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    teacher, student = (CPVT(arch=ARCH, position=TABLE).state_dict() for _ in range(2))
    torch.save(dict(teacher=teacher, student=student), 'dino.pth')
    (tmp_path / 'config.py').write_text(block_with(DETAILS, "prefix='teacher'"))
    init_cfg = Config.fromfile('config.py').init_cfg
    model = MODELS.build(dict(type='CPVT', arch=ARCH, position=TABLE, init_cfg=init_cfg))
    model.init_weights()
    key = 'blocks.0.attn.qkv.weight'
    assert torch.equal(model.state_dict()[key], teacher[key])
    with pytest.raises(CheckpointError, match='choose one by prefix='):
        CPVT.from_pretrained('dino.pth')
    loaded = CPVT.from_pretrained('dino.pth', prefix='teacher')
    assert torch.equal(loaded.state_dict()[key], teacher[key])


def test_every_model_of_transformers_is_in_the_table():
    shown = [
        name
        for _, types, _ in rows(section(DETAILS, '## Hugging Face models'))
        for name in types.split(', ')
    ]
    assert sorted(name.strip('`') for name in shown) == sorted(MODEL_TYPES)

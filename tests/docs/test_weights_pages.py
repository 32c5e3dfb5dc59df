"""Statements of docs/weights.md, with small random weights."""

import ast
import csv
import re

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS
from pages import ROOT, blocks

from cpvt_backbones import CPVT, MultiScaleCPVT
from cpvt_backbones.checkpoints import CheckpointError, public_backbone, write_checkpoint
from cpvt_backbones.checkpoints.conversion.transformers_config import MODEL_TYPES
from cpvt_backbones.weights import published_weights

PAGE = 'docs/weights.md'
ARCH = dict(embed_dims=192, depth=1, num_heads=3, mlp_ratio=4.0)
TABLE = dict(type='Learned')


def block_with(page, part):
    (block,) = (text for _, text in blocks(page) if part in text)
    return block


def section(page, heading):
    text = (ROOT / page).read_text()
    return text.partition(f'\n{heading}\n')[2].partition('\n##')[0]


def rows(text):
    """Cells of each row of the tables of a text, without their headings."""
    lines = [line.strip('|').split('|') for line in text.splitlines() if line.startswith('| ')]
    return [[cell.strip() for cell in cells] for cells in lines if '---' not in cells[0]][1:]


def test_names_to_choose_are_in_the_list_and_fit_their_class():
    listed = {row['name']: row for row in csv.DictReader((ROOT / 'docs/weights.csv').open())}
    choices = rows(section(PAGE, '## Which name to write'))
    assert len(choices) == 6
    for _, name, classes, licence in choices:
        row = listed[name.strip('`')]
        assert f'`{public_backbone(row["name"])["type"]}`' in classes
        by_timm = licence.lower().rpartition('timm says ')[2]
        assert by_timm == row['licence'] or licence == "DINOv3's own"


def test_the_table_has_the_rows_of_the_file():
    shown = rows((ROOT / PAGE).read_text().partition('<!-- weights: begin -->')[2])
    listed = [*csv.DictReader((ROOT / 'docs/weights.csv').open())]
    assert [row[0].strip('`') for row in shown] == [row['name'] for row in listed]
    assert set(published_weights()) <= {row['name'] for row in listed}
    measured = [float(row['differs']) for row in listed if row['differs']]
    assert all(0 <= one < 1e-5 for one in measured) and len(measured) >= len(listed) - 5


def test_own_checkpoints_load_as_on_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ('runs', 'clip'):
        (tmp_path / folder).mkdir()
    torch.save(CPVT(arch=ARCH, position=TABLE).state_dict(), 'runs/epoch_12.pth')
    clip = CPVT(arch=ARCH, position=TABLE, pre_norm=True, activation='quick_gelu')
    torch.save(clip.state_dict(), 'clip/visual.pt')
    values = {}
    exec(block_with(PAGE, "'runs/epoch_12.pth'"), values)
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
    table = rows(section(PAGE, '### What a file does not store'))
    assert f'pass `{asked}`' in ' '.join(error for *_, error in table)
    torch.save(CPVT(**arguments).state_dict(), tmp_path / 'file.pth')
    with pytest.raises(ValueError, match=f'pass {asked}: '):
        CPVT.from_pretrained(tmp_path / 'file.pth')


def test_a_file_of_two_models_needs_the_prefix_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    teacher, student = (CPVT(arch=ARCH, position=TABLE).state_dict() for _ in range(2))
    torch.save(dict(teacher=teacher, student=student), 'dino.pth')
    (tmp_path / 'config.py').write_text(block_with(PAGE, "prefix='teacher'"))
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
        for _, types, _ in rows(section(PAGE, '### Hugging Face models'))
        for name in types.split(', ')
    ]
    assert sorted(name.strip('`') for name in shown) == sorted(MODEL_TYPES)


def test_arguments_of_public_weights():
    """The printed ones are those of the code, and the config of DINOv3 has them."""
    (printed,) = (text for _, text in blocks(PAGE) if text.startswith("{'type'"))
    (config,) = (text for _, text in blocks('docs/evidence.md') if text.startswith('model ='))
    backbone = eval(config.partition('=')[2])['backbone']
    arguments = public_backbone(backbone.pop('init_cfg'))
    assert ast.literal_eval(printed) == arguments
    assert backbone.pop('type') == MultiScaleCPVT.__name__
    defaults = dict(patch_size=16, img_size=224)
    assert backbone == {
        name: value
        for name, value in arguments.items()
        if name != 'type' and value != defaults.get(name)
    }
    MultiScaleCPVT(**backbone)


@pytest.mark.full
def test_the_calls_build_the_models_of_the_names(tmp_path):
    """With random weights in place of those that a name would fetch, under its name, which says the
    model.
    """
    timm = pytest.importorskip('timm')
    code = block_with(PAGE, 'window_size=14')
    for name in sorted(set(re.findall(r'timm://(\S+?)\'', code))):
        weights = timm.create_model(name.partition('.')[0]).state_dict()
        write_checkpoint(weights, tmp_path / f'{name}.safetensors', meta={})
        code = code.replace(f'timm://{name}', f'{tmp_path}/{name}.safetensors')
    calls = code.split('\nmodel = ')
    assert len(calls) == 4
    models = []
    for call in calls[1:]:
        values = {}
        exec(f'{calls[0]}\nmodel = {call}', values)
        models.append(values['model'])
    assert [type(model).__name__ for model in models] == ['CPVT', 'CPVT', 'MultiScaleCPVT']
    rotary, table, pyramid = models
    assert rotary.num_registers == 4 and len(table.position_encodings) == 2
    assert pyramid.out_strides == (4, 8, 16, 32)

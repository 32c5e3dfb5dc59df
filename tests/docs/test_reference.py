"""The reference of backbones and layers: its picture, tables and configs are those of the code."""

import inspect
import re

import pytest
import torch
from mmengine.registry import MODELS

from cpvt_backbones import CPVT, MultiScaleCPVT, PyramidCPVT, backbones, list_archs
from cpvt_backbones.backbones import build_with_peg
from cpvt_backbones.toolboxes import read_config

pytestmark = pytest.mark.full

CLASSES = {cls.__name__: cls for cls in (PyramidCPVT, MultiScaleCPVT, CPVT)}
CONFIGS = {**CLASSES, 'WithPEG': build_with_peg}


def build(name, **arguments):
    with torch.device('meta'):
        return CLASSES[name](**arguments)


def tables(documented):
    """Cells of the tables of a docstring, without code marks; the first row has the headings."""
    blocks = re.findall(r'(?:^\|.+\n?)+', inspect.getdoc(documented), re.MULTILINE)
    found = []
    for block in blocks:
        rows = [line.replace('``', '').strip('| ').split(' | ') for line in block.splitlines()]
        found.append([rows[0], *rows[2:]])
    return found


def table(documented, heading):
    """Rows of the table of a docstring with this heading in the first column."""
    (found,) = [rows for rows in tables(documented) if rows[0][0] == heading]
    return found[1:]


def numbers(value):
    return ', '.join(map(str, value if isinstance(value, (tuple, list)) else [value]))


def millions(model):
    return f'{sum(one.numel() for one in model.parameters()) / 1e6:.1f}'


def test_the_table_of_architectures_is_that_of_the_models():
    archs, outputs, _ = tables(backbones)
    expected = []
    for name in CLASSES:
        for arch in list_archs()[name]:
            model = build(name, arch=arch)
            expected.append([name, arch, millions(model), numbers(model.out_channels)])
    assert archs[1:] == expected
    expected = []
    for name, cls in CLASSES.items():
        default = inspect.signature(cls).parameters['out_indices'].default
        expected.append([name, numbers(default), numbers(build(name).out_strides)])
    assert [row[:3] for row in outputs[1:]] == expected


@pytest.mark.parametrize('name', CLASSES)
def test_the_table_of_sizes_is_that_of_the_models(name):
    """One row for each registered ``arch``."""
    expected = []
    for arch in list_archs()[name]:
        model = build(name, arch=arch)
        if name == 'PyramidCPVT':
            shape = [numbers(model.depths)]
        else:
            assert model.blocks[0].mlp.fc1.out_features == 4 * model.embed_dims
            heads = model.blocks[0].attn.num_heads
            shape = [numbers(one) for one in (model.embed_dims, model.depth, heads)]
        expected.append([arch, *shape, millions(model)])
    assert table(CLASSES[name], 'arch') == expected


def test_the_table_of_out_indices_is_that_of_the_model():
    rows = table(MultiScaleCPVT, 'out_indices')
    assert len(rows) == 4
    for indices, stride, _ in rows:
        for index in indices.split(' or '):
            assert build('MultiScaleCPVT', out_indices=int(index)).out_strides == (int(stride),)
    divisors = [int((row[2] + ' / 1').split(' / ')[1]) for row in rows]
    channels = build('MultiScaleCPVT', arch='tiny').out_channels
    assert channels == tuple(192 // one for one in divisors)


@pytest.mark.parametrize('arch', list_archs()['PyramidCPVT'])
def test_the_table_of_stages_is_that_of_the_pyramid(arch):
    (found,) = [rows for rows in tables(PyramidCPVT) if rows[0][0] == 'out_indices']
    rows = {row[0]: [*map(int, row[1:])] for row in found}
    is_svt = arch.startswith('svt')
    widths = rows.get(f'embed_dims of {arch}') or rows['embed_dims of tiny to large']
    for stage in range(4):
        heads = widths[stage] // 32 if is_svt else rows['their num_heads'][stage]
        ratio = 4 if is_svt or arch == 'pvtv2_b5' else rows['their mlp_ratios'][stage]
        for index in (stage, stage - 4):
            model = build('PyramidCPVT', arch=arch, out_indices=index)
            block = model.blocks[stage][1]  # of Twins-SVT, the first is of windows
            assert model.out_strides == (rows['stride, px'][stage],)
            assert model.out_channels == (widths[stage],)
            assert block.attn.num_heads == heads
            assert block.mlp.fc1.out_features == ratio * widths[stage]
            assert block.attn.sr_ratio == rows['sr_ratios'][stage]


@pytest.mark.parametrize('name', CLASSES)
def test_the_table_of_frozen_stages_is_that_of_the_model(name):
    """Every row is accepted and freezes more than the row before; the last freezes the trunk."""
    first = [row[0] for row in table(CLASSES[name], 'frozen_stages')]
    levels = [int(re.search(r'-?\d+', cell)[0]) for cell in first]
    position = [dict(type='Learned'), dict(type='PEG')]
    models = [build(name, arch='tiny', position=position, frozen_stages=one) for one in levels]
    trained = [[key for key, one in m.named_parameters() if one.requires_grad] for m in models]
    assert levels[0] == -1 and len(trained[0]) == len([*models[0].parameters()])
    counts = [len(keys) for keys in trained]
    assert counts == sorted(set(counts), reverse=True)
    assert {key.partition('.')[0] for key in trained[-1]} <= {'pyramid'}
    with pytest.raises(ValueError, match='frozen_stages'):
        build(name, arch='tiny', frozen_stages=levels[-1] + 1)


@pytest.mark.parametrize('name', CONFIGS)
def test_a_config_in_a_docstring_builds(name, tmp_path):
    scope = 'mmpretrain' if name == 'CPVT' else 'mmdet'
    pytest.importorskip(scope)
    (block,) = re.findall(r'^ *```python\n(.+?)^ *```', inspect.getdoc(CONFIGS[name]), re.S | re.M)
    block = inspect.cleandoc('\n' + block)
    (tmp_path / 'mine.py').write_text(block)
    cfg = read_config(tmp_path / 'mine.py')
    assert cfg.model.backbone.type == name
    model = MODELS.build(dict(cfg.model, _scope_=scope))
    parameters = [parameter for parameter, _ in model.backbone.named_parameters()]
    assert any('pos_block' in one for one in parameters) == ('PEG' in block)
    for key in re.findall(r'\b(pos_\w+)=dict', block):  # of the optimizer
        assert any(key in parameter for parameter in parameters), key
    model.eval()
    if scope == 'mmpretrain':
        assert model(torch.rand(1, 3, 64, 96), mode='tensor').shape == (1, model.head.num_classes)
        return
    maps = model.backbone(torch.rand(1, 3, 64, 96))
    assert [one.shape[1] for one in maps] == model.neck.in_channels
    assert len(model.neck(maps)) == len(model.bbox_head.prior_generator.strides)

"""The reference of backbones and layers: its picture, tables and configs are those of the code."""

import ast
import inspect
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from mmengine.registry import MODELS

from cpvt_backbones import CPVT, MultiScaleCPVT, PyramidCPVT, backbones, layers, list_archs
from cpvt_backbones.backbones import build_with_peg
from cpvt_backbones.toolboxes import read_config

pytestmark = pytest.mark.full

griffe = pytest.importorskip('griffe')  # of the extra `docs`

ROOT = Path(__file__).resolve().parents[2]
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


@pytest.mark.parametrize('picture', ['backbones.svg', 'backbones_narrow.svg'])
def test_the_picture_has_the_pegs_of_the_models(picture):
    """`make pictures` draws it again."""
    texts = (ROOT / 'docs/figures' / picture).read_text(encoding='utf-8')
    models = [build(name, arch='small') for name in CLASSES]
    pegs = [len(model.position_encodings[0].layer_ids) for model in models]
    assert texts.count('<!-- PEG -->') == sum(pegs)


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
    columns = [[*map(int, column)] for column in zip(*(row[1:] for row in found), strict=True)]
    assert len(columns) == 4
    for stage, *column in columns:
        for index in (stage, stage - 4):
            model = build('PyramidCPVT', arch=arch, out_indices=index)
            block = model.blocks[stage][0]
            (stride,), (width,) = model.out_strides, model.out_channels
            ratio = block.mlp.fc1.out_features // width
            assert column == [stride, width, block.attn.num_heads, ratio, block.attn.sr_ratio]


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


@pytest.mark.parametrize('name', CLASSES)
def test_position_names_every_type(name):
    (text,) = re.findall(r'^    position: .+(?:\n {5,}.+)*', inspect.getdoc(CLASSES[name]), re.M)
    types = set(re.findall(r"``'(\w+)'``", text))
    assert types == layers.POSITIONS.keys()


@pytest.mark.parametrize('name', CONFIGS)
def test_a_config_in_a_docstring_builds(name, tmp_path):
    scope = 'mmpretrain' if name == 'CPVT' else 'mmdet'
    pytest.importorskip(scope)
    (block,) = re.findall(r'^ *```python\n(.+?)^ *```', inspect.getdoc(CONFIGS[name]), re.S | re.M)
    block = inspect.cleandoc('\n' + block)
    assert max(map(len, block.splitlines())) <= 75
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


@pytest.fixture(scope='module')
def site():
    """The module that writes the pages of the reference."""
    sys.path.insert(0, str(ROOT / 'docs/site'))
    try:
        return import_module('reference')
    finally:
        sys.path.remove(str(ROOT / 'docs/site'))


def test_every_name_is_imported_from_where_the_reference_says(site):
    for names in site.entries().values():
        for path, entry in names.items():
            try:
                module = import_module(site.import_path(entry))
            except ImportError:  # of a toolbox that is not installed
                continue
            found = getattr(module, entry.name)
            assert f'{found.__module__}.{found.__qualname__}' == path
            text = entry.docstring.value if entry.docstring else ''
            lines = re.findall(rf'from (cpvt_backbones[\w.]*) import .*\b{entry.name}\b', text)
            assert {*lines} <= {site.import_path(entry)}, 'its example imports it from elsewhere'
    (peg,) = (one for one in site.entries()['layers'].values() if one.name == 'PEG')
    assert site.import_path(peg) == 'cpvt_backbones'


def parameter_rows(one):
    """Names of the arguments that a docstring describes; a row may have several."""
    for section in one.docstring.parse('google', warnings=False) if one.docstring else ():
        if section.kind.value == 'parameters':
            for row in section.value:
                yield from row.name.replace('*', '').split(', ')


def test_arguments_are_described_in_the_order_of_the_signature(site):
    """Those of another class, which the site adds, stand among a class's own."""
    extension = import_module('arguments').SharedArguments()  # which `site` has imported
    extensions = griffe.load_extensions(extension)
    package = griffe.load('cpvt_backbones', search_paths=[str(ROOT)], extensions=extensions)
    described = {}
    for names in site.entries().values():
        for path in names:
            one = package[path.removeprefix('cpvt_backbones.')]
            functions = [*one.functions.values()] if one.is_class else []
            for owner in (one, *functions):
                if rows := [*parameter_rows(owner)]:
                    order = [parameter.name for parameter in owner.parameters]
                    assert rows == [name for name in order if name in rows], owner.path
                    described[owner.path] = rows
    assert len(described) > 120
    for path in ('cpvt.CPVT', 'multi_scale.MultiScaleCPVT', 'pyramid_cpvt.PyramidCPVT'):
        rows = described[f'cpvt_backbones.backbones.{path}']
        assert rows[-3:] == ['frozen_stages', 'with_cp', 'init_cfg']  # of Backbone


def test_every_attribute_has_its_type(site):
    for names in site.entries().values():
        for path, entry in names.items():
            if not entry.is_class or not entry.docstring:
                continue
            for section in entry.docstring.parse('google', warnings=False):
                attributes = section.value if section.kind.value == 'attributes' else ()
                for one in attributes:
                    assert str(one.annotation) not in ('None', 'Any'), f'{path}.{one.name}'
    (predictor,) = (one for one in site.entries()['inference'].values() if one.name == 'Predictor')
    kinds = {
        one.name: str(one.annotation)
        for section in predictor.docstring.parse('google')
        if section.kind.value == 'attributes'
        for one in section.value
    }
    assert kinds['sizes'] == 'GoodSizes | None' and kinds['value_range'] == 'ValueRange | None'


def test_names_that_guides_use_stand_in_the_index(site):
    for room, name in (
        ('inference', 'find_images'),
        ('inference', 'read_image'),
        ('checkpoints', 'read_checkpoint'),
        ('checkpoints', 'locate_checkpoint'),
        ('engine', 'predict_by_size'),
        ('layers', 'Stage'),
    ):
        assert name in ' '.join(page.names for page in site.PAGES[room].values()).split()


def test_each_name_has_one_page_of_its_folder(site):
    """A page lists names that exist, and a name is on one page; the navigation has all pages."""
    navigation = (ROOT / 'docs/mkdocs.yml').read_text(encoding='utf-8')
    listed = re.findall(r'^ +- api/(\w+)\.md$', navigation, re.MULTILINE)
    files = [file for pages in site.PAGES.values() for file in pages]
    assert sorted(listed) == sorted([*files, 'names', 'command_line'])
    texts = site.reference()
    assert texts.keys() == {*files, 'names', 'command_line'}
    for room, pages in site.PAGES.items():
        names = {one.name: path for path, one in site.entries()[room].items()}
        described = [
            name for page in pages.values() for name in f'{page.names} {page.helpers}'.split()
        ]
        assert len({*described}) == len(described)
        assert {*described} <= names.keys()
        for name, path in names.items():
            having = [file for file in pages if f'::: {path}\n' in texts[file]]
            assert having == [site.page_of(room, name)]


def test_names_stand_before_types_steps_and_modules(site):
    """On the first page of a folder. A page without names has no helpers of names."""
    texts, last = site.reference(), []
    for room, pages in site.PAGES.items():
        before, first, after = texts[room].partition('\n::: ')
        assert first and len(before.splitlines()) < 60
        assert not re.search(r'^\d+\. |type in a signature|[Tt]he modules', before, re.MULTILINE)
        last += re.findall(r'^## ((?:Types|Steps|Modules).*)$', after, re.MULTILINE)
        for file, page in pages.items():
            assert page.names or 'Further names' not in texts[file]
    found = ['Types', 'Types', 'Steps and modules', 'Types and modules', 'Modules']
    assert last == found


def test_every_type_alias_of_the_layers_is_defined_and_offered():
    aliases = set()
    for module in (ROOT / 'cpvt_backbones/layers').glob('*.py'):
        for node in ast.parse(module.read_text(encoding='utf-8')).body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
                aliases.add(node.targets[0].id)
    rows = table(layers, 'type in a signature')
    assert sorted(row[0] for row in rows) == sorted(aliases)
    assert all(hasattr(layers, name) for name in aliases)

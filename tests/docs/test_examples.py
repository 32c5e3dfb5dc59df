"""Examples of docstrings fit the page; those of classes that configs name are built.

Console examples run by pytest's --doctest-modules, see conftest.py.
"""

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from mmengine.registry import DefaultScope
from PIL import Image

from cpvt_backbones.toolboxes import dicts_of
from cpvt_backbones.weights import find_shipped

ROOT = Path(__file__).resolve().parents[2]
# What a config names: module, toolbox and name of the registry, and whether it is built here.
CONFIGS = {
    'WarmupEMAHook': ('engine.averaging', 'mmengine', 'HOOKS', True),
    'DurableCheckpointHook': ('engine.checkpoint_hook', 'mmengine', 'HOOKS', True),
    'ForwardMeter': ('analysis.resolution', 'mmengine', 'HOOKS', True),
    'LoadRange': ('engine.loading', 'mmengine', 'TRANSFORMS', True),
    'LoadClassMap': ('engine.loading', 'mmengine', 'TRANSFORMS', True),
    'ValidSizesDetDataPreprocessor': ('engine.preprocessors', 'mmengine', 'MODELS', True),
    'ValidSizesSegDataPreProcessor': ('engine.preprocessors', 'mmengine', 'MODELS', True),
    'ValidSizesClsDataPreprocessor': ('engine.preprocessors', 'mmengine', 'MODELS', True),
    'LayerDecayOptimWrapperConstructor': (
        'engine.layer_decay',
        'mmengine',
        'OPTIM_WRAPPER_CONSTRUCTORS',
        False,
    ),
    'CPUAmpOptimWrapper': ('engine.launch', 'mmengine', 'OPTIM_WRAPPERS', False),
    'ResumableFSDPStrategy': ('engine.fsdp', 'mmengine', 'STRATEGIES', False),
    'DistillationHead': ('engine.distillation', 'mmengine', 'MODELS', True),
    'HardDistillation': ('engine.distillation', 'mmengine', 'MODELS', True),
    'DecodedDataset': ('engine.cached_dataset', 'mmpretrain', 'DATASETS', False),
    'BatchRandomResizedCrop': ('engine.cached_dataset', 'mmpretrain', 'BATCH_AUGMENTS', True),
    'DETRWithPEG': ('engine.detr', 'mmengine', 'MODELS', False),
}


def fenced(documented):
    """The code block of a docstring."""
    (code,) = re.findall(r'```python\n(.+?) *```', inspect.getdoc(documented), re.DOTALL)
    code = dedent(code)
    assert max(map(len, code.splitlines())) <= 75
    return code


def docstrings():
    """Those of the package that have examples, by place."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for file in sorted((ROOT / 'cpvt_backbones').rglob('*.py')):
        text = file.read_text(encoding='utf-8')
        for node in ast.walk(ast.parse(text)) if '>>> ' in text else ():
            found = ast.get_docstring(node) if isinstance(node, kinds) else None
            if found and '>>> ' in found:
                yield f'{file.name}, {getattr(node, "name", "module")}', found


def test_examples_fit_the_page():
    found = dict(docstrings())
    assert len(found) > 70
    for place, text in found.items():
        code = [line.strip() for line in text.splitlines()]
        code = [line for line in code if line.startswith(('>>> ', '... '))]
        assert max(map(len, code)) <= 75, place


@pytest.mark.parametrize('name', CONFIGS)
def test_config(name):
    """The class is found by the name in its config, and takes the arguments there."""
    module, scope, registry, is_built = CONFIGS[name]
    for toolbox in ('mmdet', 'mmseg', 'mmpretrain'):
        pytest.importorskip(toolbox)
    documented = getattr(import_module(f'cpvt_backbones.{module}'), name)
    config: dict[str, Any] = {}
    exec(fenced(documented), {}, config)
    for imported in config.get('custom_imports', {}).get('imports', ()):
        import_module(imported)
    own = next(one for one in dicts_of(config) if name in (one.get('type'), one.get('constructor')))
    registered = getattr(import_module(f'{scope}.registry'), registry)
    assert registered.get(name) is documented
    if is_built:
        # Not in the scope that an earlier test left: those that have parts take mmpretrain's.
        with DefaultScope.overwrite_default_scope('mmpretrain'):
            assert isinstance(registered.build(own), documented)


@pytest.mark.full
def test_sweep(tmp_path, monkeypatch, capsys):
    pytest.importorskip('mmpretrain.datasets')
    from cpvt_backbones.analysis.resolution import sweep

    monkeypatch.chdir(tmp_path)
    classes = find_shipped('cpvt_tiny_gap-imagenette').dataset_meta['classes']
    for number in range(len(classes)):  # their names sorted are in another order
        folder = Path('photos', f'n{number:02}')
        folder.mkdir(parents=True)
        Image.new('RGB', (90, 60)).save(folder / 'a.png')
    printed = {}
    exec(fenced(sweep), dict(print=lambda size, *row: printed.update({size: row})))
    assert [*printed] == ['0.5', '128px']
    assert all(row[0] == {'accuracy/top1': 10.0} for row in printed.values())

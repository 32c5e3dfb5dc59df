"""The examples of the public names that users take most: they are there, run, and fit the page."""

import doctest
import inspect
import re
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from mmengine.logging import MMLogger
from mmengine.registry import DefaultScope
from PIL import Image
from tiny import only

from cpvt_backbones.layers import position
from cpvt_backbones.toolboxes import dicts_of
from cpvt_backbones.weights import find_shipped

# By module: classes, functions and methods.
EXAMPLES = {
    'analysis.complexity': ['complexity_against_size'],
    'analysis.image_size': ['TestSize', 'scale_test_images'],
    'analysis.resolution': ['good_sizes'],
    'backbones.announced': ['announce_sizes', 'announced_sizes'],
    'backbones.archs': ['list_archs'],
    'backbones.base': ['Backbone.forward', 'Backbone.fuse', 'Backbone.get_layer_depth'],
    'backbones.cpvt': ['CPVT'],
    'backbones.multi_scale': ['MultiScaleCPVT'],
    'backbones.pretrained': ['PretrainedModel.from_pretrained', 'PretrainedModel.save_pretrained'],
    'backbones.pyramid_cpvt': ['PyramidCPVT'],
    'backbones.with_peg': ['build_with_peg'],
    'checkpoints.classes': ['classes_of'],
    'checkpoints.conversion.exporting': ['export_state_dict'],
    'checkpoints.conversion.public': ['public_backbone'],
    'checkpoints.source_config': ['recognise_backbone'],
    'checkpoints.loading': ['convert_state_dict', 'load_checkpoint'],
    'checkpoints.reading.finding': ['locate_checkpoint', 'newest_checkpoint', 'read_checkpoint'],
    'checkpoints.reading.writing': ['write_checkpoint'],
    'checkpoints.report': ['CheckpointError', 'ConversionReport'],
    'checkpoints.whole_model': ['load_weights'],
    'engine.prediction_by_size': ['predict_by_size'],
    'engine.valid_sizes': ['ValidSizes'],
    'export.detectors': ['graph_of'],
    'export.exported': ['ExportedModel'],
    'export.formats': ['export'],
    'export.verification': ['verify'],
    'images.finding': ['find_images'],
    'images.reading': ['read_image'],
    'images.value_range': ['ValueRange'],
    'inference.folders': ['predict_to_folder'],
    'inference.inferencer': ['Inferencer'],
    'inference.sizes': ['GoodSizes'],
    'layers.attention': ['Attention', 'SpatialReductionAttention', 'WindowAttention'],
    'layers.block': ['MLP', 'Block'],
    'layers.learned_table': ['LearnedTable'],
    'layers.patch_embed': ['PatchEmbed'],
    'layers.peg': ['PEG', 'PEGPosition'],
    'layers.position': [
        'DecomposedRelative',
        'PositionEncoding',
        'Relative',
        'SinCos',
        'build_positions',
        'register_position',
    ],
    'layers.relative_bias': ['RelativeBias'],
    'layers.rope': ['RoPE'],
    'layers.tokens': ['map_to_tokens', 'tokens_to_map'],
    'toolboxes': ['read_config'],
    'weights': ['find_shipped', 'shipped_weights'],
}


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


PAIRS = [(module, name) for module, names in EXAMPLES.items() for name in names]
QUICK = [pair for pair in PAIRS if pair[1] not in ('verify', 'ExportedModel', 'export')]


@pytest.mark.parametrize(('module', 'name'), only(*QUICK, of=PAIRS))
def test_example(module, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Encodings that an example registers are forgotten.
    monkeypatch.setattr(position, 'POSITIONS', dict(position.POSITIONS))
    # It prints what is loaded.
    monkeypatch.setattr(MMLogger.get_current_instance(), 'disabled', True)
    documented = import_module(f'cpvt_backbones.{module}')
    for part in name.split('.'):
        documented = getattr(documented, part)
    assert '\nExamples:\n' in inspect.cleandoc(documented.__doc__)
    finder = doctest.DocTestFinder(recurse=False)
    (example,) = finder.find(documented, name, globs={})
    code = [line for one in example.examples for line in one.source.splitlines()]
    assert code and max(map(len, code)) <= 71  # and four of the prompt
    if 'find_shipped' in example.docstring:
        pytest.importorskip('mmpretrain.datasets')  # prints when it is imported
    told: list[str] = []
    failed, _ = doctest.DocTestRunner().run(example, out=told.append)
    assert not failed, ''.join(told)


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

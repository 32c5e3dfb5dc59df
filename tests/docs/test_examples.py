"""The examples of the public names that users take most: they are there, run, and fit the page."""

import doctest
from importlib import import_module

import pytest
from mmengine.logging import MMLogger

# By module: classes, functions and methods.
EXAMPLES = {
    'backbones.archs': ['list_archs'],
    'backbones.base': ['Backbone.forward', 'Backbone.fuse'],
    'backbones.cpvt': ['CPVT'],
    'backbones.multi_scale': ['MultiScaleCPVT'],
    'backbones.pretrained': ['PretrainedModel.from_pretrained', 'PretrainedModel.save_pretrained'],
    'backbones.pyramid_cpvt': ['PyramidCPVT'],
    'checkpoints.conversion.convert': ['convert_state_dict'],
    'checkpoints.conversion.exporting': ['export_state_dict'],
    'checkpoints.loading': ['load_checkpoint'],
    'checkpoints.reading.files': ['read_checkpoint'],
    'engine.valid_sizes': ['ValidSizes'],
    'export.formats': ['export'],
    'inference.folders': ['predict_to_folder'],
    'inference.images': ['find_images'],
    'inference.inferencer': ['Inferencer'],
    'layers.learned_table': ['LearnedTable'],
    'layers.peg': ['PEG'],
    'layers.position': ['Relative', 'SinCos'],
    'layers.rope': ['RoPE'],
    'weights': ['shipped_weights'],
}


@pytest.mark.parametrize(
    ('module', 'name'), [(module, name) for module, names in EXAMPLES.items() for name in names]
)
def test_example(module, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # It prints what is loaded.
    monkeypatch.setattr(MMLogger.get_current_instance(), 'disabled', True)
    documented = import_module(f'cpvt_backbones.{module}')
    for part in name.split('.'):
        documented = getattr(documented, part)
    assert '\n    Examples:\n' in documented.__doc__.replace('\n        ', '\n    ')
    finder = doctest.DocTestFinder(recurse=False)
    (example,) = finder.find(documented, name, globs={})
    code = [line for one in example.examples for line in one.source.splitlines()]
    assert code and max(map(len, code)) <= 71  # and four of the prompt
    if 'find_shipped' in example.docstring:
        pytest.importorskip('mmpretrain.datasets')  # prints when it is imported
    told: list[str] = []
    failed, _ = doctest.DocTestRunner().run(example, out=told.append)
    assert not failed, ''.join(told)

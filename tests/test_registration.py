"""Registration, and order of import."""

import multiprocessing

import pytest
from mmengine.registry import MODELS
from tiny import COLUMN, PYRAMID

import cpvt_backbones
from cpvt_backbones import CPVT, MultiScaleCPVT, PyramidCPVT
from cpvt_backbones.engine import lazy_registration

TOOLBOXES = ('mmdet', 'mmseg', 'mmpretrain')
CLASSES = (CPVT, MultiScaleCPVT, PyramidCPVT)


# Processes forked from one that has imported what all of them need, and nothing of this package or
# a toolbox.
PROCESSES = multiprocessing.get_context('forkserver')
PROCESSES.set_forkserver_preload(
    ['cv2', 'mmengine.runner', 'torchvision', 'sklearn.gaussian_process']
)


def python(*lines):
    """Run lines of code in a process of their own; what they `send`."""
    receiver, sender = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=exec, args=('\n'.join(lines), dict(send=sender.send)))
    process.start()
    sender.close()
    answer = receiver.recv()  # EOFError: the process failed, see its traceback
    process.join()
    return answer


@pytest.mark.parametrize('toolbox', TOOLBOXES)
@pytest.mark.parametrize('cls', CLASSES)
def test_every_toolbox_builds_the_same_class(toolbox, cls):
    registry = pytest.importorskip(f'{toolbox}.registry').MODELS
    arch = PYRAMID if cls is PyramidCPVT else COLUMN
    assert type(registry.build(dict(type=cls.__name__, arch=arch))) is cls
    assert type(MODELS.build(dict(type=cls.__name__, arch=arch))) is cls
    assert registry.get(cls.__name__) is cls
    assert cls.__name__ not in registry.module_dict  # registered in the root alone


@pytest.mark.full
@pytest.mark.parametrize('module', [None, 'preprocessors'])
def test_configs_need_no_import_of_classes_of_a_toolbox(module):
    """``import cpvt_backbones`` is enough, and an import of their module does no harm."""
    pytest.importorskip('mmdet')
    answer = python(
        'import sys',
        f'import cpvt_backbones.engine.{module}' if module else 'import cpvt_backbones',
        'from mmengine.registry import MODELS, init_default_scope',
        'early = "mmdet.models" in sys.modules',
        'init_default_scope("mmdet")',
        'import mmdet.registry',
        'config = dict(type="ValidSizesDetDataPreprocessor", pad_size_divisor=32)',
        'first, second = MODELS.build(config), mmdet.registry.MODELS.build(config)',
        'from cpvt_backbones.engine.preprocessors import ValidSizesDetDataPreprocessor as wanted',
        'send((early, type(first) is type(second) is wanted, first.pad_size_divisor))',
    )
    assert answer == (module is not None, True, 32)


@pytest.mark.parametrize(
    ('name', 'toolbox'), [(n, t) for n, (_, t) in lazy_registration.CLASSES.items()]
)
@pytest.mark.full
def test_a_missing_toolbox_is_named(name, toolbox):
    answer = python(
        'import sys',
        f'sys.modules["{toolbox}"] = None',
        'import cpvt_backbones',
        'from mmengine.registry import MODELS',
        'try:',
        f'    MODELS.build(dict(type="{name}"))',
        'except ImportError as error:',
        '    send(str(error))',
    )
    assert answer.startswith(f'{name} needs {toolbox}')


def test_lazily_registered_names_are_the_classes_of_their_modules():
    for toolbox in TOOLBOXES:
        pytest.importorskip(toolbox)
    for name, (import_module, _) in lazy_registration.CLASSES.items():
        import_module()
        cls = MODELS.get(name)
        assert isinstance(cls, type) and cls.__name__ == name
        lazy_registration.defer()
        assert MODELS.get(name) is cls


@pytest.mark.parametrize(
    'order',
    [
        ('cpvt_backbones', 'mmdet.models', 'mmseg.models', 'mmpretrain.models'),
        pytest.param(
            ('mmpretrain.models', 'mmseg.models', 'mmdet.models', 'cpvt_backbones'),
            marks=pytest.mark.full,
        ),
    ],
)
def test_any_order_of_import(order):
    for toolbox in TOOLBOXES:
        pytest.importorskip(toolbox)
    if order[0] != 'cpvt_backbones' and pytest.importorskip('mmcv._ext').__file__.endswith('.py'):
        pytest.skip("without compiled operators mmdet's models do not import before this package")
    answer = python(
        *(f'import {name}' for name in order),
        'import mmdet.registry, mmseg.registry, mmpretrain.registry',
        'config = dict(type="CPVT", arch="tiny")',
        'built = {type(toolbox.registry.MODELS.build(config)) for toolbox in (mmdet, mmseg,'
        ' mmpretrain)}',
        'send(built == {cpvt_backbones.CPVT})',
    )
    assert answer is True


@pytest.mark.parametrize(
    'first', ['cpvt_backbones.weights', 'cpvt_backbones.layers.peg', 'mmengine.runner']
)
def test_any_part_imported_first_registers_everything(first):
    code = f"""
import {first}, cpvt_backbones
from mmengine.registry import HOOKS, LOOPS, MODELS, OPTIM_WRAPPER_CONSTRUCTORS, RUNNERS, STRATEGIES
from mmengine.runner import CheckpointLoader
assert MODELS.get('CPVT') is cpvt_backbones.CPVT and MODELS.get('WithPEG')
assert HOOKS.get('DurableCheckpointHook') and LOOPS.get('TestLoopBySize')
assert RUNNERS.get('ResumableRunner') and RUNNERS.get('ResumableFlexibleRunner')
assert OPTIM_WRAPPER_CONSTRUCTORS.get('LayerDecayOptimWrapperConstructor')
assert STRATEGIES.get('ResumableFSDPStrategy')
loader = cpvt_backbones.checkpoints.mmengine_loader.load_from_cpvt_backbones
assert CheckpointLoader._schemes[''] is loader
send(True)
"""
    assert python(code) is True


def test_a_second_import_registers_nothing_twice():
    answer = python(
        'from mmengine.registry import MODELS',
        'from mmengine.utils import import_modules_from_strings',
        'import cpvt_backbones',
        'before = MODELS.get("CPVT") and dict(MODELS.module_dict)',
        'for _ in range(2): import_modules_from_strings(["cpvt_backbones"])  # what custom_imports'
        ' does',
        'import cpvt_backbones.backbones, cpvt_backbones.layers',
        'send(before == dict(MODELS.module_dict) and MODELS.get("CPVT") is cpvt_backbones.CPVT)',
    )
    assert answer is True


def test_importing_the_package_imports_no_toolbox_and_no_operators():
    answer = python(
        'import sys, cpvt_backbones',
        'roots = {name.split(".")[0] for name in sys.modules}',
        'send(sorted(roots & {"mmcv", "mmdet", "mmseg", "mmpretrain", "timm"}))',
    )
    assert answer == []


def test_public_names():
    names = {'CPVT', 'PyramidCPVT', 'MultiScaleCPVT', 'PEG', 'list_archs', 'convert_state_dict'}
    assert set(cpvt_backbones.__all__) >= names
    assert all(hasattr(cpvt_backbones, name) for name in cpvt_backbones.__all__)

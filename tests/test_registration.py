"""Registration, and order of import."""

import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest
from mmengine.registry import MODELS
from tiny import COLUMN, PYRAMID

import cpvt_backbones
from cpvt_backbones import CPVT, MultiScaleCPVT, PyramidCPVT

PACKAGE = Path(cpvt_backbones.__file__).parent
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
    assert cls.__name__ not in registry.module_dict, (
        'registered in the toolbox as well as in the root'
    )


@pytest.mark.parametrize(
    'order',
    [
        ('cpvt_backbones', 'mmdet.models', 'mmseg.models', 'mmpretrain.models'),
        ('mmpretrain.models', 'mmseg.models', 'mmdet.models', 'cpvt_backbones'),
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


# In processes where neither mmengine nor the package is imported yet; torch is, for speed.
FRESH = """
import os, sys, traceback
import torch.distributed.optim
failed = 0
for case in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        try:
            assert not {'mmengine', 'cpvt_backbones'} & set(sys.modules)
            exec(case, {})
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    failed += os.waitpid(child, 0)[1] != 0
sys.exit(failed)
"""
REGISTERED = """
from mmengine.registry import HOOKS, MODELS, OPTIM_WRAPPER_CONSTRUCTORS as CONSTRUCTORS
import cpvt_backbones
assert MODELS.get('CPVT') is cpvt_backbones.CPVT, 'not registered'
assert HOOKS.get('DurableCheckpointHook') and CONSTRUCTORS.get('LayerDecayOptimWrapperConstructor')
from mmengine.runner import CheckpointLoader
from cpvt_backbones.checkpoints.loader import load_for_mmengine
assert CheckpointLoader._schemes[''] is load_for_mmengine
"""


def test_any_part_imported_first_registers_everything():
    parts = [
        '.'.join(path.relative_to(PACKAGE.parent).with_suffix('').parts).removesuffix('.__init__')
        for path in [
            *PACKAGE.glob('*.py'),
            *PACKAGE.glob('*/__init__.py'),
            *PACKAGE.glob('engine/*.py'),
        ]
        if path.stem
        not in (
            '__main__',
            'classifiers',
            'preprocessors',
            'distillation',
            'decoded',
            'timm_models',
        )
    ]
    cases = [
        *(f'import {part}\n{REGISTERED}' for part in parts),
        f'import mmengine, cpvt_backbones\n{REGISTERED}',
        f'import mmengine.runner, cpvt_backbones\n{REGISTERED}',
        f'import cpvt_backbones, mmengine.model\n{REGISTERED}',
        f'from cpvt_backbones import *\n{REGISTERED}',
        # Whether mmengine is there was asked before; it is imported later.
        (
            'import cpvt_backbones, importlib.util as u\nu.find_spec("mmengine")\n'
            f'import mmengine\nu.find_spec("mmengine.runner")\n{REGISTERED}'
        ),
        # The loader alone, before any look-up of a name.
        (
            'import cpvt_backbones\nfrom mmengine.runner import CheckpointLoader as loader\n'
            'assert "cpvt_backbones" in loader._schemes[""].__module__'
        ),
        'import sys, cpvt_backbones\nassert not {"mmengine", "cv2"} & set(sys.modules)',
        'import cpvt_backbones as c\nassert c.checkpoints.read_checkpoint and c.engine.wrap_blocks',
    ]
    process = subprocess.run([sys.executable, '-c', FRESH, *cases], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


def test_importing_the_package_imports_neither_torch_nor_mmengine():
    code = 'import sys, cpvt_backbones; assert not {"torch", "mmengine"} & set(sys.modules)'
    subprocess.run([sys.executable, '-c', code], check=True)


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
    assert set(cpvt_backbones.__all__) >= {
        'CPVT',
        'PyramidCPVT',
        'MultiScaleCPVT',
        'PEG',
        'list_archs',
    }
    assert all(hasattr(cpvt_backbones, name) for name in cpvt_backbones.__all__)

"""Options that have no effect on a config are refused."""

import re
from pathlib import Path

import pytest
from mmengine.config import Config

from cpvt_backbones.toolboxes import READ_KEYS, check_options, read_config

ROOT = Path(__file__).resolve().parents[1]
CONFIG = """
default_scope = 'mmpretrain'
size = 96
options = dict(kind='a', rate=0.1)
unused = {}
steps = [dict(type='Load'), dict(type='Resize', size=size)]
model = dict(head=dict(options=options))
train_dataloader = dict(dataset=dict(pipeline=steps))
train_cfg = dict(max_iters=500)
max_iters = 500
"""


@pytest.mark.parametrize(
    ('option', 'advice'),
    [
        ('max_iters', 'set train_cfg.max_iters'),
        ('size', 'set train_dataloader.dataset.pipeline.1.size'),
        ('steps', 'set train_dataloader.dataset.pipeline'),
        ('steps.1.size', 'set train_dataloader.dataset.pipeline.1.size'),
        ('options.rate', 'set model.head.options.rate'),
        ('unused', 'change the file'),
        ('trian_cfg.max_iters', 'nothing reads it; did you mean train_cfg?'),
        ('batch_size', 'the config has no batch_size, and nothing reads it'),
        ('launcher', 'launcher is an argument of its own'),
    ],
)
def test_options_without_effect(option, advice, tmp_path):
    (tmp_path / 'a.py').write_text(CONFIG)
    with pytest.raises(ValueError, match='cfg_options: ') as refusal:
        check_options(Config.fromfile(tmp_path / 'a.py'), [option])
    assert str(refusal.value).endswith(advice)


BACKBONE = """
default_scope = 'mmpretrain'
peg = dict(type='PEG')
model = dict(backbone=dict(type='CPVT', arch='tiny', position=[dict(type='Learned'), peg]))
"""


@pytest.mark.parametrize(
    ('option', 'fault'),
    [
        ('model.backbone.archh', "type='CPVT' has no argument 'archh'; did you mean 'arch'?"),
        ('model.backbone.archh.depth', "type='CPVT' has no argument 'archh'; did you mean 'arch'?"),
        (
            'model.backbone.position.1.kernel',
            "type='PEG' has no argument 'kernel'; did you mean 'kernel_size'?",
        ),
        ('model.backbone.position.0.stages', "type='Learned' has no argument 'stages'; accepted"),
        ('model.backbone.drop_path_rate', None),
        ('model.backbone.position.1.kernel_size', None),
        ('model.backbone.arch.depth', None),
        ('model.backbone.type', None),
        ('model.neck.in_channels', None),
    ],
)
def test_arguments_of_modules_of_this_package(option, fault, tmp_path):
    (tmp_path / 'a.py').write_text(BACKBONE)
    cfg = Config.fromfile(tmp_path / 'a.py')
    if fault is None:
        check_options(cfg, [option])
        return
    with pytest.raises(ValueError, match=re.escape(f'cfg_options: {option}: {fault}')):
        check_options(cfg, [option])


def test_an_argument_of_a_type_that_is_set_too_is_accepted(tmp_path):
    (tmp_path / 'a.py').write_text(BACKBONE)
    options = {'model.backbone.type': 'PyramidCPVT', 'model.backbone.embed_norm_eps': 1e-6}
    check_options(Config.fromfile(tmp_path / 'a.py'), options)


def test_names_that_are_read_are_accepted():
    names = 'model.neck train_cfg.max_iters strategy.type compile tta_model.type work_dir'
    more = 'param_scheduler.1.end custom_hooks env_cfg.cudnn_benchmark'
    check_options(Config(), f'{names} {more}'.split())


def test_every_name_that_shipped_options_use_is_read():
    for file in (ROOT / 'configs/_base_/options').glob('*.py'):
        assert {*Config.fromfile(file, import_custom_modules=False)} <= READ_KEYS


def test_a_shipped_config(tmp_path):
    pytest.importorskip('mmpretrain')
    file = ROOT / 'configs/imagenette/cpvt-6-blocks_imagenette.py'
    with pytest.raises(ValueError, match='max_epochs has no effect: .* set train_cfg.max_epochs$'):
        read_config(file, cfg_options=dict(max_epochs=3))
    with pytest.raises(ValueError, match='cfg_options: KeyError: .*Index 7'):
        read_config(file, cfg_options={'param_scheduler.7.end': 3})
    assert read_config(file, cfg_options={'train_cfg.max_epochs': 3}).train_cfg.max_epochs == 3

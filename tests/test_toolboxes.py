"""Options that have no effect on a config are refused."""

import re
from pathlib import Path

import pytest
from mmengine.config import Config
from mmengine.registry import MODELS

from cpvt_backbones.toolboxes import READ_KEYS, check_options, read_config

ROOT = Path(__file__).resolve().parents[1]
ADVICE = '; set the keys that take its value, such as train_cfg.max_epochs'


@pytest.mark.parametrize(
    ('option', 'fault'),
    [
        ('max_iters', f'max_iters has no effect: a runner reads no max_iters{ADVICE}'),
        ('steps.1.size', f'steps.1.size has no effect: a runner reads no steps{ADVICE}'),
        (
            'trian_cfg.max_iters',
            'trian_cfg.max_iters has no effect: a runner reads no trian_cfg; did you mean'
            " 'train_cfg'?",
        ),
        (
            'train_pipeline.2.scale',
            'train_pipeline.2.scale has no effect: a runner reads no train_pipeline; set'
            ' train_dataloader.dataset.pipeline.2.scale',
        ),
        ('launcher', 'launcher is a separate argument'),
    ],
)
def test_options_without_effect(option, fault):
    with pytest.raises(ValueError) as refusal:
        check_options(['model.backbone.depth', option])
    assert str(refusal.value) == f'cfg_options: {fault}'


BACKBONE = """
default_scope = 'mmpretrain'
peg = dict(type='PEG')
model = dict(backbone=dict(type='CPVT', arch='tiny', position=[dict(type='Learned'), peg]))
"""


@pytest.mark.parametrize(
    ('option', 'fault'),
    [
        ('archh', "CPVT has no argument 'archh'; did you mean 'arch'?"),
        ('archh.depth', "CPVT has no argument 'archh'; did you mean 'arch'?"),
        (
            'position.1.kernel',
            "position=dict(type='PEG') has no argument 'kernel'; did you mean 'kernel_size'?",
        ),
    ],
)
def test_an_option_that_a_backbone_does_not_take_is_refused_when_it_is_built(
    option, fault, tmp_path
):
    pytest.importorskip('mmpretrain')
    (tmp_path / 'a.py').write_text(BACKBONE)
    cfg = read_config(tmp_path / 'a.py', cfg_options={f'model.backbone.{option}': 3})
    with pytest.raises(TypeError, match=re.escape(fault)):
        MODELS.build(cfg.model.backbone)


def test_names_that_are_read_are_accepted():
    names = 'model.neck train_cfg.max_iters strategy.type compile tta_model.type work_dir'
    more = 'param_scheduler.1.end custom_hooks env_cfg.cudnn_benchmark'
    check_options(f'{names} {more}'.split())


def test_every_name_that_shipped_options_use_is_read():
    for file in (ROOT / 'configs/_base_/options').glob('*.py'):
        assert {*Config.fromfile(file, import_custom_modules=False)} <= READ_KEYS


def test_a_shipped_config(tmp_path):
    pytest.importorskip('mmpretrain')
    file = ROOT / 'configs/imagenette/cpvt-6-blocks_imagenette.py'
    with pytest.raises(
        ValueError, match='max_epochs has no effect: .*, such as train_cfg.max_epochs$'
    ):
        read_config(file, cfg_options=dict(max_epochs=3))
    with pytest.raises(ValueError, match='cfg_options: KeyError: .*Index 7'):
        read_config(file, cfg_options={'param_scheduler.7.end': 3})
    assert read_config(file, cfg_options={'train_cfg.max_epochs': 3}).train_cfg.max_epochs == 3

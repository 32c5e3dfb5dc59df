"""A run that is killed and resumed ends where an uninterrupted one ends: weights, averages,
optimizer and schedule.

What is not compared is augmentation. mmengine saves no random states: after a resume the data come
in the order they would have come in, but random crops, flips, dropout and stochastic depth start
again from the seed.
"""

from pathlib import Path

import pytest
import torch
from tiny import assert_equal_leaves

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]
LAST, SAVED_EVERY, KILLED_AFTER = 7, 3, 5
CONFIG = f"""
_base_ = [
    '{ROOT}/configs/_base_/models/semantic_fpn.py',
    '{ROOT}/configs/_base_/schedules/adamw.py',
    '{ROOT}/configs/_base_/runtime/mmseg.py',
    '{ROOT}/configs/_base_/options/ema.py',
]
custom_imports = dict(imports=['cpvt_backbones', 'tiny_runs'])
model = dict(
    backbone=dict(
        type='MultiScaleCPVT', arch=dict(embed_dims=32, depth=2, num_heads=2, mlp_ratio=2.0),
            patch_size=8,
        position=dict(type='PEG', after_blocks=(0, 1))),
    neck=dict(in_channels=[16, 32, 32, 32], out_channels=32),
    decode_head=dict(in_channels=[32] * 4, channels=32, num_classes=3, dropout_ratio=0))
train_dataloader = dict(
    batch_size=2, num_workers=1, sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(type='Pictures', scope='mmseg', count=5))
val_cfg = test_cfg = None
# Rates that change in every iteration, first up and then down.
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=4),
    dict(type='CosineAnnealingLR', T_max={LAST - 4}, eta_min=1e-5, by_epoch=False, begin=4,
        end={LAST}),
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters={LAST})
default_hooks = dict(checkpoint=dict(interval={SAVED_EVERY}, max_keep_ckpts=-1))
randomness = dict(seed=3)
"""


def test_a_killed_run_ends_as_if_it_had_not_been(train, tmp_path):
    pytest.importorskip('mmseg')
    config = tmp_path / 'config.py'
    config.write_text(CONFIG)
    whole, broken = tmp_path / 'whole', tmp_path / 'broken'
    train('mmseg', config, '--work-dir', whole)

    doomed = tmp_path / 'doomed.py'
    power_cut = dict(type='PowerCut', after=KILLED_AFTER)
    doomed.write_text(f"_base_ = 'config.py'\ncustom_hooks = [*_base_.custom_hooks, {power_cut}]")
    train('mmseg', doomed, '--work-dir', broken, exit_codes=[-9])
    assert [path.name for path in broken.glob('*.pth')] == [f'iter_{SAVED_EVERY}.pth']
    train('mmseg', config, '--work-dir', broken, '--resume')

    def read(folder, iteration):
        return torch.load(folder / f'iter_{iteration}.pth', weights_only=False)

    expected, actual, saved = read(whole, LAST), read(broken, LAST), read(broken, SAVED_EVERY)
    for part in ('state_dict', 'ema_state_dict', 'optimizer', 'param_schedulers'):
        assert_equal_leaves(expected[part], actual[part])
        with pytest.raises(AssertionError):
            assert_equal_leaves(saved[part], actual[part])
    # The average, which is what is saved as the weights, is not the weights that are trained.
    trained = {
        k.removeprefix('module.'): v for k, v in actual['ema_state_dict'].items() if k != 'steps'
    }
    assert trained.keys() == actual['state_dict'].keys()
    with pytest.raises(AssertionError):
        assert_equal_leaves(trained, actual['state_dict'])
    assert actual['ema_state_dict']['steps'] == LAST

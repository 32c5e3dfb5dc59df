"""Configs of the package as bases in programs that are not this package's: mmengine alone, and
mmdet's own.
"""

import itertools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from digit_scenes import write_scenes
from mmengine.config import Config
from mmengine.runner import Runner
from PIL import Image

pytest.importorskip('mmdet')

import cpvt_backbones
from cpvt_backbones.checkpoints import read_checkpoint

BASE = """
_base_ = {base}
arch = dict(embed_dims=16, depth=1, num_heads=2, mlp_ratio=2)
model = dict(
    backbone=dict(arch=arch, position=dict(after_blocks=(0,))),
    neck=dict(in_channels=[16] * 3),
    test_cfg=dict(score_thr=0))
workerless = dict(num_workers=0, persistent_workers=False)
train_dataloader = dict(**workerless, batch_size=2, dataset=dict(data_root=r'{scenes}/train_48x64'))
val_dataloader = test_dataloader = dict(**workerless,
    dataset=dict(data_root=r'{scenes}/heldout_37x61'))
val_evaluator = test_evaluator = dict(ann_file=r'{scenes}/heldout_37x61/instances.json')
train_cfg = dict(max_iters=1, val_interval=1)
"""
WORKERLESS = 'batch_size=2, num_workers=0, persistent_workers=False'
NAMED = 'cpvt_backbones::demo/retinanet_multiscale-cpvt_digits.py'


@pytest.fixture
def config(tmp_path):
    """Function that writes a config whose base is an expression; returns its path."""
    write_scenes(root=tmp_path, split='train', height=48, width=64, count=2)
    write_scenes(root=tmp_path, split='heldout', height=37, width=61, count=1)

    def config(base):
        path = tmp_path / 'mine.py'
        path.write_text(BASE.format(base=base, scenes=tmp_path))
        return path

    return config


def test_runner_and_detector_of_a_named_base(config, tmp_path):
    from mmdet.apis import inference_detector, init_detector

    path = config(repr(NAMED))
    cfg = Config.fromfile(path)
    assert "'_scope_': 'cpvt_backbones'" not in str(cfg)
    runner = Runner.from_cfg(Config({**cfg, 'work_dir': str(tmp_path / 'work')}))
    runner.train()
    assert type(runner.model.backbone) is cpvt_backbones.MultiScaleCPVT
    detector = init_detector(str(path), str(tmp_path / 'work/iter_1.pth'), device='cpu')
    image = next((tmp_path / 'heldout_37x61').rglob('*.png'))
    assert len(inference_detector(detector, str(image)).pred_instances.bboxes)


@pytest.mark.full
def test_clone_that_is_not_installed(tmp_path):
    source = Path(cpvt_backbones.__file__).parents[1]
    for name in ('cpvt_backbones', 'configs'):
        shutil.copytree(
            source / name,
            tmp_path / 'clone' / name,
            ignore=shutil.ignore_patterns('.mim', '__pycache__'),
        )
    (tmp_path / 'mine.py').write_text("_base_ = 'cpvt_backbones::_base_/options/ema.py'")
    code = 'import cpvt_backbones; from mmengine.config import Config\n'
    code += 'assert Config.fromfile("mine.py").custom_hooks'
    environment = {**os.environ, 'PYTHONPATH': str(tmp_path / 'clone')}
    subprocess.run([sys.executable, '-c', code], env=environment, cwd=tmp_path, check=True)


@pytest.mark.full
def test_classifier_of_own_class_folders(tmp_path):
    """As the README of configs/imagenette says."""
    pytest.importorskip('mmpretrain')
    source = Path(cpvt_backbones.__file__).parents[1]
    (text,) = re.findall(
        r'```python\n(.*?)```', (source / 'configs/imagenette/README.md').read_text(), re.DOTALL
    )
    for split, name in itertools.product(('train', 'val'), ('ash', 'birch', 'cedar')):
        (tmp_path / split / name).mkdir(parents=True)
        for side in (90, 130):
            Image.new('RGB', (side, 120), (side, 40, 200)).save(
                tmp_path / split / name / f'{side}.png'
            )
    text = text.replace('data/mine', str(tmp_path)).replace(
        'dict(dataset=', f'dict({WORKERLESS}, dataset='
    )
    (tmp_path / 'mine.py').write_text(f'{text}work_dir = {str(tmp_path / "work")!r}\n')
    cfg = Config.fromfile(tmp_path / 'mine.py')
    assert 'batch_augments' not in str(cfg)  # one crop, that of the pipeline
    cfg.train_cfg.max_epochs = 1
    runner = Runner.from_cfg(cfg)
    runner.train()
    assert runner.train_dataloader.dataset.CLASSES == ('ash', 'birch', 'cedar')
    shipped = read_checkpoint('cpvt_tiny_gap-imagenette')['backbone.norm.weight'].float()
    assert torch.allclose(runner.model.backbone.norm.weight, shipped, atol=1e-2)  # it starts there
    assert (tmp_path / 'work/epoch_1.pth').is_file()

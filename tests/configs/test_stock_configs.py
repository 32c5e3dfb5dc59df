"""Stock configs of mmdet and mmseg, with another backbone and on another folder of data, train and
are evaluated.
"""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny import only

from cpvt_backbones import patches
from cpvt_backbones.engine import launch
from cpvt_backbones.toolboxes import read_config

ROOT = Path(__file__).resolve().parents[2]
COCO = ROOT / 'data' / 'coco128'
CAMVID = ROOT / 'data' / 'camvid'
WORKERLESS = {
    f'{part}_dataloader.{key}': value
    for part in ('train', 'val', 'test')
    for key, value in dict(num_workers=0, persistent_workers=False).items()
}
DETECTORS = {
    'pvt': (
        "model = dict(backbone=dict(_delete_=True, type='PyramidCPVT', arch='tiny',"
        ' drop_path_rate=0.2))'
    ),
    'r50': (
        """model = dict(
    backbone=dict(_delete_=True, type='MultiScaleCPVT', arch='tiny', window_size=14,
        global_blocks=(2, 5, 8, 11)),
    neck=dict(in_channels=[48, 96, 192, 192]))
"""
    ),
}
STOCK_DETECTORS = {
    'pvt': 'mmdet::pvt/retinanet_pvt-t_fpn_1x_coco.py',
    'r50': 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py',
}
SEGMENTOR = """
model = dict(
    pretrained=None,
    backbone=dict(_delete_=True, type='PyramidCPVT', arch='tiny', drop_path_rate=0.1),
    neck=dict(in_channels=[64, 128, 320, 512]))
"""


def write(folder, base, backbone):
    config = folder / 'config.py'
    config.write_text(
        f"_base_ = '{base}'\ncustom_imports = dict(imports=['cpvt_backbones'])\n{backbone}\n"
    )
    return config


def train_and_test(config, options, checkpoint, folder):
    """Two iterations, and the metrics of a second run that loads what they saved."""
    # Visualizers are known by name to the end of the process, with their folder.
    options = {**options, 'visualizer.name': str(folder), 'randomness': dict(seed=0)}
    cfg = read_config(config, cfg_options=options, work_dir=folder / 'work')
    assert 'init_cfg' not in cfg.model.backbone
    cfg.default_hooks.logger.interval = 1
    runner = launch.train(cfg)
    assert runner.iter == 2
    assert type(runner.model.backbone).__module__.startswith('cpvt_backbones.')
    losses = [
        value for value, _ in zip(*runner.message_hub.get_scalar('train/loss').data, strict=True)
    ]
    assert len(losses) == 2
    assert all(math.isfinite(loss) for loss in losses)
    path = folder / 'work' / checkpoint
    weights = torch.load(path, weights_only=False)['state_dict']
    assert all(torch.isfinite(value).all() for value in weights.values())
    return launch.test(
        read_config(config, cfg_options=options, work_dir=folder / 'work'), checkpoint=path
    )


@pytest.mark.skipif(
    not COCO.is_dir(),
    reason=f'there is no {COCO.relative_to(ROOT)}: 128 images in the layout of COCO',
)
@pytest.mark.parametrize('name', STOCK_DETECTORS)
def test_a_stock_detector(name, tmp_path):
    pytest.importorskip('mmdet')
    config = write(tmp_path, STOCK_DETECTORS[name], DETECTORS[name])
    options = {
        **WORKERLESS,
        # Four images of the 128 make two iterations.
        'train_dataloader.dataset.indices': 4,
        'train_cfg.max_epochs': 1,
        # After two iterations no score is high, and without a box there is no metric.
        'model.test_cfg.score_thr': 0.0,
        'train_cfg.val_interval': 2,
        'train_dataloader.dataset.pipeline.2.scale': (320, 200),
    }
    for part in ('train', 'val', 'test'):
        options[f'{part}_dataloader.dataset.data_root'] = f'{COCO}/'
    for part in ('val', 'test'):
        options[f'{part}_dataloader.dataset.indices'] = 2
        options[f'{part}_dataloader.dataset.pipeline.1.scale'] = (320, 200)
        options[f'{part}_evaluator.ann_file'] = f'{COCO}/annotations/instances_val2017.json'
    metrics = train_and_test(config, options, 'epoch_1.pth', tmp_path)
    assert 0 <= metrics['coco/bbox_mAP'] <= 1


STOCK_SEGMENTORS = (
    'sem_fpn/fpn_r50_4xb4-160k_ade20k-512x512.py',
    'vit/vit_deit-s16_upernet_8xb2-160k_ade20k-512x512.py',
    '_base_/models/upernet_r50.py',
)


@pytest.mark.parametrize('name', only(of=STOCK_SEGMENTORS))
def test_mmsegs_configs_are_found(name, tmp_path):
    """mmengine looks for a distribution called mmsegmentation.

    The maintained fork has another name.
    """
    pytest.importorskip('mmseg')
    model = "backbone=dict(_delete_=True, type='MultiScaleCPVT', arch='tiny')"
    config = write(
        tmp_path,
        f'mmseg::{name}',
        f"default_scope = 'mmseg'\nmodel = dict(pretrained=None, {model})",
    )
    cfg = read_config(config)
    assert cfg.model.type == 'EncoderDecoder'
    assert cfg.model.backbone == dict(type='MultiScaleCPVT', arch='tiny')
    plain = tmp_path / 'plain.py'
    base = f"_base_ = __import__('cpvt_backbones') and 'mmseg::{name}'\n"
    plain.write_text(base + f'model = dict(pretrained=None, {model})\n')
    program = f"""
from mmengine.config import Config
print(Config.fromfile({str(plain)!r}).model.backbone.type)
"""
    done = subprocess.run(
        [sys.executable, '-c', program], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip().endswith('MultiScaleCPVT'), done.stderr


def test_mmpretrains_configs_are_found(tmp_path):
    pytest.importorskip('mmpretrain')
    backbone = (
        "model = dict(backbone=dict(_delete_=True, type='CPVT', arch='tiny', out_type='cls_token'))"
    )
    config = write(
        tmp_path,
        'mmpretrain::deit/deit-small_4xb256_in1k.py',
        f"default_scope = 'mmpretrain'\n{backbone}",
    )
    assert read_config(config).model.backbone.type == 'CPVT'


@pytest.mark.parametrize(
    ('distribution', 'module', 'wanted'),
    [(False, True, 'mmseg'), (True, True, 'mmsegmentation'), (False, False, 'mmsegmentation')],
)
def test_the_original_mmsegmentation_is_left_alone(distribution, module, wanted, monkeypatch):
    monkeypatch.setattr(patches, 'is_installed', lambda name: distribution)
    monkeypatch.setattr('importlib.util.find_spec', lambda name: object() if module else None)
    names = dict(mmseg='mmsegmentation', mmdet='mmdet')
    patches.find_mmseg(names)
    assert names == dict(mmseg=wanted, mmdet='mmdet')


@pytest.mark.skipif(not CAMVID.is_dir(), reason=f'there is no {CAMVID.relative_to(ROOT)}')
def test_a_stock_segmentor(tmp_path):
    mmseg = pytest.importorskip('mmseg')
    stock = Path(mmseg.__file__).parent / '.mim/configs/sem_fpn/fpn_r50_4xb4-160k_ade20k-512x512.py'
    if not stock.is_file():
        pytest.skip(f'mmseg is installed without its configs: there is no {stock}')
    names = (
        'sky building pole road pavement tree sign fence car pedestrian bicyclist void'
    ).split()
    config = write(tmp_path, stock, SEGMENTOR)
    options = {
        **WORKERLESS,
        'train_dataloader.dataset.indices': 8,
        'train_dataloader.batch_size': 2,
        'train_cfg.max_iters': 2,
        'train_cfg.val_interval': 3,
        'model.decode_head.num_classes': len(names),
        'model.data_preprocessor.size': (128, 128),
        'train_dataloader.dataset.pipeline.2.scale': (480, 160),
        'train_dataloader.dataset.pipeline.3.crop_size': (128, 128),
    }
    for part in ('train', 'val', 'test'):
        dataset = f'{part}_dataloader.dataset'
        options |= {
            f'{dataset}.type': 'BaseSegDataset',
            f'{dataset}.metainfo': dict(
                classes=names, palette=[(20 * i, 0, 0) for i in range(len(names))]
            ),
            f'{dataset}.img_suffix': '.jpg',
            f'{dataset}.data_root': str(CAMVID),
            f'{dataset}.data_prefix': dict(
                img_path=f'images/{part}', seg_map_path=f'labels/{part}'
            ),
            # ADE20K alone counts its classes from 1.
            f'{dataset}.pipeline.{1 if part == "train" else 2}.reduce_zero_label': False,
        }
        if part != 'train':
            options |= {f'{dataset}.indices': 2, f'{dataset}.pipeline.1.scale': (240, 180)}
    metrics = train_and_test(config, options, 'iter_2.pth', tmp_path)
    assert 0 <= metrics['mIoU'] <= 100

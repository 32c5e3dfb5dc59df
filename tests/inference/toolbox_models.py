"""A detector, a segmentor and a classifier of a few thousand random weights, as config and
checkpoint.
"""

from pathlib import Path

import tiny
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
from mmengine.runner import save_checkpoint
from tiny import GN, ONE_BLOCK

from cpvt_backbones.analysis.complexity import build_model
from cpvt_backbones.toolboxes import find_toolbox

NORM = dict(mean=[120.0, 115.0, 100.0], std=[60.0, 60.0, 60.0])
COLOURS = [(0, 0, 0), (200, 0, 0), (0, 200, 0), (0, 0, 200)]
RESIZE = dict(type='Resize', scale=(48, 32), keep_ratio=True)


def _config(scope: str, model: dict, meta: dict, kind: str, *steps: dict, **options) -> Config:
    dataset = dict(type=kind, pipeline=[dict(type='LoadImageFromFile'), *steps], **options)
    loader = dict(test_dataloader=dict(dataset=dataset))
    return Config(dict(default_scope=scope, model=model, meta=meta, **loader))


def detector() -> Config:
    backbone = dict(type='MultiScaleCPVT', out_indices=(1, 2, 3), **ONE_BLOCK)
    parts = dict(data_preprocessor=NORM, neck=dict(norm_cfg=GN), bbox_head=dict(norm_cfg=GN))
    model = tiny.retinanet(backbone, test_cfg=dict(max_per_img=20), **parts)
    meta = dict(classes=('a', 'b', 'c'), palette=COLOURS[1:])
    keys = ('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')
    steps = RESIZE, dict(type='PackDetInputs', meta_keys=keys)
    cfg = _config('mmdet', model, meta, 'CocoDataset', *steps, metainfo=meta, test_mode=True)
    cfg.visualizer = dict(type='DetLocalVisualizer')
    return cfg


def segmentor() -> Config:
    backbone = dict(type='MultiScaleCPVT', **ONE_BLOCK)
    parts = dict(data_preprocessor=NORM, neck=dict(norm_cfg=GN))
    model = tiny.semantic_fpn(backbone, classes=4, **parts)
    meta = dict(classes=('a', 'b', 'c', 'd'), palette=COLOURS)
    steps = RESIZE, dict(type='PackSegInputs')
    cfg = _config('mmseg', model, meta, 'BaseSegDataset', *steps, metainfo=meta)
    cfg.visualizer = dict(type='SegLocalVisualizer')
    return cfg


def classifier() -> Config:
    backbone = dict(type='CPVT', with_cls_token=False, out_type='avg_featmap', **ONE_BLOCK)
    model = tiny.image_classifier(backbone, classes=2)
    preprocessor = {**model.pop('data_preprocessor'), **NORM}
    steps = dict(type='ResizeEdge', scale=32), dict(type='CenterCrop', crop_size=24)
    meta = dict(classes=('dark', 'light'))
    pack = dict(type='PackInputs')
    cfg = _config('mmpretrain', model, meta, 'CustomDataset', *steps, pack)
    cfg.data_preprocessor = preprocessor  # a separate key of mmpretrain's configs
    return cfg


CONFIGS = {'mmdet': detector, 'mmseg': segmentor, 'mmpretrain': classifier}


def write_model(scope: str, folder: Path) -> tuple[Config, Path]:
    """Config and checkpoint of a tiny model.

    Large random weights, so that outputs differ between pixels.
    """
    cfg = CONFIGS[scope]()
    find_toolbox(cfg)
    init_default_scope(scope)
    torch.manual_seed(0)
    model = build_model(cfg)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    checkpoint = folder / f'{scope}.pth'
    meta = dict(dataset_meta=cfg.meta.to_dict())
    save_checkpoint(dict(state_dict=model.state_dict(), meta=meta), str(checkpoint))
    return cfg, checkpoint

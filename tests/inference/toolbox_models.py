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


def _dataset(kind: str, *steps: dict, **options) -> dict:
    pipeline = [dict(type='LoadImageFromFile'), *steps]
    return dict(test_dataloader=dict(dataset=dict(type=kind, pipeline=pipeline, **options)))


def detector() -> Config:
    model = tiny.retinanet(
        dict(type='MultiScaleCPVT', out_indices=(1, 2, 3), **ONE_BLOCK),
        data_preprocessor=NORM,
        neck=dict(norm_cfg=GN),
        bbox_head=dict(norm_cfg=GN),
        test_cfg=dict(max_per_img=20),
    )
    meta = dict(classes=('a', 'b', 'c'), palette=[(200, 0, 0), (0, 200, 0), (0, 0, 200)])
    pack = dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'),
    )
    resize = dict(type='Resize', scale=(48, 32), keep_ratio=True)
    data = _dataset('CocoDataset', resize, pack, metainfo=meta, test_mode=True)
    return Config(
        dict(
            default_scope='mmdet',
            model=model,
            meta=meta,
            visualizer=dict(type='DetLocalVisualizer'),
            **data,
        )
    )


def segmentor() -> Config:
    model = tiny.semantic_fpn(
        dict(type='MultiScaleCPVT', **ONE_BLOCK),
        classes=4,
        data_preprocessor=NORM,
        neck=dict(norm_cfg=GN),
    )
    meta = dict(
        classes=('a', 'b', 'c', 'd'), palette=[(0, 0, 0), (200, 0, 0), (0, 200, 0), (0, 0, 200)]
    )
    resize = dict(type='Resize', scale=(48, 32), keep_ratio=True)
    data = _dataset('BaseSegDataset', resize, dict(type='PackSegInputs'), metainfo=meta)
    return Config(
        dict(
            default_scope='mmseg',
            model=model,
            meta=meta,
            visualizer=dict(type='SegLocalVisualizer'),
            **data,
        )
    )


def classifier() -> Config:
    backbone = dict(type='CPVT', with_cls_token=False, out_type='avg_featmap', **ONE_BLOCK)
    model = tiny.image_classifier(backbone, classes=2)
    preprocessor = {
        **model.pop('data_preprocessor'),
        **NORM,
    }  # a separate key of mmpretrain's configs
    crop = dict(type='CenterCrop', crop_size=24)
    return Config(
        dict(
            default_scope='mmpretrain',
            model=model,
            meta=dict(classes=('dark', 'light')),
            data_preprocessor=preprocessor,
            **_dataset(
                'CustomDataset', dict(type='ResizeEdge', scale=32), crop, dict(type='PackInputs')
            ),
        )
    )


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
    save_checkpoint(
        dict(state_dict=model.state_dict(), meta=dict(dataset_meta=cfg.meta.to_dict())),
        str(checkpoint),
    )
    return cfg, checkpoint

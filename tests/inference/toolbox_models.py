"""A detector, a segmentor and a classifier of a few thousand random weights, as config and checkpoint."""

from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
from mmengine.runner import save_checkpoint

from cpvt_backbones.analysis.complexity import build_model
from cpvt_backbones.engine.launch import find_toolbox

BACKBONE = dict(
    arch=dict(embed_dims=16, depth=1, num_heads=2, mlp_ratio=2.0),
    patch_size=8,
    position=dict(type='PEG', after_blocks=(0,)),
)
NORM = dict(mean=[120.0, 115.0, 100.0], std=[60.0, 60.0, 60.0])
GN = dict(type='GN', num_groups=4)


def _dataset(kind: str, *steps: dict, **options) -> dict:
    pipeline = [dict(type='LoadImageFromFile'), *steps]
    return dict(test_dataloader=dict(dataset=dict(type=kind, pipeline=pipeline, **options)))


def detector() -> Config:
    model = dict(
        type='RetinaNet',
        data_preprocessor=dict(type='DetDataPreprocessor', bgr_to_rgb=True, pad_size_divisor=1, **NORM),
        backbone=dict(type='MultiScaleCPVT', out_indices=(1, 2, 3), **BACKBONE),
        neck=dict(type='FPN', in_channels=[16, 16, 16], out_channels=16, num_outs=3, norm_cfg=GN),
        bbox_head=dict(
            type='RetinaHead',
            num_classes=3,
            in_channels=16,
            feat_channels=16,
            stacked_convs=1,
            norm_cfg=GN,
            anchor_generator=dict(
                type='AnchorGenerator', octave_base_scale=4, scales_per_octave=1, ratios=[1.0], strides=[8, 16, 32]
            ),
        ),
        test_cfg=dict(nms_pre=100, score_thr=0.0, nms=dict(type='nms', iou_threshold=0.5), max_per_img=20),
    )
    meta = dict(classes=('a', 'b', 'c'), palette=[(200, 0, 0), (0, 200, 0), (0, 0, 200)])
    pack = dict(type='PackDetInputs', meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'))
    resize = dict(type='Resize', scale=(48, 32), keep_ratio=True)
    data = _dataset('CocoDataset', resize, pack, metainfo=meta, test_mode=True)
    return Config(
        dict(default_scope='mmdet', model=model, meta=meta, visualizer=dict(type='DetLocalVisualizer'), **data)
    )


def segmentor() -> Config:
    model = dict(
        type='EncoderDecoder',
        data_preprocessor=dict(type='SegDataPreProcessor', bgr_to_rgb=True, size_divisor=1, **NORM),
        backbone=dict(type='MultiScaleCPVT', **BACKBONE),
        neck=dict(type='FPN', in_channels=[8, 16, 16, 16], out_channels=16, num_outs=4, norm_cfg=GN),
        decode_head=dict(
            type='FPNHead',
            in_channels=[16] * 4,
            in_index=[0, 1, 2, 3],
            feature_strides=[4, 8, 16, 32],
            channels=16,
            num_classes=4,
            norm_cfg=GN,
            align_corners=False,
        ),
        train_cfg=dict(),
        test_cfg=dict(mode='whole'),
    )
    meta = dict(classes=('a', 'b', 'c', 'd'), palette=[(0, 0, 0), (200, 0, 0), (0, 200, 0), (0, 0, 200)])
    resize = dict(type='Resize', scale=(48, 32), keep_ratio=True)
    data = _dataset('BaseSegDataset', resize, dict(type='PackSegInputs'), metainfo=meta)
    return Config(
        dict(default_scope='mmseg', model=model, meta=meta, visualizer=dict(type='SegLocalVisualizer'), **data)
    )


def classifier() -> Config:
    model = dict(
        type='ImageClassifier',
        backbone=dict(type='CPVT', with_cls_token=False, out_type='avg_featmap', **BACKBONE),
        head=dict(type='LinearClsHead', num_classes=2, in_channels=16),
    )
    crop = dict(type='CenterCrop', crop_size=24)
    return Config(
        dict(
            default_scope='mmpretrain',
            model=model,
            meta=dict(classes=('dark', 'light')),
            data_preprocessor=dict(num_classes=2, to_rgb=True, **NORM),
            **_dataset('CustomDataset', dict(type='ResizeEdge', scale=32), crop, dict(type='PackInputs')),
        )
    )


CONFIGS = {'mmdet': detector, 'mmseg': segmentor, 'mmpretrain': classifier}


def write_model(scope: str, folder: Path) -> tuple[Config, Path]:
    """Config and checkpoint of a tiny model; weights are spread, so that its answers differ from pixel to pixel."""
    cfg = CONFIGS[scope]()
    find_toolbox(cfg)
    init_default_scope(scope)
    torch.manual_seed(0)
    model = build_model(cfg)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    checkpoint = folder / f'{scope}.pth'
    save_checkpoint(dict(state_dict=model.state_dict(), meta=dict(dataset_meta=cfg.meta.to_dict())), str(checkpoint))
    return cfg, checkpoint

"""Small test sets and models of a few thousand weights."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from PIL import Image

from cpvt_backbones.analysis.complexity import build_model
from cpvt_backbones.toolboxes import read_config

ROOT = Path(__file__).resolve().parents[2]
CLASSES = dict(classes=('a', 'b', 'c'), palette=[(0, 0, 0), (9, 9, 9), (99, 99, 99)])
BACKBONE = dict(
    type='CPVT',
    arch=dict(embed_dims=16, depth=2, num_heads=2, mlp_ratio=2),
    patch_size=8,
    with_cls_token=False,
    position=dict(type='PEG', after_blocks=(0,)),
)
LOAD = dict(type='LoadImageFromFile')
PIXELS = dict(mean=[127.5] * 3, std=[60.0] * 3)


def picture(index, height, width):
    """Stripes of a pitch and direction that depend on the index."""
    y, x = np.mgrid[:height, :width]
    wave = np.sin((x if index % 2 else y) / (1.5 + index))
    rng = np.random.default_rng(index)
    return (
        (127 + 90 * wave[..., None] + rng.normal(0, 20, (height, width, 3)))
        .clip(0, 255)
        .astype(np.uint8)
    )


def segmentation(root, count=6):
    for folder in ('images', 'labels'):
        (root / folder).mkdir()
    for index in range(count):
        pixels = picture(index, 33 + index, 50)
        Image.fromarray(pixels).save(root / 'images' / f'{index}.png')
        Image.fromarray((pixels[..., 0] // 86).astype(np.uint8)).save(
            root / 'labels' / f'{index}.png'
        )
    dataset = dict(
        type='BaseSegDataset',
        data_root=str(root),
        img_suffix='.png',
        data_prefix=dict(img_path='images', seg_map_path='labels'),
        metainfo=CLASSES,
        pipeline=[LOAD, dict(type='LoadAnnotations'), dict(type='PackSegInputs')],
    )
    head = dict(
        type='FCNHead',
        in_channels=16,
        channels=16,
        num_convs=0,
        concat_input=False,
        num_classes=3,
        in_index=0,
    )
    return dict(
        default_scope='mmseg',
        model=dict(
            type='EncoderDecoder',
            data_preprocessor=dict(type='SegDataPreProcessor', bgr_to_rgb=True, **PIXELS),
            backbone=BACKBONE,
            decode_head=head,
            test_cfg=dict(mode='whole'),
        ),
        test_dataloader=dict(dataset=dataset),
        test_evaluator=dict(type='IoUMetric', iou_metrics=['mIoU']),
    )


def classification(root, count=6):
    for index in range(count):
        folder = root / 'abc'[index % 3]
        folder.mkdir(exist_ok=True)
        Image.fromarray(picture(index, 40, 44 + index)).save(folder / f'{index}.png')
    steps = [
        LOAD,
        dict(type='ResizeEdge', scale=36),
        dict(type='CenterCrop', crop_size=32),
        dict(type='PackInputs'),
    ]
    return dict(
        default_scope='mmpretrain',
        model=dict(
            type='ImageClassifier',
            backbone=dict(**BACKBONE, out_type='avg_featmap'),
            head=dict(type='LinearClsHead', num_classes=3, in_channels=16),
        ),
        data_preprocessor=dict(to_rgb=True, num_classes=3, **PIXELS),
        test_dataloader=dict(
            batch_size=2,
            collate_fn=dict(type='default_collate'),
            dataset=dict(
                type='CustomDataset', data_root=str(root), classes=['a', 'b', 'c'], pipeline=steps
            ),
        ),
        test_evaluator=dict(type='Accuracy', topk=1),
    )


def detection(root, count=6):
    images, annotations = [], []
    for index in range(count):
        Image.fromarray(picture(index, 48, 64)).save(root / f'{index}.png')
        images.append(dict(id=index, file_name=f'{index}.png', height=48, width=64))
        box = [4 + index, 6, 20, 24]
        annotations.append(
            dict(id=index + 1, image_id=index, category_id=index % 3, bbox=box, area=480, iscrowd=0)
        )
    names = [dict(id=i, name=name) for i, name in enumerate('abc')]
    truth = root / 'truth.json'
    truth.write_text(json.dumps(dict(images=images, annotations=annotations, categories=names)))
    steps = [
        LOAD,
        dict(type='Resize', scale=(64, 48), keep_ratio=True),
        dict(type='LoadAnnotations', with_bbox=True),
        dict(
            type='PackDetInputs',
            meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'),
        ),
    ]
    head = dict(
        type='RetinaHead',
        num_classes=3,
        in_channels=16,
        feat_channels=8,
        stacked_convs=1,
        anchor_generator=dict(
            type='AnchorGenerator',
            octave_base_scale=2,
            scales_per_octave=1,
            ratios=[1.0],
            strides=[8],
        ),
        bbox_coder=dict(type='DeltaXYWHBBoxCoder'),
        loss_bbox=dict(type='L1Loss'),
    )
    return dict(
        default_scope='mmdet',
        model=dict(
            type='RetinaNet',
            data_preprocessor=dict(
                type='DetDataPreprocessor', bgr_to_rgb=True, pad_size_divisor=8, **PIXELS
            ),
            backbone=BACKBONE,
            neck=dict(type='FPN', in_channels=[16], out_channels=16, num_outs=1),
            bbox_head=head,
            test_cfg=dict(
                nms_pre=100, score_thr=0.0, nms=dict(type='nms', iou_threshold=0.5), max_per_img=30
            ),
        ),
        test_dataloader=dict(
            dataset=dict(
                type='CocoDataset',
                data_root=str(root),
                ann_file='truth.json',
                data_prefix=dict(img=''),
                metainfo=CLASSES,
                test_mode=True,
                pipeline=steps,
            )
        ),
        test_evaluator=dict(type='CocoMetric', ann_file=str(truth), metric='bbox'),
    )


TASKS = {'mmdet': detection, 'mmseg': segmentation, 'mmpretrain': classification}


@pytest.fixture
def unformatted_configs(monkeypatch):
    """Formatting a config takes longer than running a tiny model."""
    monkeypatch.setattr(Config, 'pretty_text', property(lambda self: str(self._cfg_dict.to_dict())))


@pytest.fixture
def trained(tmp_path, unformatted_configs):
    """``trained('mmseg')``: a config file and a checkpoint with predictions that depend on the
    image.
    """

    def build(scope, name='model'):
        pytest.importorskip(scope)
        folder = tmp_path / name
        folder.mkdir()
        described = TASKS[scope](folder)
        loader = dict(
            batch_size=1, num_workers=0, sampler=dict(type='DefaultSampler', shuffle=False)
        )
        described['test_dataloader'] = {**loader, **described['test_dataloader']}
        described |= dict(
            custom_imports=dict(imports=['cpvt_backbones']), test_cfg=dict(), log_level='ERROR'
        )
        path = tmp_path / f'{name}.py'
        path.write_text('\n'.join(f'{key} = {value!r}' for key, value in described.items()))
        torch.manual_seed(0)
        model = build_model(read_config(path, work_dir=tmp_path / 'work'))
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, parameter[0].numel() ** -0.5)
                elif parameter_name.endswith('cls.bias'):
                    parameter.zero_()  # high scores for half of the anchors
        torch.save(dict(state_dict=model.state_dict()), tmp_path / f'{name}.pth')
        return path, tmp_path / f'{name}.pth'

    return build


@pytest.fixture
def segmentation_config(tmp_path):
    """Config of a segmentor, as a dict, and its test set."""
    (tmp_path / 'data').mkdir()
    return segmentation(tmp_path / 'data')

"""Small test sets and models of a few thousand weights."""

import json

import numpy as np
import pytest
import tiny
import torch
from mmengine.config import Config
from PIL import Image

from cpvt_backbones.analysis.complexity import build_model
from cpvt_backbones.toolboxes import read_config

CLASSES = dict(classes=('a', 'b', 'c'), palette=[(0, 0, 0), (9, 9, 9), (99, 99, 99)])
ARCH = dict(embed_dims=16, depth=2, num_heads=2, mlp_ratio=2)
BACKBONE = dict(type='CPVT', arch=ARCH, patch_size=8, with_cls_token=False, position=tiny.PEG)
LOAD = dict(type='LoadImageFromFile')
PIXELS = dict(mean=[127.5] * 3, std=[60.0] * 3)
COUNT = 6


def picture(index, height, width):
    """Stripes of a pitch and direction that depend on the index."""
    y, x = np.mgrid[:height, :width]
    wave = np.sin((x if index % 2 else y) / (1.5 + index))[..., None]
    noise = np.random.default_rng(index).normal(0, 20, (height, width, 3))
    return (127 + 90 * wave + noise).clip(0, 255).astype(np.uint8)


PADDING = dict(size_divisor=8)


def segmentation(root):
    """Config of a segmentor and its test set, written to the folder."""
    for folder in ('images', 'labels'):
        (root / folder).mkdir(parents=True)
    for index in range(COUNT):
        pixels = picture(index, 33 + index, 50)
        Image.fromarray(pixels).save(root / f'images/{index}.png')
        labels = (pixels[..., 0] // 86).astype(np.uint8)
        Image.fromarray(labels).save(root / f'labels/{index}.png')
    dataset = dict(
        type='BaseSegDataset',
        data_root=str(root),
        img_suffix='.png',
        data_prefix=dict(img_path='images', seg_map_path='labels'),
        metainfo=CLASSES,
        pipeline=[LOAD, dict(type='LoadAnnotations'), dict(type='PackSegInputs')],
    )
    return dict(
        default_scope='mmseg',
        model=tiny.semantic_fpn(BACKBONE, data_preprocessor=dict(test_cfg=PADDING, **PIXELS)),
        test_dataloader=dict(dataset=dataset),
        test_evaluator=dict(type='IoUMetric', iou_metrics=['mIoU']),
    )


def classification(root):
    for index in range(COUNT):
        folder = root / 'abc'[index % 3]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(index, 40, 44 + index)).save(folder / f'{index}.png')
    resize = [dict(type='ResizeEdge', scale=36), dict(type='CenterCrop', crop_size=32)]
    pipeline = [LOAD, *resize, dict(type='PackInputs')]
    dataset = dict(type='CustomDataset', data_root=str(root), classes=[*'abc'], pipeline=pipeline)
    collate = dict(type='default_collate')
    model = tiny.image_classifier({**BACKBONE, 'out_type': 'avg_featmap'})
    model['data_preprocessor'].update(PIXELS)
    return dict(
        default_scope='mmpretrain',
        data_preprocessor=model.pop('data_preprocessor'),
        model=model,
        test_dataloader=dict(batch_size=2, collate_fn=collate, dataset=dataset),
        test_evaluator=dict(type='Accuracy', topk=1),
    )


def detection(root):
    root.mkdir()
    images, annotations = [], []
    for index in range(COUNT):
        Image.fromarray(picture(index, 48, 64)).save(root / f'{index}.png')
        images.append(dict(id=index, file_name=f'{index}.png', height=48, width=64))
        one = dict(id=index + 1, image_id=index, category_id=index % 3, area=480, iscrowd=0)
        annotations.append(dict(one, bbox=[4 + index, 6, 20, 24]))
    names = [dict(id=i, name=name) for i, name in enumerate('abc')]
    truth = root / 'truth.json'
    truth.write_text(json.dumps(dict(images=images, annotations=annotations, categories=names)))
    keys = ('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')
    resize = dict(type='Resize', scale=(64, 48), keep_ratio=True)
    labels, pack = dict(type='LoadAnnotations', with_bbox=True), dict(type='PackDetInputs')
    dataset = dict(
        type='CocoDataset',
        data_root=str(root),
        ann_file='truth.json',
        data_prefix=dict(img=''),
        metainfo=CLASSES,
        test_mode=True,
        pipeline=[LOAD, resize, labels, dict(pack, meta_keys=keys)],
    )
    model = tiny.retinanet(BACKBONE, data_preprocessor=dict(pad_size_divisor=8, **PIXELS))
    model['bbox_head']['feat_channels'] = 8
    model['bbox_head']['anchor_generator']['octave_base_scale'] = 2
    return dict(
        default_scope='mmdet',
        model=model,
        test_dataloader=dict(dataset=dataset),
        test_evaluator=dict(type='CocoMetric', ann_file=str(truth), metric='bbox'),
    )


TASKS = {'mmdet': detection, 'mmseg': segmentation, 'mmpretrain': classification}


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """``trained('mmseg')``: a config file and a checkpoint with predictions that depend on the
    image.
    """
    # Formatting a config takes longer than running a tiny model.
    monkeypatch.setattr(Config, 'pretty_text', property(lambda self: str(self._cfg_dict.to_dict())))

    def build(scope, name='model'):
        pytest.importorskip(scope)
        described = TASKS[scope](tmp_path / name)
        sampler = dict(type='DefaultSampler', shuffle=False)
        loader = dict(batch_size=1, num_workers=0, sampler=sampler)
        described['test_dataloader'] = {**loader, **described['test_dataloader']}
        described['custom_imports'] = dict(imports=['cpvt_backbones'])
        described |= dict(test_cfg=dict(), log_level='ERROR')
        path, checkpoint = tmp_path / f'{name}.py', tmp_path / f'{name}.pth'
        path.write_text('\n'.join(f'{key} = {value!r}' for key, value in described.items()))
        torch.manual_seed(0)
        model = build_model(read_config(path, work_dir=tmp_path / 'work'))
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, parameter[0].numel() ** -0.5)
                elif parameter_name.endswith('cls.bias'):
                    parameter.zero_()  # high scores for half of the anchors
        torch.save(dict(state_dict=model.state_dict()), checkpoint)
        return path, checkpoint

    return build

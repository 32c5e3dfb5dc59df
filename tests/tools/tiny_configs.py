"""A tiny config of each toolbox, and tiny models of it."""

import argparse
from pathlib import Path

import torch
from mmengine.config import DictAction
from PIL import Image

from cpvt_backbones.analysis.complexity import build_model
from cpvt_backbones.toolboxes import read_config

ROOT = Path(__file__).resolve().parents[2]
TINY = [
    'model.backbone.arch.embed_dims=16',
    'model.backbone.arch.depth=1',
    'model.backbone.position.after_blocks=(0,)',
    'train_cfg.max_iters=2',
    'train_cfg.val_interval=2',
    'default_hooks.checkpoint.interval=1',
    'train_dataloader.batch_size=2',
]
# Loaders in this process: two more for each of the test's processes would share its core.
WORKERLESS = [
    f'{part}_dataloader.{option}'
    for part in ('train', 'val', 'test')
    for option in ('num_workers=0', 'persistent_workers=False')
]
CLASSIFIER = """
custom_imports = dict(imports=['cpvt_backbones'])
default_scope = 'mmpretrain'
arch = dict(embed_dims=16, depth=1, num_heads=2, mlp_ratio=2)
position = dict(type='PEG', after_blocks=(0,))
model = dict(
    type='ImageClassifier',
    backbone=dict(type='CPVT', arch=arch, patch_size=8, with_cls_token=False,
                  out_type='avg_featmap', position=position),
    head=dict(type='LinearClsHead', num_classes=2, in_channels=16,
              loss=dict(type='CrossEntropyLoss')))
data_preprocessor = dict(mean=[127.5] * 3, std=[127.5] * 3, to_rgb=True, num_classes=2)
loader = dict(batch_size=2, num_workers=0, collate_fn=dict(type='default_collate'))
data = dict(type='CustomDataset', data_root=r'{root}', classes=['dark', 'light'])
load, pack = dict(type='LoadImageFromFile'), dict(type='PackInputs')
crop = dict(type='CenterCrop', crop_size=24)
train_dataloader = dict(
    **loader, sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(**data, pipeline=[load, dict(type='RandomCrop', crop_size=24), pack]))
val_dataloader = dict(
    **loader, sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(**data, pipeline=[load, dict(type='ResizeEdge', scale=32), crop, pack]))
test_dataloader = val_dataloader
val_evaluator = test_evaluator = dict(type='Accuracy', topk=1)
optim_wrapper = dict(optimizer=dict(type='AdamW', lr=1e-3))
train_cfg = dict(type='IterBasedTrainLoop', max_iters=2, val_interval=2)
val_cfg, test_cfg = dict(), dict()
default_hooks = dict(checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=1))
log_processor = dict(by_epoch=False)
visualizer = dict(type='UniversalVisualizer', vis_backends=[dict(type='LocalVisBackend')])
"""


def dense(name, scenes, channels, *options):
    """A demo config and options that make it tiny and read the scenes."""
    options = [*TINY, *WORKERLESS, f'model.neck.in_channels={channels}', *options]
    options.append(f'train_dataloader.dataset.data_root={scenes / "train_48x64"}')
    for part in ('val', 'test'):
        options.append(f'{part}_dataloader.dataset.data_root={scenes / "heldout_37x61"}')
    return ROOT / f'configs/demo/{name}_multiscale-cpvt_digits.py', options


def detection(scenes, folder):
    truth = scenes / 'heldout_37x61/instances.json'
    evaluators = [f'{part}_evaluator.ann_file={truth}' for part in ('val', 'test')]
    options = ['model.test_cfg.score_thr=0.0', *evaluators]
    return dense('retinanet', scenes, '[16,16,16]', *options)


def segmentation(scenes, folder):
    return dense('semantic-fpn', scenes, '[8,16,16,16]')


def classification(scenes, folder):
    for name, level in (('dark', 40), ('light', 200)):
        (folder / 'images' / name).mkdir(parents=True)
        for i in range(2):
            image = Image.new('RGB', (30 + i, 27), (level, level, level))
            image.save(folder / 'images' / name / f'{i}.png')
    config = folder / 'classifier.py'
    config.write_text(CLASSIFIER.replace('{root}', str(folder / 'images')))
    return config, ['log_level=INFO']


TASKS = {'mmdet': detection, 'mmseg': segmentation, 'mmpretrain': classification}


def parsed(options):
    parser = argparse.ArgumentParser()
    parser.add_argument('--cfg-options', nargs='+', action=DictAction)
    return parser.parse_args(['--cfg-options', *options]).cfg_options


def lively_model(config, options=('log_level=INFO',)):
    """Model of a config, with weights that make its predictions depend on the image."""
    torch.manual_seed(0)
    model = build_model(read_config(config, cfg_options=parsed(options)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, parameter[0].numel() ** -0.5)
            elif name.endswith('cls.bias'):
                parameter.zero_()  # half of RetinaNet's anchors are sure of something
            elif name.endswith('conv_seg.bias'):
                parameter[0] = 2.0  # a good part of each picture is background
    return model


def save(model, path, **more):
    torch.save(dict(state_dict=model.state_dict(), **more), path)
    return path

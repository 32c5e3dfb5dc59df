# PyramidCPVT-Tiny beside its peers: the leaves that inherit from this file change the backbone and
# nothing else.
_base_ = [
    '../_base_/models/retinanet.py',
    '../_base_/datasets/bccd.py',
    '../_base_/schedules/adamw.py',
    '../_base_/runtime/mmdet.py',
]
# GroupNorm in neck and head: faster training from random weights, at any batch size.
norm_cfg = dict(type='GN', num_groups=32)
model = dict(
    backbone=dict(type='PyramidCPVT', arch='tiny', drop_path_rate=0.1, out_indices=(1, 2, 3)),
    neck=dict(
        in_channels=[128, 320, 512],
        out_channels=96,
        num_outs=3,
        add_extra_convs=False,
        norm_cfg=norm_cfg,
    ),
    bbox_head=dict(
        num_classes=3,
        in_channels=96,
        feat_channels=96,
        stacked_convs=2,
        norm_cfg=norm_cfg,
        # Boxes are nearly square, 14 to 125 px at half size: 8 * 2 = 16 px to 32 * 2 * 2 ** (2 / 3)
        # = 102 px.
        anchor_generator=dict(octave_base_scale=2, ratios=[0.8, 1.25], strides=[8, 16, 32]),
    ),
)
# 450 iterations * 4 images: 9 times through the 205 images.
max_iters = 450
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=max_iters)
optim_wrapper = dict(optimizer=dict(lr=5e-4))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=100),
    dict(
        type='CosineAnnealingLR',
        T_max=max_iters - 100,
        eta_min=1e-5,
        by_epoch=False,
        begin=100,
        end=max_iters,
    ),
]
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=150))
log_processor = dict(by_epoch=False)
randomness = dict(seed=0)

# PyramidCPVT-Tiny beside its peers: the leaves that inherit from this file change the backbone and
# nothing else.
_base_ = [
    '../_base_/models/semantic_fpn.py',
    '../_base_/datasets/camvid.py',
    '../_base_/schedules/adamw.py',
    '../_base_/runtime/mmseg.py',
]
# GroupNorm in the neck: faster training from random weights, at any batch size.
norm_cfg = dict(type='GN', num_groups=32)
model = dict(
    data_preprocessor=dict(seg_pad_val={{_base_.void}}),
    backbone=dict(type='PyramidCPVT', arch='tiny', drop_path_rate=0.1),
    neck=dict(in_channels=[64, 128, 320, 512], out_channels=96, norm_cfg=norm_cfg),
    decode_head=dict(
        in_channels=[96, 96, 96, 96], channels=64, num_classes=11, ignore_index={{_base_.void}}
    ),
)
# 400 iterations * 4 crops: 4.4 times through the 367 images.
max_iters = 400
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
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=100))
randomness = dict(seed=0)

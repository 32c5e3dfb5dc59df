_base_ = [
    '../_base_/models/semantic_fpn.py',
    '../_base_/datasets/camvid.py',
    '../_base_/schedules/adamw.py',
    '../_base_/runtime/mmseg.py',
]
# From random weights, a normalised neck learns faster; GroupNorm does so at any batch size.
norm_cfg = dict(type='GN', num_groups=32)
model = dict(
    data_preprocessor=dict(seg_pad_val={{_base_.void}}),
    backbone=dict(
        type='MultiScaleCPVT',
        arch=dict(embed_dims=128, depth=6, num_heads=4, mlp_ratio=4),
        patch_size=8,
        position=dict(type='PEG', after_blocks=(0, 1, 2, 3, 4, 5), kernel_size=3),
        # 320 x 256 px are 40 x 32 tokens: 20 windows of 8 x 8, and every third block sees all.
        window_size=8,
        global_blocks=(2, 5),
        drop_path_rate=0.05,
    ),
    # Stride 4 is the column's map of stride 8 (patch 8) upsampled once, which halves its width.
    neck=dict(in_channels=[64, 128, 128, 128], out_channels=96, norm_cfg=norm_cfg),
    decode_head=dict(in_channels=[96, 96, 96, 96], channels=64, num_classes=11, ignore_index={{_base_.void}}),
)
# 600 iterations * 4 crops: 7 times through the 367 images.
max_iters = 600
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=max_iters)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=100),
    dict(type='CosineAnnealingLR', T_max=max_iters - 100, eta_min=1e-5, by_epoch=False, begin=100, end=max_iters),
]
default_hooks = dict(checkpoint=dict(interval=200))
randomness = dict(seed=0)

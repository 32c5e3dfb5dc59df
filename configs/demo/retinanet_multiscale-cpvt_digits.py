_base_ = [
    '../_base_/models/retinanet.py',
    '../_base_/datasets/digits_detection.py',
    '../_base_/schedules/adamw.py',
    '../_base_/runtime/mmdet.py',
]
# GroupNorm in neck and head: faster training from random weights, at any batch size.
norm_cfg = dict(type='GN', num_groups=32)
model = dict(
    backbone=dict(
        type='MultiScaleCPVT',
        arch=dict(embed_dims=128, depth=6, num_heads=4, mlp_ratio=4),
        patch_size=8,
        position=dict(type='PEG', after_blocks=(0, 1, 2, 3, 4, 5), kernel_size=3),
        out_indices=(1, 2, 3),
    ),
    # Stride 8 is the plain ViT's own map (patch 8); 16 and 32 are pooled from it. All are as
    # wide as the ViT.
    neck=dict(
        in_channels=[128, 128, 128],
        out_channels=96,
        num_outs=3,
        add_extra_convs=False,
        norm_cfg=norm_cfg,
    ),
    bbox_head=dict(
        num_classes=10,
        in_channels=96,
        feat_channels=96,
        stacked_convs=2,
        norm_cfg=norm_cfg,
        # Digits are 17 to 47 px (square root of their box's area): 8 * 2.25 = 18 px and up. One
        # ratio covers them.
        anchor_generator=dict(octave_base_scale=2.25, ratios=[1.65], strides=[8, 16, 32]),
    ),
    # 5 digits per 128 x 128 px are 200 at 1024 x 640.
    test_cfg=dict(max_per_img=400),
)
# 700 iterations * 8 images: 1.4 times through the 4,000 scenes.
max_iters = 700
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=max_iters)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(
        type='CosineAnnealingLR',
        T_max=max_iters - 50,
        eta_min=1e-5,
        by_epoch=False,
        begin=50,
        end=max_iters,
    ),
]
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=100), logger=dict(interval=10))
log_processor = dict(by_epoch=False)
randomness = dict(seed=0)

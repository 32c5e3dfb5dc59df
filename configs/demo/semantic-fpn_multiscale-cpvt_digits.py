_base_ = [
    '../_base_/models/semantic_fpn.py',
    '../_base_/datasets/digits_segmentation.py',
    '../_base_/schedules/adamw.py',
    '../_base_/runtime/mmseg.py',
]
# GroupNorm in the neck: faster training from random weights, at any batch size.
norm_cfg = dict(type='GN', num_groups=32)
model = dict(
    backbone=dict(
        type='MultiScaleCPVT',
        arch=dict(embed_dims=128, depth=6, num_heads=4, mlp_ratio=4),
        patch_size=8,
        position=dict(type='PEG', after_blocks=(0, 1, 2, 3, 4, 5), kernel_size=3),
    ),
    # Stride 4 is the plain ViT's map of stride 8 upsampled once, which halves its width.
    neck=dict(in_channels=[64, 128, 128, 128], out_channels=64, norm_cfg=norm_cfg),
    decode_head=dict(
        in_channels=[64, 64, 64, 64],
        channels=64,
        num_classes=11,
        # Nine pixels of ten are background.
        loss_decode=dict(class_weight=[0.3] + [1.0] * 10),
    ),
)
# 1200 iterations * 4 images: 1.2 times through the 4,000 scenes. Many small steps leave the first
# plateau sooner.
train_dataloader = dict(batch_size=4)
max_iters = 1200
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
default_hooks = dict(checkpoint=dict(interval=100), logger=dict(interval=10))
randomness = dict(seed=0)

# A smaller plain ViT for this data, trained for longer at twice the rate.
_base_ = './semantic-fpn_pyramid-cpvt-t_camvid.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='MultiScaleCPVT',
        arch=dict(embed_dims=128, depth=6, num_heads=4, mlp_ratio=4),
        patch_size=8,
        position=dict(type='PEG', after_blocks=(0, 1, 2, 3, 4, 5), kernel_size=3),
        # 320 x 256 px are 40 x 32 tokens: 20 windows of 8 x 8; every third block attends to all
        # tokens.
        window_size=8,
        global_blocks=(2, 5),
        drop_path_rate=0.05,
    ),
    # Stride 4 is the plain ViT's map of stride 8 upsampled once, which halves its width.
    neck=dict(in_channels=[64, 128, 128, 128]),
)
# 600 iterations * 4 crops: 7 times through the 367 images.
max_iters = 600
train_cfg = dict(max_iters=max_iters, val_interval=max_iters)
optim_wrapper = dict(optimizer=dict(lr=1e-3))
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
default_hooks = dict(checkpoint=dict(interval=200))

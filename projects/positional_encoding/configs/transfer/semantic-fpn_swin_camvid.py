# A Swin of half Swin-T's width, with two blocks a stage, from random weights, with the recipe of
# the other segmentors.
_base_ = '../../../../configs/camvid/semantic-fpn_pyramid-cpvt-t_camvid.py'
backbone = dict(
    type='mmseg.SwinTransformer',
    embed_dims=48,
    depths=(2, 2, 2, 2),
    num_heads=(2, 4, 8, 16),
    drop_path_rate=0.1,
)
model = dict(backbone=dict(_delete_=True, **backbone), neck=dict(in_channels=[48, 96, 192, 384]))
# 240 iterations * 4 images: 2.6 times through the 367 images.
max_iters = 240
train_cfg = dict(max_iters=max_iters, val_interval=max_iters)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=60),
    dict(
        type='CosineAnnealingLR',
        T_max=max_iters - 60,
        eta_min=1e-5,
        by_epoch=False,
        begin=60,
        end=max_iters,
    ),
]

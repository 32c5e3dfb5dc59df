# CPVT-Ti-GAP from the weights that come with the package; a narrow neck, so that the whole fits into 12 MB.
_base_ = './retinanet_pyramid-cpvt-t_bccd.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='MultiScaleCPVT',
        arch='tiny',
        drop_path_rate=0.1,
        position=dict(type='PEG', after_blocks=(0, 1, 2, 3, 4)),
        out_indices=(1, 2, 3),
        init_cfg=dict(type='Pretrained', checkpoint='cpvt_tiny_gap-imagenette'),
    ),
    # ViTDet's widths: strides 8 (upsampled once, half as wide), 16 and 32.
    neck=dict(in_channels=[96, 192, 192], out_channels=64),
    bbox_head=dict(in_channels=64, feat_channels=64),
)
# 1,200 iterations * 4 images: 23 times through the 205 images.
max_iters = 1200
train_cfg = dict(max_iters=max_iters, val_interval=max_iters)
optim_wrapper = dict(optimizer=dict(lr=1e-3))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=100),
    dict(type='CosineAnnealingLR', T_max=max_iters - 100, eta_min=1e-5, by_epoch=False, begin=100, end=max_iters),
]

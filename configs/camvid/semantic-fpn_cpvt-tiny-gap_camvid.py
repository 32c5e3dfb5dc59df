# CPVT-Ti-GAP from the shipped weights. The neck is narrow, to keep the checkpoint within 12 MB.
_base_ = './semantic-fpn_pyramid-cpvt-t_camvid.py'
norm_cfg = dict(type='GN', num_groups=16)
model = dict(
    backbone=dict(
        _delete_=True,
        type='MultiScaleCPVT',
        arch='tiny',
        drop_path_rate=0.1,
        position=dict(type='PEG', after_blocks=(0, 1, 2, 3, 4)),
        init_cfg=dict(type='Pretrained', checkpoint='cpvt_tiny_gap-imagenette'),
    ),
    # ViTDet's widths: strides 4 and 8 are upsampled, halving the width each time.
    neck=dict(in_channels=[48, 96, 192, 192], out_channels=48, norm_cfg=norm_cfg),
    decode_head=dict(in_channels=[48, 48, 48, 48], channels=48, norm_cfg=norm_cfg),
)
# 2,400 iterations * 4 crops: 26 times through the 367 images.
max_iters = 2400
train_cfg = dict(max_iters=max_iters, val_interval=max_iters)
optim_wrapper = dict(optimizer=dict(lr=1e-3))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=200),
    dict(type='CosineAnnealingLR', T_max=max_iters - 200, eta_min=1e-5, by_epoch=False, begin=200, end=max_iters),
]

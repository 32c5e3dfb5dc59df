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
    # The root of 1 / ln(1.02 + p) of a class with the share p of the training pixels (ENet, arXiv
    # 1606.02147), mean 1.
    decode_head=dict(
        in_channels=[48, 48, 48, 48],
        channels=48,
        norm_cfg=norm_cfg,
        loss_decode=dict(
            class_weight=[0.56, 0.49, 1.37, 0.43, 0.93, 0.70, 1.33, 1.34, 0.85, 1.46, 1.56]
        ),
    ),
)
train_pipeline = _base_.train_pipeline
train_pipeline[2]['ratio_range'] = (0.5, 2.0)
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
# 4,000 iterations * 4 crops: 44 times through the 367 images. The average of the weights is saved.
max_iters = 4000
train_cfg = dict(max_iters=max_iters, val_interval=max_iters // 2)
default_hooks = dict(checkpoint=dict(interval=500, save_best='mIoU'))
custom_hooks = [dict(type='WarmupEMAHook', momentum=1e-3)]
# The pretrained blocks learn more slowly than the neck, the first ones most.
optim_wrapper = dict(
    constructor='LayerDecayOptimWrapperConstructor',
    optimizer=dict(lr=1e-3),
    paramwise_cfg=dict(layer_decay_rate=0.85),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=300),
    dict(
        type='CosineAnnealingLR',
        T_max=max_iters - 300,
        eta_min=1e-5,
        by_epoch=False,
        begin=300,
        end=max_iters,
    ),
]

# CPVT-Ti-GAP from the shipped weights, trained at half to twice the scale. A narrow neck keeps the
# file below 12 MB.
_base_ = './retinanet_pyramid-cpvt-t_bccd.py'
custom_imports = dict(imports=['cpvt_backbones'])
model = dict(
    # A batch mixes images of 160 x 120 to 320 x 240 px. The backbone ignores the padding, as if
    # each came alone.
    data_preprocessor=dict(type='ValidSizesDetDataPreprocessor'),
    backbone=dict(
        _delete_=True,
        type='MultiScaleCPVT',
        arch='tiny',
        drop_path_rate=0.1,
        position=dict(type='PEG', after_blocks=(0, 1, 2, 3, 4)),
        out_indices=(1, 2, 3),
        init_cfg=dict(type='Pretrained', checkpoint='cpvt_tiny_gap-imagenette'),
    ),
    # ViTDet's widths: strides 8 (upsampled once, half as wide), 16 and 32; stride 64 is pooled from
    # the last.
    neck=dict(in_channels=[96, 192, 192], out_channels=64, num_outs=4),
    # At twice the scale the largest boxes are 250 px: 8 * 2 = 16 px to 64 * 2 * 2 ** (2 / 3) = 203
    # px.
    bbox_head=dict(
        in_channels=64,
        feat_channels=64,
        anchor_generator=dict(strides=[8, 16, 32, 64]),
        reg_decoded_bbox=True,
        loss_bbox=dict(_delete_=True, type='GIoULoss', loss_weight=2.0),
    ),
    test_cfg=dict(nms=dict(iou_threshold=0.55)),  # chosen on the validation images
)
train_pipeline = _base_.train_pipeline
train_pipeline[2].ratio_range = (0.5, 2.0)
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
# 4,000 iterations * 4 crops: 78 times through the 205 images. The average of the weights is saved.
max_iters = 4000
train_cfg = dict(max_iters=max_iters, val_interval=max_iters // 2)
default_hooks = dict(checkpoint=dict(interval=500, save_best='coco/bbox_mAP'))
custom_hooks = [dict(type='WarmupEMAHook', momentum=1e-3)]
optim_wrapper = dict(optimizer=dict(lr=1e-3))
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

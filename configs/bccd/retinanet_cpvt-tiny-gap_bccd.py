# CPVT-Ti-GAP from the weights that come with the package, made for cells of every size: trained at half to twice the
# scale, in crops that cost no more. A narrow neck, so that the whole fits into 12 MB.
_base_ = './retinanet_pyramid-cpvt-t_bccd.py'
custom_imports = dict(imports=['cpvt_backbones', 'cpvt_backbones.engine.preprocessors'])
model = dict(
    # Images from 160 x 120 to 320 x 240 px share a batch; to the backbone none has a padded border, as in a test.
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
    # ViTDet's widths: strides 8 (upsampled once, half as wide), 16 and 32; stride 64 is pooled from the last.
    neck=dict(in_channels=[96, 192, 192], out_channels=64, num_outs=4),
    # At twice the scale the largest boxes are 250 px: 8 * 2 = 16 px to 64 * 2 * 2 ** (2 / 3) = 203 px.
    bbox_head=dict(in_channels=64, feat_channels=64, anchor_generator=dict(strides=[8, 16, 32, 64])),
)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='RandomResize', scale={{_base_.scale}}, ratio_range=(0.5, 2.0), keep_ratio=True),
    dict(type='RandomCrop', crop_size={{_base_.scale}}, allow_negative_crop=True),
    dict(type='RandomFlip', prob=[0.25, 0.25, 0.25], direction=['horizontal', 'vertical', 'diagonal']),
    dict(type='PhotoMetricDistortion', brightness_delta=16, contrast_range=(0.8, 1.2), hue_delta=4),
    dict(type='PackDetInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
# 2,000 iterations * 4 crops: 39 times through the 205 images.
max_iters = 2000
train_cfg = dict(max_iters=max_iters, val_interval=max_iters)
optim_wrapper = dict(optimizer=dict(lr=1e-3))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=100),
    dict(type='CosineAnnealingLR', T_max=max_iters - 100, eta_min=1e-5, by_epoch=False, begin=100, end=max_iters),
]

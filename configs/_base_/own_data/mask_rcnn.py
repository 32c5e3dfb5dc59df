# The recipe of an instance segmentor of own data: Mask R-CNN on CPVT-Ti-GAP with a narrow neck and
# narrow heads. objects.py has the pipelines.
_base_ = ['../models/mask_rcnn.py', '../schedules/adamw.py', '../runtime/mmdet.py']
width = 64  # channels of the neck and heads
model = dict(
    data_preprocessor=dict(type='ValidSizesDetDataPreprocessor', pad_size_divisor=1),
    backbone=dict(
        type='MultiScaleCPVT',
        arch='tiny',
        drop_path_rate=0.1,
        position=dict(type='PEG', after_blocks=(0, 1, 2, 3, 4)),
        out_indices=(0, 1, 2, 3),
        init_cfg=dict(type='Pretrained', checkpoint='cpvt_tiny_gap-imagenette'),
    ),
    # ViTDet's pyramid: each upsampling halves the width of the last map.
    neck=dict(in_channels=[48, 96, 192, 192], out_channels=width),
    rpn_head=dict(in_channels=width, feat_channels=width),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=width),
        bbox_head=dict(in_channels=width, fc_out_channels=256, num_classes=1),
        mask_roi_extractor=dict(out_channels=width),
        mask_head=dict(in_channels=width, conv_out_channels=width, num_classes=1),
    ),
    train_cfg=dict(
        rpn_proposal=dict(nms_pre=1000, max_per_img=500),
        rcnn=dict(sampler=dict(num=128)),
    ),
    test_cfg=dict(rpn=dict(nms_pre=500, max_per_img=300)),
)
custom_imports = dict(imports=['cpvt_backbones'])
workers = dict(num_workers=2, persistent_workers=True)
train_dataloader = dict(
    batch_size=4,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(type='CocoDataset'),
    **workers,
)
val_dataloader = dict(
    batch_size=1,
    drop_last=False,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(type='CocoDataset', test_mode=True),
    **workers,
)
test_dataloader = val_dataloader
val_evaluator = dict(type='CocoMetric', metric=['bbox', 'segm'], classwise=True)
test_evaluator = val_evaluator
train_cfg = dict(type='IterBasedTrainLoop', max_iters=2000)
default_hooks = dict(
    checkpoint=dict(by_epoch=False, interval=500, save_best='coco/segm_mAP'),
)
custom_hooks = [dict(type='WarmupEMAHook', momentum=1e-3)]
log_processor = dict(by_epoch=False)
randomness = dict(seed=0)

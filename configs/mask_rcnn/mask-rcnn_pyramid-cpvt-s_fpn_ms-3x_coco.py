# Twins' 3x, multi-scale: of its two augmentations the first; the second (DETR's: resize, crop, resize) is not here.
# 8 GPUs * 2 images = 16; 7,330 iterations an epoch, 36 epochs.
_base_ = [
    '../_base_/models/mask_rcnn.py',
    '../_base_/datasets/coco_instance.py',
    '../_base_/schedules/coco_3x.py',
    '../_base_/runtime/mmdet.py',
]
model = dict(
    # Weights: --cfg-options model.backbone.init_cfg.type=Pretrained model.backbone.init_cfg.checkpoint=FILE
    backbone=dict(_delete_=True, type='PyramidCPVT', arch='small', drop_path_rate=0.2),
    neck=dict(in_channels=[64, 128, 320, 512]),
)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    # Shorter side 480 to 800 px, longer at most 1333.
    dict(type='RandomChoiceResize', scales=[(1333, side) for side in range(480, 801, 32)], keep_ratio=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
tta_model = None  # mmdet merges boxes alone, no masks

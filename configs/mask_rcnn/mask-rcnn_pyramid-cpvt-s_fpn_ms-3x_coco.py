# Twins' 3x with the first of its two augmentations; the second, DETR's (resize, crop, resize), is left out.
_base_ = [
    '../_base_/models/mask_rcnn.py',
    '../_base_/datasets/coco_instance.py',
    '../_base_/schedules/coco_3x.py',
    '../_base_/runtime/mmdet.py',
]
model = dict(
    backbone=dict(type='PyramidCPVT', arch='small', drop_path_rate=0.2), neck=dict(in_channels=[64, 128, 320, 512])
)
# Shorter side 480 to 800 px, longer side at most 1333.
train_pipeline = _base_.train_pipeline
train_pipeline[2] = dict(
    type='RandomChoiceResize', scales=[(1333, side) for side in range(480, 801, 32)], keep_ratio=True
)
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
tta_model = None  # mmdet merges boxes, not masks

# Twins' 3x: 8 GPUs * 2 images = 16; 36 epochs, DETR's resizing and cropping.
_base_ = [
    '../_base_/models/retinanet.py',
    '../_base_/datasets/coco_detection.py',
    '../_base_/datasets/detr_resize.py',
    '../_base_/schedules/coco_3x.py',
    '../_base_/runtime/mmdet.py',
]
model = dict(
    data_preprocessor=dict(pad_size_divisor=32),
    backbone=dict(
        type='PyramidCPVT',
        arch='small',
        init_cfg=dict(type='Pretrained', checkpoint='timm://twins_pcpvt_small.in1k'),
        drop_path_rate=0.2,
    ),
    neck=dict(in_channels=[64, 128, 320, 512], start_level=1),
    bbox_head=dict(num_classes=80),
)
train_pipeline = _base_.train_pipeline
train_pipeline[2] = _base_.detr_resize
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))

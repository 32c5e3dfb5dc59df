# PVT's and Twins' setting: as RetinaNet's with twice the rate. 8 GPUs * 2 images = 16; 7,330
# iterations an epoch.
_base_ = [
    '../_base_/models/mask_rcnn.py',
    '../_base_/datasets/coco_instance.py',
    '../_base_/schedules/coco_1x.py',
    '../_base_/runtime/mmdet.py',
]
model = dict(
    backbone=dict(
        type='PyramidCPVT',
        arch='small',
        init_cfg=dict(type='Pretrained', checkpoint='timm://twins_pcpvt_small.in1k'),
        drop_path_rate=0.2,
    ),
    neck=dict(in_channels=[64, 128, 320, 512]),
)
optim_wrapper = dict(optimizer=dict(lr=2e-4))
tta_model = None  # mmdet merges boxes, not masks

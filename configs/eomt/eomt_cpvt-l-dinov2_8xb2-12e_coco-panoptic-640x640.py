# EoMT-L from DINOv2 on COCO panoptic: 12 epochs of 7,391 steps of 16 images (8 GPUs * 2).
_base_ = [
    '../_base_/models/eomt.py',
    '../_base_/datasets/coco_panoptic_640.py',
    '../_base_/runtime/mmdet_iterations.py',
    '../_base_/schedules/eomt.py',
]
max_iters = 88692
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=7391)
param_scheduler = [dict(type='HeadFirstPolyLR', by_epoch=False, end=max_iters)]

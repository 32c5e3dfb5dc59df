# EoMT-L from DINOv2 on COCO's objects: 12 epochs of 7,391 steps of 16 images (8 GPUs * 2).
_base_ = [
    '../_base_/models/eomt.py',
    '../_base_/datasets/coco_instance_640.py',
    '../_base_/runtime/mmdet_iterations.py',
    '../_base_/schedules/eomt.py',
]
model = dict(
    panoptic_head=dict(num_stuff_classes=0),
    test_cfg=dict(panoptic_on=False, instance_on=True),
)
max_iters = 88692
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=2 * 7391)
param_scheduler = [dict(type='HeadFirstPolyLR', by_epoch=False, end=max_iters)]
val_evaluator = dict(metric=['segm'])
test_evaluator = val_evaluator

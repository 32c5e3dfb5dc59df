# Twins' 3x: 36 epochs, rate divided by 10 after 27 and 33; 8 GPUs * 2 images.
_base_ = './coco_1x.py'
optim_wrapper = dict(optimizer=dict(weight_decay=0.05))
train_cfg = dict(max_epochs=36)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=False, begin=0, end=500),
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=36, milestones=[27, 33], gamma=0.1),
]

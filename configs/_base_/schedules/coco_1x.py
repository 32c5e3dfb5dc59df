# PVT's and Twins' 1x: 12 epochs, rate divided by 10 after 8 and 11; 8 GPUs * 2 images.
_base_ = './adamw.py'
optim_wrapper = dict(optimizer=dict(lr=1e-4, weight_decay=1e-4), clip_grad=None)
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=12, val_interval=1)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=False, begin=0, end=500),
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=12, milestones=[8, 11], gamma=0.1),
]
auto_scale_lr = dict(enable=False, base_batch_size=16)

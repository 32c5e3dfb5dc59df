# Twins' 3x: 36 epochs, rate divided by 10 after 27 and 33; 8 GPUs * 2 images.
_base_ = './adamw.py'
optim_wrapper = dict(optimizer=dict(lr=1e-4, weight_decay=0.05), clip_grad=None)
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=36, val_interval=1)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=False, begin=0, end=500),
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=36, milestones=[27, 33], gamma=0.1),
]
auto_scale_lr = dict(enable=False, base_batch_size=16)

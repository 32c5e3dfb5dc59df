# Twins' UperNet: 160k iterations of 16 crops (8 GPUs * 2), 127 times through the 20,210 images.
_base_ = './adamw.py'
max_iters = 160000
optim_wrapper = dict(optimizer=dict(lr=6e-5, weight_decay=0.01), clip_grad=None)
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=16000)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=False, begin=1500, end=max_iters),
]
auto_scale_lr = dict(enable=False, base_batch_size=16)

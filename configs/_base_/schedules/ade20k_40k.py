# PVT's Semantic FPN: 40k iterations of 32 crops (8 GPUs * 4), 63 times through the 20,210 images;
# the rate falls to 0.
_base_ = './adamw.py'
max_iters = 40000
optim_wrapper = dict(optimizer=dict(lr=2e-4, weight_decay=1e-4), clip_grad=None)
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=4000)
param_scheduler = [
    dict(type='PolyLR', power=0.9, eta_min=0.0, by_epoch=False, begin=0, end=max_iters)
]
auto_scale_lr = dict(enable=False, base_batch_size=32)

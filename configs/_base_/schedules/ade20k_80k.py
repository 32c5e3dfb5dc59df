# Twins' Semantic FPN: 80k iterations of 16 crops (8 GPUs * 2), 63 times through the 20,210 images;
# the rate falls to 1e-6. (mmsegmentation's files end at the rate they start from.)
_base_ = './adamw.py'
max_iters = 80000
optim_wrapper = dict(optimizer=dict(lr=1e-4, weight_decay=1e-4), clip_grad=None)
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=8000)
param_scheduler = [
    dict(type='PolyLR', power=0.9, eta_min=1e-6, by_epoch=False, begin=0, end=max_iters)
]
auto_scale_lr = dict(enable=False, base_batch_size=16)

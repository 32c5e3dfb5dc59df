# DeiT: 300 epochs, 5 of them warm-up from 1e-6; rate 5e-4 * batch / 512, down to 1e-5 by a cosine.
# CPVT's batch is 2048 images (8 GPUs * 256), hence 2e-3; 626 iterations an epoch of 1,281,167
# images.
_base_ = './adamw.py'
optim_wrapper = dict(optimizer=dict(lr=5e-4 * 2048 / 512, weight_decay=0.05), clip_grad=None)
train_cfg = dict(by_epoch=True, max_epochs=300, val_interval=10)
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=1e-6 / 2e-3,
        by_epoch=True,
        begin=0,
        end=5,
        convert_to_iter_based=True,
    ),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=True, begin=5, end=300),
]
auto_scale_lr = dict(enable=False, base_batch_size=2048)

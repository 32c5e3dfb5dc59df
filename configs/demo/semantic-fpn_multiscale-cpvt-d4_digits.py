# Fewer blocks and a shorter training, for `make demo`. 700 iterations * 4 images: 2,800 of 4,000.
_base_ = './semantic-fpn_multiscale-cpvt_digits.py'
model = dict(backbone=dict(arch=dict(depth=4), position=dict(after_blocks=(0, 1, 2, 3))))
max_iters = 700
train_cfg = dict(max_iters=max_iters, val_interval=max_iters)
optim_wrapper = dict(optimizer=dict(lr=1.5e-3))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=40),
    dict(
        type='CosineAnnealingLR',
        T_max=max_iters - 40,
        eta_min=1e-5,
        by_epoch=False,
        begin=40,
        end=max_iters,
    ),
]

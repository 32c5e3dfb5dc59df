# Patches of 8 px: trained on from the model of 16 px at 64 and 80 px, for tests at 112 px.
_base_ = './cpvt-tiny-gap_imagenette.py'
start = dict(type='Pretrained', checkpoint='cpvt_tiny_gap-imagenette')
model = dict(
    backbone=dict(patch_size=8, init_cfg=start),
    head=dict(init_cfg=dict(start, prefix='head.')),
    init_cfg=None,
    sizes=(64, 80),
)
max_epochs = 2
train_cfg = dict(max_epochs=max_epochs)
optim_wrapper = dict(optimizer=dict(lr=7e-4))
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=0.01,
        by_epoch=True,
        begin=0,
        end=0.1,
        convert_to_iter_based=True,
    ),
    dict(
        type='CosineAnnealingLR',
        eta_min=1e-5,
        by_epoch=True,
        begin=0.1,
        end=max_epochs,
        convert_to_iter_based=True,
    ),
]

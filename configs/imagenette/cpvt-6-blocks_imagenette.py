# Half of CPVT-Ti-GAP, a short training from random weights: 2 epochs of 147 iterations * 64 images.
_base_ = [
    '../_base_/datasets/imagenette.py',
    '../_base_/schedules/adamw.py',
    '../_base_/runtime/mmpretrain.py',
]
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='CPVT',
        arch=dict(embed_dims=192, depth=6, num_heads=3, mlp_ratio=4),
        with_cls_token=False,
        out_type='avg_featmap',
        position=dict(type='PEG', after_blocks=(0, 1, 2, 3, 4), kernel_size=3),
    ),
    head=dict(
        type='LinearClsHead',
        num_classes=10,
        in_channels=192,
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
    ),
)
max_epochs = 2
train_cfg = dict(by_epoch=True, max_epochs=max_epochs, val_interval=max_epochs)
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=0.01,
        by_epoch=True,
        begin=0,
        end=1,
        convert_to_iter_based=True,
    ),
    dict(
        type='CosineAnnealingLR',
        eta_min=1e-5,
        by_epoch=True,
        begin=1,
        end=max_epochs,
        convert_to_iter_based=True,
    ),
]
default_hooks = dict(logger=dict(interval=20), checkpoint=dict(max_keep_ckpts=1))
randomness = dict(seed=0)

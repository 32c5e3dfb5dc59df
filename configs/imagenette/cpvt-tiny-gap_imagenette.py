# CPVT-Ti-GAP with five PEGs at 112 px, from random weights: the recipe of the
# study on Imagenette, longer. Not a base for your own data: its data preprocessor crops
# each batch, whatever the pipeline does. That base is cpvt-tiny-gap_finetune.py.
_base_ = '../_base_/recipes/imagenette_112px.py'
model = dict(
    backbone=dict(
        arch='tiny',
        with_cls_token=False,
        out_type='avg_featmap',
        position=dict(type='PEG', after_blocks=(0, 1, 2, 3, 4), kernel_size=3),
    ),
    head=dict(in_channels=192),
)
max_epochs = 30
train_cfg = dict(max_epochs=max_epochs, val_interval=max_epochs)
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=0.01,
        by_epoch=True,
        begin=0,
        end=2,
        convert_to_iter_based=True,
    ),
    dict(
        type='CosineAnnealingLR',
        eta_min=1e-5,
        by_epoch=True,
        begin=2,
        end=max_epochs,
        convert_to_iter_based=True,
    ),
]
# Tested from files, not from the decoded array, so that any folder of images can be tested.
names = (
    'tench,English springer,cassette player,chain saw,church,French horn,garbage truck,gas'
    ' pump,golf ball,parachute'
)
test_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='CustomDataset',
        data_root='data/imagenette',
        data_prefix='val',
        extensions=('.webp', '.jpg', '.jpeg', '.png'),
        metainfo=dict(classes=tuple(names.split(','))),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='Resize', scale=(112, 112), backend='pillow', interpolation='bicubic'),
            dict(type='PackInputs'),
        ],
    )
)

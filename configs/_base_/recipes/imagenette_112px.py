# A short training on Imagenette at 112 px from random weights. The images are decoded once into
# memory and cropped as a batch by the data preprocessor, on the device that trains: a pipeline that
# crops would crop them twice. A leaf sets the backbone and the head's in_channels.
_base_ = ['../schedules/adamw.py', '../runtime/mmpretrain.py']
custom_imports = dict(imports=['cpvt_backbones', 'cpvt_backbones.engine.cached_dataset'])
data_root = 'data/imagenette'
extensions = ('.webp', '.jpg', '.jpeg', '.png')
data_preprocessor = dict(
    num_classes=10,
    mean=[123.675, 116.28, 103.53],
    std=[58.395, 57.12, 57.375],
    to_rgb=True,
    batch_augments=dict(
        augments=dict(type='BatchRandomResizedCrop', size=112, area=(0.35, 1.0), flip=0.5)
    ),
)
model = dict(
    type='ImageClassifier',
    backbone=dict(type='CPVT', img_size=112),
    head=dict(
        type='LinearClsHead',
        num_classes=10,
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
    ),
)
train_dataloader = dict(
    batch_size=64,
    num_workers=0,
    drop_last=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type='DecodedDataset',
        data_root=data_root,
        data_prefix='train',
        extensions=extensions,
        pipeline=[dict(type='PackInputs')],
    ),
)
val_dataloader = dict(
    batch_size=50,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='DecodedDataset',
        data_root=data_root,
        data_prefix='val',
        extensions=extensions,
        pipeline=[
            dict(type='Resize', scale=(112, 112), backend='pillow', interpolation='bicubic'),
            dict(type='PackInputs'),
        ],
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='Accuracy', topk=(1,))
test_evaluator = val_evaluator
optim_wrapper = dict(clip_grad=dict(max_norm=1.0))
max_epochs = 8
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

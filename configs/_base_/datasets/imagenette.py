# Imagenette (Imagenette2): data/imagenette/{train,val}/<WordNet id>, 10 classes, 9,469 training images. Trained at 112
# px.
data_preprocessor = dict(num_classes=10, mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], to_rgb=True)
data_root = 'data/imagenette'
extensions = ('.webp', '.jpg', '.jpeg', '.png')
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='RandomResizedCrop', scale=112, crop_ratio_range=(0.35, 1.0), backend='pillow', interpolation='bicubic'),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='ColorJitter', brightness=0.3, contrast=0.3, saturation=0.3),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(112, 112), backend='pillow', interpolation='bicubic'),
    dict(type='PackInputs'),
]
train_dataloader = dict(
    batch_size=64,
    num_workers=2,
    persistent_workers=True,
    drop_last=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type='CustomDataset',
        data_root=data_root,
        data_prefix='train',
        extensions=extensions,
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=100,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='CustomDataset', data_root=data_root, data_prefix='val', extensions=extensions, pipeline=test_pipeline
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='Accuracy', topk=(1,))
test_evaluator = val_evaluator

# Imagenette (Imagenette2): data/imagenette/{train,val}/<WordNet id>, 10 classes, 9,469 training
# images, used at 112 px.
data_preprocessor = dict(
    num_classes=10, mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], to_rgb=True
)
data_root = 'data/imagenette'
bicubic = dict(backend='pillow', interpolation='bicubic')
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='RandomResizedCrop', scale=112, crop_ratio_range=(0.35, 1.0), **bicubic),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='ColorJitter', brightness=0.3, contrast=0.3, saturation=0.3),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(112, 112), **bicubic),
    dict(type='PackInputs'),
]
workers = dict(num_workers=2, persistent_workers=True)
dataset = dict(
    type='CustomDataset', data_root=data_root, extensions=('.webp', '.jpg', '.jpeg', '.png')
)
train_dataloader = dict(
    batch_size=64,
    drop_last=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(data_prefix='train', pipeline=train_pipeline, **dataset),
    **workers,
)
val_dataloader = dict(
    batch_size=100,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(data_prefix='val', pipeline=test_pipeline, **dataset),
    **workers,
)
test_dataloader = val_dataloader
val_evaluator = dict(type='Accuracy', topk=(1,))
test_evaluator = val_evaluator

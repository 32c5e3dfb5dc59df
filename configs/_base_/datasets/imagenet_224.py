# ImageNet-1k with DeiT's augmentation: data/imagenet/{train,val}/<WordNet id>. 1,281,167 training
# images.
_base_ = 'mmpretrain::_base_/datasets/imagenet_bs64_swin_224.py'
train_dataloader = dict(
    batch_size=256,
    num_workers=10,
    persistent_workers=True,
    # Every image three times an epoch, augmented anew, a third of the images each epoch.
    sampler=dict(type='RepeatAugSampler', shuffle=True),
)
val_dataloader = dict(batch_size=128, num_workers=10, persistent_workers=True)
test_dataloader = val_dataloader
tta_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='ResizeEdge', scale=256, edge='short', backend='pillow', interpolation='bicubic'),
    dict(
        type='TestTimeAug',
        transforms=[
            [dict(type='CenterCrop', crop_size=224)],
            [dict(type='RandomFlip', prob=0.0), dict(type='RandomFlip', prob=1.0)],
            [dict(type='PackInputs')],
        ],
    ),
]

# ADE20K, 150 classes: data/ade/ADEChallengeData2016/{images,annotations}/{training,validation}.
# 20,210 training images. Test images are resized to a shorter side of 512 px, then, as PVT does and
# Twins does not, to multiples of 32 px, so that the maps of all strides align.
data_root = 'data/ade/ADEChallengeData2016'
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', reduce_zero_label=True),
    dict(type='RandomResize', scale=(2048, 512), ratio_range=(0.5, 2.0), keep_ratio=True),
    dict(type='RandomCrop', crop_size=(512, 512), cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackSegInputs'),
]
# The labels are loaded after resizing: predictions are compared at the image's own size.
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(2048, 512), keep_ratio=True),
    dict(type='ResizeToMultiple', size_divisor=32),
    dict(type='LoadAnnotations', reduce_zero_label=True),
    dict(type='PackSegInputs'),
]
workers = dict(num_workers=4, persistent_workers=True)
train_set, val_set = (
    dict(
        type='ADE20KDataset',
        data_root=data_root,
        data_prefix=dict(img_path=f'images/{split}', seg_map_path=f'annotations/{split}'),
        pipeline=pipeline,
    )
    for split, pipeline in (('training', train_pipeline), ('validation', test_pipeline))
)
train_dataloader = dict(
    batch_size=2, sampler=dict(type='InfiniteSampler', shuffle=True), dataset=train_set, **workers
)
val_dataloader = dict(
    batch_size=1, sampler=dict(type='DefaultSampler', shuffle=False), dataset=val_set, **workers
)
test_dataloader = val_dataloader
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator
tta_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        type='TestTimeAug',
        transforms=[
            # 0.5 to 1.75 times
            [
                dict(type='Resize', scale=(2048, side), keep_ratio=True)
                for side in range(256, 897, 128)
            ],
            [dict(type='ResizeToMultiple', size_divisor=32)],
            [dict(type='RandomFlip', prob=prob, direction='horizontal') for prob in (0.0, 1.0)],
            [dict(type='LoadAnnotations', reduce_zero_label=True)],
            [dict(type='PackSegInputs')],
        ],
    ),
]

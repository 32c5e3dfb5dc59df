# Blood cells (BCCD, COCO JSON), 640 x 480 px, used at half size: a red cell is then about 50 px, a
# platelet 20 px.
data_root = 'data/bccd/'
metainfo = dict(
    classes=('RBC', 'WBC', 'Platelets'), palette=[(220, 20, 60), (0, 82, 255), (255, 200, 0)]
)
scale = (320, 240)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='RandomResize', scale=scale, ratio_range=(0.8, 1.25), keep_ratio=True),
    # (width, height), as in Resize.
    dict(type='RandomCrop', crop_size=scale, allow_negative_crop=True),
    # A smear has no up or down.
    dict(
        type='RandomFlip', prob=[0.25, 0.25, 0.25], direction=['horizontal', 'vertical', 'diagonal']
    ),
    dict(type='PhotoMetricDistortion', brightness_delta=16, contrast_range=(0.8, 1.2), hue_delta=4),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=scale, keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'),
    ),
]
workers = dict(num_workers=2, persistent_workers=True)
train_set, val_set, test_set = (
    dict(
        type='CocoDataset',
        data_root=data_root,
        ann_file=f'annotations/{split}.json',
        data_prefix=dict(img=f'{split}/'),
        metainfo=metainfo,
        **options,
    )
    for split, options in (
        ('train', dict(filter_cfg=dict(filter_empty_gt=True), pipeline=train_pipeline)),
        ('val', dict(test_mode=True, pipeline=test_pipeline)),
        ('test', dict(test_mode=True, pipeline=test_pipeline)),
    )
)
in_order = dict(drop_last=False, sampler=dict(type='DefaultSampler', shuffle=False), **workers)
train_dataloader = dict(
    batch_size=4, sampler=dict(type='InfiniteSampler', shuffle=True), dataset=train_set, **workers
)
val_dataloader = dict(batch_size=1, dataset=val_set, **in_order)
test_dataloader = dict(batch_size=1, dataset=test_set, **in_order)
val_evaluator, test_evaluator = (
    dict(
        type='CocoMetric',
        ann_file=f'{data_root}annotations/{split}.json',
        metric='bbox',
        classwise=True,
    )
    for split in ('val', 'test')
)

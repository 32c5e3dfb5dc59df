# CamVid street scenes, 480 x 360 px, 11 classes. Index 11 is void; it is the one ignore value everywhere: in the loss
# and the metric (ignore_index), in cropping, and in what a batch is padded with (seg_pad_val).
data_root = 'data/camvid'
void = 11
metainfo = dict(
    classes=(
        'sky',
        'building',
        'pole',
        'road',
        'pavement',
        'tree',
        'sign',
        'fence',
        'car',
        'pedestrian',
        'bicyclist',
    ),
    palette=[
        (128, 128, 128),
        (128, 0, 0),
        (192, 192, 128),
        (128, 64, 128),
        (60, 40, 222),
        (128, 128, 0),
        (192, 128, 128),
        (64, 64, 128),
        (64, 0, 128),
        (64, 64, 0),
        (0, 128, 192),
    ],
)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomResize', scale=(480, 360), ratio_range=(0.75, 1.5), keep_ratio=True),
    dict(type='RandomCrop', crop_size=(256, 320), cat_max_ratio=0.75, ignore_index=void),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(
    batch_size=4,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='BaseSegDataset',
        data_root=data_root,
        img_suffix='.jpg',
        seg_map_suffix='.png',
        data_prefix=dict(img_path='images/train', seg_map_path='labels/train'),
        metainfo=metainfo,
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='BaseSegDataset',
        data_root=data_root,
        img_suffix='.jpg',
        seg_map_suffix='.png',
        data_prefix=dict(img_path='images/val', seg_map_path='labels/val'),
        metainfo=metainfo,
        pipeline=test_pipeline,
    ),
)
test_dataloader = dict(
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='BaseSegDataset',
        data_root=data_root,
        img_suffix='.jpg',
        seg_map_suffix='.png',
        data_prefix=dict(img_path='images/test', seg_map_path='labels/test'),
        metainfo=metainfo,
        pipeline=test_pipeline,
    ),
)
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'], ignore_index=void)
test_evaluator = val_evaluator

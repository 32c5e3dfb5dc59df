# CamVid street scenes, 480 x 360 px, 11 classes. Index 11 is void, the one ignore value everywhere:
# in the loss and the metric (ignore_index), in cropping, and in the padding of a batch
# (seg_pad_val).
data_root = 'data/camvid'
void = 11
names = 'sky building pole road pavement tree sign fence car pedestrian bicyclist'
# RGB, one a class: colours that differ for colour-blind readers too, which CamVid's do not
colours = '5aa9e6 e8603c d9d9d9 6d6875 d58ccf 3fa34d f2c14e 8e5ea2 1d3557 7f5539 00b4d8'
metainfo = dict(
    classes=tuple(names.split()),
    palette=[tuple(bytes.fromhex(colour)) for colour in colours.split()],
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
workers = dict(num_workers=2, persistent_workers=True)
train_set, val_set, test_set = (
    dict(
        type='BaseSegDataset',
        data_root=data_root,
        img_suffix='.jpg',
        seg_map_suffix='.png',
        data_prefix=dict(img_path=f'images/{split}', seg_map_path=f'labels/{split}'),
        metainfo=metainfo,
        pipeline=train_pipeline if split == 'train' else test_pipeline,
    )
    for split in ('train', 'val', 'test')
)
in_order = dict(type='DefaultSampler', shuffle=False)
train_dataloader = dict(
    batch_size=4, sampler=dict(type='InfiniteSampler', shuffle=True), dataset=train_set, **workers
)
val_dataloader = dict(batch_size=1, sampler=in_order, dataset=val_set, **workers)
test_dataloader = dict(batch_size=1, sampler=in_order, dataset=test_set, **workers)
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'], ignore_index=void)
test_evaluator = val_evaluator

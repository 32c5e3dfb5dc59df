# Digit scenes, written by demo/digit_scenes.py. No flip: a mirrored digit is another sign.
data_root = 'data/digit_scenes/'
metainfo = dict(
    classes=('background', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9'),
    palette=[
        (0, 0, 0),
        (230, 25, 75),
        (60, 180, 75),
        (255, 225, 25),
        (0, 130, 200),
        (245, 130, 48),
        (145, 30, 180),
        (70, 240, 240),
        (240, 50, 230),
        (210, 245, 60),
        (0, 128, 128),
    ],
)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
test_pipeline = train_pipeline
dataset = dict(
    type='BaseSegDataset',
    img_suffix='.jpg',
    seg_map_suffix='.png',
    data_prefix=dict(img_path='images', seg_map_path='labels'),
    metainfo=metainfo,
)
train_dataloader = dict(
    batch_size=8,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(data_root=data_root + 'train_128x128', pipeline=train_pipeline, **dataset),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(data_root=data_root + 'heldout_128x128', pipeline=test_pipeline, **dataset),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator

# Digit scenes, written by demo/digit_scenes.py. No flip: a mirrored digit is another sign.
data_root = 'data/digit_scenes/'
# RGB, one a class
colours = '000000 e6194b 3cb44b ffe119 0082c8 f58230 911eb4 46f0f0 f032e6 d2f53c 008080'
metainfo = dict(
    classes=('background', *'0123456789'),
    palette=[tuple(bytes.fromhex(colour)) for colour in colours.split()],
)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
test_pipeline = train_pipeline
workers = dict(num_workers=0, persistent_workers=False)  # a scene is read in a millisecond
dataset = dict(
    type='BaseSegDataset',
    img_suffix='.jpg',
    seg_map_suffix='.png',
    data_prefix=dict(img_path='images', seg_map_path='labels'),
    metainfo=metainfo,
)
train_dataloader = dict(
    batch_size=8,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(data_root=data_root + 'train_128x128', pipeline=train_pipeline, **dataset),
    **workers,
)
val_dataloader = dict(
    batch_size=1,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(data_root=data_root + 'heldout_128x128', pipeline=test_pipeline, **dataset),
    **workers,
)
test_dataloader = val_dataloader
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator

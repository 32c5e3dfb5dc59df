# Digit scenes, written by demo/digit_scenes.py. No flip: a mirrored digit is another sign.
data_root = 'data/digit_scenes/'
colours = (
    'e6194b 3cb44b ffe119 0082c8 f58230 911eb4 46f0f0 f032e6 d2f53c 008080'  # RGB, one a class
)
metainfo = dict(
    classes=tuple('0123456789'),
    palette=[tuple(bytes.fromhex(colour)) for colour in colours.split()],
)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='PackDetInputs'),
]
# Images are tested at their own size; the Resize by 1 sets scale_factor, which RetinaNet needs.
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale_factor=1.0),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'),
    ),
]
workers = dict(num_workers=0, persistent_workers=False)  # a scene is read in a millisecond
dataset = dict(
    type='CocoDataset',
    ann_file='instances.json',
    data_prefix=dict(img='images/'),
    metainfo=metainfo,
)
train_dataloader = dict(
    batch_size=8,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(data_root=data_root + 'train_128x128/', pipeline=train_pipeline, **dataset),
    **workers,
)
val_dataloader = dict(
    batch_size=1,
    drop_last=False,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        data_root=data_root + 'heldout_128x128/', test_mode=True, pipeline=test_pipeline, **dataset
    ),
    **workers,
)
test_dataloader = val_dataloader
val_evaluator = dict(
    type='CocoMetric', ann_file=data_root + 'heldout_128x128/instances.json', metric='bbox'
)
test_evaluator = val_evaluator

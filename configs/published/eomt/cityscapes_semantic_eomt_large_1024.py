# EoMT-L with DINOv2's trunk on Cityscapes at 1024 px, from its authors.
_base_ = './ade20k_semantic_eomt_large_512.py'
model = dict(
    backbone=dict(img_size=1024),
    decode_head=dict(num_classes=19),
    test_cfg=dict(crop_size=(1024, 1024)),
)
size = (1024, 1024)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomFlip', prob=0.5),
    dict(type='RandomResize', scale=size, ratio_range=(0.5, 2.0), keep_ratio=True),
    dict(type='RandomCrop', crop_size=size),
    dict(type='PhotoMetricDistortion'),
    dict(type='Pad', size=size, pad_val=dict(img=0, seg=255)),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(100000, 1024), keep_ratio=True, backend='pillow'),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
train_dataloader, val_dataloader = (
    dict(
        dataset=dict(
            type='CityscapesDataset',
            data_root='data/cityscapes/',
            data_prefix=dict(img_path=f'leftImg8bit/{part}', seg_map_path=f'gtFine/{part}'),
            pipeline=pipeline,
        )
    )
    for part, pipeline in (('train', train_pipeline), ('val', test_pipeline))
)
test_dataloader = val_dataloader
max_iters = 19902
train_cfg = dict(max_iters=max_iters)
param_scheduler = [dict(type='HeadFirstPolyLR', by_epoch=False, end=max_iters)]

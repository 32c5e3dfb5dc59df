# COCO panoptic in squares of 640 px with large-scale jitter, padded with black, as EoMT's authors
# train. Test images are resized to a longer side of 640 px.
_base_ = 'mmdet::_base_/datasets/coco_panoptic.py'
size = (640, 640)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadPanopticAnnotations', with_bbox=True, with_mask=True, with_seg=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='RandomResize', scale=size, ratio_range=(0.1, 2.0), keep_ratio=True),
    dict(
        type='RandomCrop',
        crop_size=size,
        crop_type='absolute',
        recompute_bbox=True,
        allow_negative_crop=True,
    ),
    dict(type='Pad', size=size, pad_val=dict(img=0, masks=0, seg=255)),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=size, keep_ratio=True, backend='pillow'),
    dict(type='LoadPanopticAnnotations'),
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'),
    ),
]
sampler = dict(type='InfiniteSampler', shuffle=True)
train_dataloader = dict(
    batch_size=2, sampler=sampler, batch_sampler=None, dataset=dict(pipeline=train_pipeline)
)
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

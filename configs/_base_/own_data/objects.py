# A detector or instance segmentor of own data.
_base_ = './iterations.py'
own = _base_.own_data
classes = tuple(own.classes)
scale = tuple(own.scale)  # (width, height), px
load_labels = dict(type='LoadAnnotations', with_bbox=True)
if own.outlines:
    load_labels['with_mask'] = True
colour = dict(
    type='PhotoMetricDistortion', brightness_delta=16, contrast_range=(0.8, 1.2), hue_delta=4
)
train_pipeline = [
    own.load,
    load_labels,
    dict(type='RandomResize', scale=scale, ratio_range=(0.5, 2.0), keep_ratio=True),
    dict(type='RandomCrop', crop_size=scale, allow_negative_crop=True),
    dict(type='RandomFlip', prob=0.5),
    *([colour] if own.is_rgb else []),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    own.load,
    dict(type='Resize', scale=scale, keep_ratio=True),
    load_labels,
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'),
    ),
]
train_dataloader = dict(
    dataset=dict(
        data_root='',
        ann_file=own.train,
        data_prefix=dict(img=own.train_images),
        metainfo=dict(classes=classes),
        filter_cfg=None,  # train on images without objects, too
        pipeline=train_pipeline,
    )
)
val_dataloader = dict(
    dataset=dict(
        data_root='',
        ann_file=own.val,
        data_prefix=dict(img=own.val_images),
        metainfo=dict(classes=classes),
        pipeline=test_pipeline,
    )
)
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=own.val)
if own.proposals:  # of images with many objects
    val_evaluator['proposal_nums'] = tuple(own.proposals)
test_evaluator = val_evaluator
del own

# A segmentor of own data.
_base_ = './iterations.py'
own = _base_.own_data
classes = tuple(own.classes)
scale = tuple(own.scale)  # (width, height), px
void = own.void  # of no class, in class maps
if own.is_tiled:
    resize = dict(type='Resize', scale_factor=1.0)  # the images' own scale
    fit = []
else:
    resize = dict(type='RandomResize', scale=scale, ratio_range=(0.5, 2.0), keep_ratio=True)
    fit = [dict(type='Resize', scale=scale, keep_ratio=True)]
train_pipeline = [
    own.load,
    own.load_map,
    resize,
    dict(type='RandomCrop', crop_size=tuple(own.crop), cat_max_ratio=0.75, ignore_index=void),
    dict(type='RandomFlip', prob=0.5),
    *([dict(type='PhotoMetricDistortion')] if own.is_rgb else []),
    dict(type='PackSegInputs'),
]
test_pipeline = [own.load, *fit, own.load_map, dict(type='PackSegInputs')]
# The lists have the suffixes of the images; the map of a.jpg is a.jpg.png.
data = dict(
    data_root='',
    data_prefix=dict(img_path=own.images, seg_map_path=own.masks),
    img_suffix='',
    metainfo=dict(classes=classes),
)
train_dataloader = dict(dataset=dict(ann_file=own.train, pipeline=train_pipeline, **data))
val_dataloader = dict(dataset=dict(ann_file=own.val, pipeline=test_pipeline, **data))
test_dataloader = val_dataloader
val_evaluator = dict(ignore_index=void)
test_evaluator = val_evaluator
del own, data

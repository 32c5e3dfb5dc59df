# A classifier of own data, which trains by epochs. cpvt make-config copies it beside recipe.py, the
# model, and data.json, the names, paths and numbers of the data.
_base_ = ['./recipe.py', './data.json']
own = _base_.own_data
classes = tuple(own.classes)
scale = own.scale  # px
model = own.model
data_preprocessor = own.data_preprocessor
load_from = own.load_from
optim_wrapper = own.optim_wrapper
bicubic = dict(backend=own.backend, interpolation='bicubic')
# Pillow's backend, the default, warns in each worker.
jitter = dict(type='ColorJitter', brightness=0.3, contrast=0.3, saturation=0.3, backend='cv2')
train_pipeline = [
    own.load,
    dict(type='RandomResizedCrop', scale=scale, crop_ratio_range=(0.35, 1.0), **bicubic),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    *([jitter] * own.is_rgb),
    dict(type='PackInputs'),
]
test_pipeline = [
    own.load,
    dict(type='ResizeEdge', scale=scale * 8 // 7, **bicubic),
    dict(type='CenterCrop', crop_size=scale),
    dict(type='PackInputs'),
]
data = dict(data_root=own.images, data_prefix='', metainfo=dict(classes=classes))
train_dataloader = dict(
    batch_size=own.batch_size,
    dataset=dict(ann_file=own.train, pipeline=train_pipeline, **data),
)
val_dataloader = dict(dataset=dict(ann_file=own.val, pipeline=test_pipeline, **data))
test_dataloader = val_dataloader
val_evaluator = dict(topk=(1,))
# The share of each class that is right, too: the other toolboxes print a table.
test_evaluator = [dict(type='Accuracy', topk=(1,)), dict(type='RecallByClass')]
max_epochs = own.max_epochs
train_cfg = dict(max_epochs=max_epochs, val_interval=1)
by_epoch = dict(by_epoch=True, convert_to_iter_based=True)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, begin=0, end=1, **by_epoch),
    dict(type='CosineAnnealingLR', eta_min=own.least_rate, begin=1, end=max_epochs, **by_epoch),
][:max_epochs]  # one epoch is a warm-up only
del own, data, jitter

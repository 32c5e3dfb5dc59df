# Fine-tuning of the shipped CPVT-Ti-GAP on class folders, <data_root>/{train,val}/<class>/*.jpg,
# with an ordinary pipeline of mmpretrain: the base for your own data. Change data_root, num_classes
# and, for other sizes, the pipelines.
_base_ = [
    '../_base_/datasets/imagenette.py',
    '../_base_/schedules/adamw.py',
    '../_base_/runtime/mmpretrain.py',
]
data_root, num_classes = 'data/imagenette', 10
data_preprocessor = dict(num_classes=num_classes)
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='CPVT',
        arch='tiny',
        with_cls_token=False,
        out_type='avg_featmap',
        position=dict(type='PEG', after_blocks=(0, 1, 2, 3, 4), kernel_size=3),
        init_cfg=dict(type='Pretrained', checkpoint='cpvt_tiny_gap-imagenette'),
    ),
    head=dict(
        type='LinearClsHead',
        num_classes=num_classes,
        in_channels=192,
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
    ),
)
train_dataloader = dict(dataset=dict(data_root=data_root))
val_dataloader = dict(dataset=dict(data_root=data_root))
test_dataloader = val_dataloader
optim_wrapper = dict(optimizer=dict(lr=2e-4))
max_epochs = 10
train_cfg = dict(by_epoch=True, max_epochs=max_epochs, val_interval=1)
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=0.01,
        by_epoch=True,
        begin=0,
        end=1,
        convert_to_iter_based=True,
    ),
    dict(
        type='CosineAnnealingLR',
        eta_min=1e-6,
        by_epoch=True,
        begin=1,
        end=max_epochs,
        convert_to_iter_based=True,
    ),
]
randomness = dict(seed=0)

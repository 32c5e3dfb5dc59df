# The shipped CPVT-Ti-GAP, trained on from the weights shipped before: labels of Imagenette, and features of
# EfficientNet-Lite0 (ImageNet-1k) on Imagenette and Tiny ImageNet. 612 iterations * 2 processes * 64 images an epoch.
_base_ = '../../../configs/imagenette/cpvt-tiny-gap_imagenette.py'
custom_imports = dict(imports=['cpvt_backbones', 'cpvt_backbones.engine.decoded', 'distilled_classifier.model'])
data_preprocessor = dict(batch_augments=dict(augments=dict(size=160, area=(0.25, 1.0))))
model = dict(
    type='FeatureDistillation',
    backbone=dict(out_type='featmap', out_indices=(8, 11)),
    neck=dict(type='GlobalAveragePooling'),
    init_cfg=dict(type='Pretrained', checkpoint='data/teachers/cpvt_tiny_gap-imagenette_before.safetensors'),
    teacher='data/teachers/tf_efficientnet_lite0.pth',
    # The ten WordNet ids in sorted order, as ImageNet-1k numbers them.
    teacher_classes=[0, 217, 482, 491, 497, 566, 569, 571, 574, 701],
    teacher_size=160,
    mixup=0.5,
)
labelled = dict(
    type='DecodedDataset',
    data_root='data/imagenette',
    data_prefix='train',
    extensions=('.webp', '.jpg', '.jpeg', '.png'),
    pipeline=[dict(type='OneHotLabel', classes=10), dict(type='PackInputs')],
)
others = dict(
    type='DecodedDataset',
    data_root='data/tiny-imagenet-100',
    data_prefix='train',
    extensions=('.jpeg',),
    pipeline=[
        dict(type='OneHotLabel', classes=10, known=False),
        dict(type='Resize', scale=(128, 128)),
        dict(type='PackInputs'),
    ],
)
train_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='ConcatDataset',
        ignore_keys=['classes'],
        datasets=[dict(type='RepeatDataset', times=3, dataset=labelled), others],
    )
)
max_epochs = 4
train_cfg = dict(max_epochs=max_epochs, val_interval=1)
optim_wrapper = dict(optimizer=dict(lr=1e-3))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=True, begin=0, end=0.2, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=True, begin=0.2, end=max_epochs, convert_to_iter_based=True),
]

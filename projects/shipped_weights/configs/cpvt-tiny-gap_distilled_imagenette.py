# The shipped CPVT-Ti-GAP, trained on from the weights shipped before: labels of Imagenette, and
# stored features of EfficientNet-Lite0 (ImageNet-1k) on ten crops of each image of Imagenette and
# one of Tiny ImageNet.
_base_ = '../../../configs/imagenette/cpvt-tiny-gap_imagenette.py'
custom_imports = dict(
    imports=['cpvt_backbones', 'cpvt_backbones.engine.cached_dataset', 'shipped_weights.model']
)
data_preprocessor = dict(batch_augments=None)
teacher = 'data/teachers/tf_efficientnet_lite0.pth'
area = (0.25, 1.0)
model = dict(
    type='FeatureDistillation',
    backbone=dict(out_type='featmap', out_indices=(8, 11)),
    neck=dict(type='GlobalAveragePooling'),
    init_cfg=dict(
        type='Pretrained', checkpoint='data/teachers/cpvt_tiny_gap-imagenette_before.safetensors'
    ),
    teacher=teacher,
    # The ten WordNet ids in sorted order, as ImageNet-1k numbers them.
    teacher_classes=[0, 217, 482, 491, 497, 566, 569, 571, 574, 701],
    area=area,
    cutmix=0.5,
)
pack = dict(type='PackInputs', algorithm_keys=('draw', 'target_map', 'target_pooled'))
views = dict(
    type='StoredViews', data_prefix='train', teacher=teacher, teacher_size=160, area=area, amp=True
)
labelled = dict(
    views,
    views=10,
    data_root='data/imagenette',
    extensions=('.webp', '.jpg', '.jpeg', '.png'),
    pipeline=[dict(type='OneHotLabel', classes=10), pack],
)
others = dict(
    views,
    views=1,
    data_root='data/tiny-imagenet-100',
    extensions=('.jpeg',),
    pipeline=[
        dict(type='OneHotLabel', classes=10, known=False),
        dict(type='Resize', scale=(128, 128)),
        pack,
    ],
)
train_dataloader = dict(
    batch_size=128,
    dataset=dict(
        _delete_=True, type='ConcatDataset', ignore_keys=['classes'], datasets=[labelled, others]
    ),
)
max_epochs = 5
train_cfg = dict(max_epochs=max_epochs, val_interval=1)
optim_wrapper = dict(optimizer=dict(lr=1e-3))
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=0.01,
        by_epoch=True,
        begin=0,
        end=0.3,
        convert_to_iter_based=True,
    ),
    dict(
        type='CosineAnnealingLR',
        eta_min=1e-5,
        by_epoch=True,
        begin=0.3,
        end=max_epochs,
        convert_to_iter_based=True,
    ),
]

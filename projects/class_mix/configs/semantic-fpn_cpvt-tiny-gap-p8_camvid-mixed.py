# Patches of 8 px, training and validation images, with ClassMix and stronger changes of brightness
# and colour.
_base_ = '../../../configs/camvid/semantic-fpn_cpvt-tiny-gap-p8_camvid-trainval.py'
custom_imports = dict(imports=['cpvt_backbones', 'class_mix'])
distortion = dict(
    type='PhotoMetricDistortion',
    brightness_delta=48,
    contrast_range=(0.4, 1.6),
    saturation_range=(0.3, 1.7),
)
pipeline = [*_base_.train_pipeline[:-2], distortion]  # ends before PackSegInputs
images = [dict(part, pipeline=pipeline) for part in _base_.images]
train_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='MultiImageMixDataset',
        dataset=dict(type='ConcatDataset', datasets=images),
        pipeline=[
            dict(type='ClassMix', prob=0.5, ignore_index=_base_.void),
            dict(type='PackSegInputs'),
        ],
    )
)
max_iters = 1800
train_cfg = dict(max_iters=max_iters)
custom_hooks = [dict(type='WarmupEMAHook', momentum=3e-3)]
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=300),
    dict(
        type='CosineAnnealingLR',
        T_max=max_iters - 300,
        eta_min=1e-5,
        by_epoch=False,
        begin=300,
        end=max_iters,
    ),
]

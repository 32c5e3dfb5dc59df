# CPVT-Ti from random weights at one size, with the recipe of the distilled classifier. protocol.py
# sets the encoding, the size, the learning rate and the length.
_base_ = '../../distilled_classifier/configs/cpvt-tiny-gap_imagenette.py'
custom_imports = dict(
    imports=[
        'cpvt_backbones',
        'cpvt_backbones.engine.decoded',
        'distilled_classifier.model',
        'size_experiment.training',
    ]
)
model = dict(init_cfg=None, backbone=dict(patch_size=8, position=None))
train_dataloader = dict(sampler=dict(_delete_=True, type='PartSampler', length=1))
default_hooks = dict(
    checkpoint=dict(_delete_=True, type='DurableCheckpointHook', interval=1, max_keep_ckpts=1)
)

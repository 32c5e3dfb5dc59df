# DeiT-S on ImageNet-1k.
_base_ = 'mmpretrain::deit/deit-small_4xb256_in1k.py'
custom_imports = dict(imports=['cpvt_backbones'])
model = dict(
    backbone=dict(
        _delete_=True,
        type='CPVT',
        arch='small',
        out_type='cls_token',
        position=dict(type='Learned', antialias=False),
    ),
)

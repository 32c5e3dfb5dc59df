# DeiT-B on ImageNet-1k.
_base_ = 'mmpretrain::deit/deit-base_16xb64_in1k.py'
custom_imports = dict(imports=['cpvt_backbones'])
model = dict(
    backbone=dict(
        _delete_=True,
        type='CPVT',
        arch='base',
        out_type='cls_token',
        position=dict(type='Learned', antialias=False),
    ),
)

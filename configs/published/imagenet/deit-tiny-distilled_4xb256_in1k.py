# DeiT-T, distilled, on ImageNet-1k.
_base_ = 'mmpretrain::deit/deit-tiny-distilled_4xb256_in1k.py'
custom_imports = dict(imports=['cpvt_backbones'])
model = dict(
    backbone=dict(
        _delete_=True,
        type='CPVT',
        arch='tiny',
        with_dist_token=True,
        out_type='cls_token',
        position=dict(type='Learned', antialias=False),
    ),
)

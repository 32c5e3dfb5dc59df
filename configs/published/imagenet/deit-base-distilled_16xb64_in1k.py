# DeiT-B, distilled, on ImageNet-1k.
_base_ = 'mmpretrain::deit/deit-base-distilled_16xb64_in1k.py'
custom_imports = dict(imports=['cpvt_backbones'])
model = dict(
    backbone=dict(
        _delete_=True,
        type='CPVT',
        arch='base',
        with_dist_token=True,
        out_type='cls_token',
        position=dict(type='Learned', antialias=False),
    ),
)

# DeiT-B, distilled, on ImageNet-1k at 384 px.
_base_ = 'mmpretrain::deit/deit-base-distilled_16xb32_in1k-384px.py'
custom_imports = dict(imports=['cpvt_backbones'])
model = dict(
    backbone=dict(
        _delete_=True,
        type='CPVT',
        arch='base',
        img_size=384,
        with_dist_token=True,
        out_type='cls_token',
        position=dict(type='Learned', antialias=False),
    ),
)

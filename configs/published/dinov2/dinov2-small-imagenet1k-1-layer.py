# DINOv2 ViT-S/14 with its linear classifier on ImageNet-1k, from its authors.
_base_ = 'mmpretrain::deit/deit-small_4xb256_in1k.py'
custom_imports = dict(imports=['cpvt_backbones'])
model = dict(
    backbone=dict(
        _delete_=True,
        type='CPVT',
        arch='small',
        img_size=518,
        patch_size=14,
        out_type='cls_and_avg',
        position=dict(type='Learned', antialias=False),
        layer_scale_init=1.0,
    ),
    head=dict(in_channels=768),
)

# ViT-B/16 on ImageNet-1k, trained from scratch with the recipe of MAE.
_base_ = 'mmpretrain::vision_transformer/vit-base-p16_32xb128-mae_in1k.py'
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

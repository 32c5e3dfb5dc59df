# ViT-B/32 on ImageNet-1k at 384 px.
_base_ = 'mmpretrain::vision_transformer/vit-base-p32_64xb64_in1k-384px.py'
custom_imports = dict(imports=['cpvt_backbones'])
model = dict(
    backbone=dict(
        _delete_=True,
        type='CPVT',
        arch='base',
        patch_size=32,
        img_size=384,
        out_type='cls_token',
        position=dict(type='Learned', antialias=False),
    ),
)

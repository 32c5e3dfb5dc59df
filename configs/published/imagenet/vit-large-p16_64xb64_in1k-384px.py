# ViT-L/16 on ImageNet-1k at 384 px.
_base_ = 'mmpretrain::vision_transformer/vit-large-p16_64xb64_in1k-384px.py'
custom_imports = dict(imports=['cpvt_backbones'])
model = dict(
    backbone=dict(
        _delete_=True,
        type='CPVT',
        arch=dict(embed_dims=1024, depth=24, num_heads=16, mlp_ratio=4.0),
        img_size=384,
        out_type='cls_token',
        position=dict(type='Learned', antialias=False),
    ),
)

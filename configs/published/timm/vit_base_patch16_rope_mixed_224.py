# RoPE-ViT-B (mixed) on ImageNet-1k, from timm.
_base_ = 'mmpretrain::deit/deit-base_16xb64_in1k.py'
custom_imports = dict(imports=['cpvt_backbones'])
model = dict(
    backbone=dict(
        _delete_=True,
        type='CPVT',
        arch='base',
        out_type='cls_token',
        position=dict(type='RoPE', mode='mixed'),
        layer_scale_init=1e-5,
    ),
)
# timm's crop: 90 % of the image's shorter side.
test_pipeline = _base_.test_pipeline
test_pipeline[1].scale = 248
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

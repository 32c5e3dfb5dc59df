# Segmenter with ViT-L on ADE20K.
_base_ = 'mmseg::segmenter/segmenter_vit-l_mask_8xb1-160k_ade20k-512x512.py'
custom_imports = dict(imports=['cpvt_backbones'])
model = dict(
    pretrained=None,
    backbone=dict(
        _delete_=True,
        type='CPVT',
        arch=dict(embed_dims=1024, depth=24, num_heads=16, mlp_ratio=4.0),
        img_size=640,
        position=dict(type='Learned', antialias=False),
        drop_path_rate=0.1,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='timm://vit_large_patch16_384.augreg_in21k_ft_in1k',
        ),
    ),
)

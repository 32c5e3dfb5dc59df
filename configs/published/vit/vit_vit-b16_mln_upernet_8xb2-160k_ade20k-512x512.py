# UPerNet with ViT-B on ADE20K.
_base_ = 'mmseg::vit/vit_vit-b16_mln_upernet_8xb2-160k_ade20k-512x512.py'
custom_imports = dict(imports=['cpvt_backbones'])
model = dict(
    pretrained=None,
    backbone=dict(
        _delete_=True,
        type='CPVT',
        arch='base',
        img_size=512,
        out_indices=[2, 5, 8, 11],
        final_norm=False,
        position=dict(type='Learned', antialias=False),
        init_cfg=dict(
            type='Pretrained',
            checkpoint='timm://vit_base_patch16_224.augreg_in21k_ft_in1k',
        ),
    ),
)

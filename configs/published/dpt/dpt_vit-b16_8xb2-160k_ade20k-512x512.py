# DPT with ViT-B on ADE20K.
_base_ = 'mmseg::dpt/dpt_vit-b16_8xb2-160k_ade20k-512x512.py'
custom_imports = dict(imports=['cpvt_backbones'])
model = dict(
    pretrained=None,
    backbone=dict(
        _delete_=True,
        type='CPVT',
        arch='base',
        out_indices=[2, 5, 8, 11],
        out_type='with_cls_token',
        final_norm=False,
        position=dict(type='Learned', antialias=False),
        norm_eps=1e-5,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='timm://vit_base_patch16_224.augreg_in21k_ft_in1k',
        ),
    ),
)

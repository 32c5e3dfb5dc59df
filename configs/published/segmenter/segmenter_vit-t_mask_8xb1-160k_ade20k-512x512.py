# Segmenter with ViT-T on ADE20K.
_base_ = 'mmseg::segmenter/segmenter_vit-t_mask_8xb1-160k_ade20k-512x512.py'
custom_imports = dict(imports=['cpvt_backbones'])
model = dict(
    pretrained=None,
    backbone=dict(
        _delete_=True,
        type='CPVT',
        arch='tiny',
        img_size=512,
        position=dict(type='Learned', antialias=False),
        drop_path_rate=0.1,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='timm://vit_tiny_patch16_384.augreg_in21k_ft_in1k',
        ),
    ),
)

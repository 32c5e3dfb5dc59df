# UPerNet with DeiT-B on ADE20K.
_base_ = 'mmseg::vit/vit_deit-b16-ln_mln_upernet_8xb2-160k_ade20k-512x512.py'
custom_imports = dict(imports=['cpvt_backbones'])
model = dict(
    pretrained=None,
    backbone=dict(
        _delete_=True,
        type='CPVT',
        arch='base',
        img_size=512,
        out_indices=[2, 5, 8, 11],
        final_norm=True,
        position=dict(type='Learned', antialias=False),
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='timm://deit_base_patch16_224.fb_in1k'),
    ),
)

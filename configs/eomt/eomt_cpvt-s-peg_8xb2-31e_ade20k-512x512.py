# EoMT-S on ADE20K with PEG in place of the position table: queries in the last three blocks of a
# CPVT that starts from DINOv2, in one piece at any size.
_base_ = './eomt_cpvt-l-dinov2_8xb2-31e_ade20k-512x512.py'
model = dict(
    backbone=dict(
        arch='small',
        position=dict(_delete_=True, type='PEG', after_blocks='0-5'),
        init_cfg=dict(checkpoint='timm://vit_small_patch14_reg4_dinov2.lvd142m'),
    ),
    decode_head=dict(embed_dims=384, num_blocks=3),
    test_cfg=dict(mode='whole'),
)

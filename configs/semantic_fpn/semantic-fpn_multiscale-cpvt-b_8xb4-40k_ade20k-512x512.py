_base_ = './semantic-fpn_multiscale-cpvt-s_8xb4-40k_ade20k-512x512.py'
model = dict(
    backbone=dict(arch='base', init_cfg=dict(checkpoint='timm://deit_base_patch16_224.fb_in1k')),
    neck=dict(in_channels=[192, 384, 768, 768]),
)

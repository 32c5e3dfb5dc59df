_base_ = './semantic-fpn_multiscale-cpvt-s_8xb2-80k_ade20k-512x512.py'
model = dict(
    backbone=dict(arch='tiny', init_cfg=dict(checkpoint='timm://deit_tiny_patch16_224.fb_in1k')),
    neck=dict(in_channels=[48, 96, 192, 192]),
)

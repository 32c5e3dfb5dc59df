_base_ = './upernet_multiscale-cpvt-s_8xb2-160k_ade20k-512x512.py'
model = dict(
    backbone=dict(arch='tiny', init_cfg=dict(checkpoint='timm://deit_tiny_patch16_224.fb_in1k')),
    decode_head=dict(in_channels=[192, 192, 192, 192]),
    auxiliary_head=dict(in_channels=192),
)

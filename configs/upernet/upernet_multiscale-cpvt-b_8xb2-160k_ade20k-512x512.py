_base_ = './upernet_multiscale-cpvt-s_8xb2-160k_ade20k-512x512.py'
model = dict(
    backbone=dict(arch='base', init_cfg=dict(checkpoint='timm://deit_base_patch16_224.fb_in1k')),
    decode_head=dict(in_channels=[768, 768, 768, 768]),
    auxiliary_head=dict(in_channels=768),
)

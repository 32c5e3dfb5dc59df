_base_ = './semantic-fpn_multiscale-cpvt-s_8xb2-80k_ade20k-512x512.py'
model = dict(backbone=dict(arch='base'), neck=dict(in_channels=[192, 384, 768, 768]))

_base_ = './semantic-fpn_multiscale-cpvt-s_8xb4-40k_ade20k-512x512.py'
model = dict(backbone=dict(arch='tiny'), neck=dict(in_channels=[48, 96, 192, 192]))

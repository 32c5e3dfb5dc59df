_base_ = './semantic-fpn_pyramid-cpvt-s_8xb4-40k_ade20k-512x512.py'
model = dict(backbone=dict(arch='base', init_cfg=dict(checkpoint='timm://twins_pcpvt_base.in1k')))

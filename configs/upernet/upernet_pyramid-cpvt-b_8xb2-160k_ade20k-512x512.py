_base_ = './upernet_pyramid-cpvt-s_8xb2-160k_ade20k-512x512.py'
model = dict(backbone=dict(arch='base', init_cfg=dict(checkpoint='timm://twins_pcpvt_base.in1k')))

_base_ = './retinanet_pyramid-cpvt-s_fpn_ms-3x_coco.py'
model = dict(backbone=dict(arch='large', init_cfg=dict(checkpoint='timm://twins_pcpvt_large.in1k')))

_base_ = './retinanet_multiscale-cpvt-s_fpn_1x_coco.py'
model = dict(backbone=dict(arch='base'), neck=dict(in_channels=[384, 768, 768]))

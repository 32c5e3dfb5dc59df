_base_ = './retinanet_multiscale-cpvt-s_fpn_1x_coco.py'
model = dict(backbone=dict(arch='tiny'), neck=dict(in_channels=[96, 192, 192]))

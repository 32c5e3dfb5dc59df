_base_ = './retinanet_pyramid-cpvt-s_fpn_ms-3x_coco.py'
model = dict(backbone=dict(arch='large'))

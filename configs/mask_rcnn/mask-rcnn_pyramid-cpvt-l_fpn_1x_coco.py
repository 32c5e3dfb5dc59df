_base_ = './mask-rcnn_pyramid-cpvt-s_fpn_1x_coco.py'
model = dict(backbone=dict(arch='large'))

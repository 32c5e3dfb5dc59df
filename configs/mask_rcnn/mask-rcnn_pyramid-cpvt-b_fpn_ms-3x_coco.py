_base_ = './mask-rcnn_pyramid-cpvt-s_fpn_ms-3x_coco.py'
model = dict(backbone=dict(arch='base'))

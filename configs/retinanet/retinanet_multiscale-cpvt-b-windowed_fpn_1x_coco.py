_base_ = './retinanet_multiscale-cpvt-b_fpn_1x_coco.py'
model = dict(backbone=dict(window_size=14, global_blocks=(2, 5, 8, 11)))

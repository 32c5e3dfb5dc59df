_base_ = './mask-rcnn_multiscale-cpvt-s_fpn_1x_coco.py'
model = dict(
    backbone=dict(arch='base', init_cfg=dict(checkpoint='timm://deit_base_patch16_224.fb_in1k')),
    neck=dict(in_channels=[192, 384, 768, 768]),
)

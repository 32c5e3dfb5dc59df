# DINOv3-S/16 as it is: the trunk is frozen and has no PEG; the pyramid's upsampling, neck and head
# are trained.
_base_ = './retinanet_multiscale-cpvt-s-dinov3_fpn_1x_coco.py'
model = dict(backbone=dict(frozen_stages=12, position=[dict(type='RoPE', mode='dinov3')]))

# Swin-T from random weights, with the recipe of the other detectors.
_base_ = '../../../../configs/bccd/retinanet_pyramid-cpvt-t_bccd.py'
backbone = dict(type='mmdet.SwinTransformer', drop_path_rate=0.1, out_indices=(1, 2, 3))
model = dict(backbone=dict(_delete_=True, **backbone), neck=dict(in_channels=[192, 384, 768]))

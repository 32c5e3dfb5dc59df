# Swin-T from random weights, with the recipe of the other segmentors.
_base_ = '../../../../configs/camvid/semantic-fpn_pyramid-cpvt-t_camvid.py'
backbone = dict(type='mmseg.SwinTransformer', drop_path_rate=0.1)
model = dict(backbone=dict(_delete_=True, **backbone), neck=dict(in_channels=[96, 192, 384, 768]))

# A Swin of half Swin-T's width, with two blocks a stage, from random weights, with the recipe of the other segmentors.
_base_ = '../../../../configs/camvid/semantic-fpn_pyramid-cpvt-t_camvid.py'
backbone = dict(
    type='mmseg.SwinTransformer', embed_dims=48, depths=(2, 2, 2, 2), num_heads=(2, 4, 8, 16), drop_path_rate=0.1
)
model = dict(backbone=dict(_delete_=True, **backbone), neck=dict(in_channels=[48, 96, 192, 384]))

_base_ = './retinanet_pyramid-cpvt-t_bccd.py'
model = dict(
    backbone=dict(
        _delete_=True, type='MultiScaleCPVT', arch='tiny', drop_path_rate=0.1, out_indices=(1, 2, 3)
    ),
    # ViTDet's widths: strides 8 (upsampled once, half as wide), 16 and 32.
    neck=dict(in_channels=[96, 192, 192]),
)

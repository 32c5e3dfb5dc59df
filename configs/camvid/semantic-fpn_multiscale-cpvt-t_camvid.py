_base_ = './semantic-fpn_pyramid-cpvt-t_camvid.py'
model = dict(
    backbone=dict(_delete_=True, type='MultiScaleCPVT', arch='tiny', drop_path_rate=0.1),
    # ViTDet's widths: strides 4 and 8 are upsampled, halving the width each time.
    neck=dict(in_channels=[48, 96, 192, 192]),
)

# The segmentor of the dense transfer: the trunk of ../classify/peg-0-5-gap_imagenette.py, so that
# its weights fit.
_base_ = '../../../../configs/camvid/semantic-fpn_pyramid-cpvt-t_camvid.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='MultiScaleCPVT',
        arch=dict(embed_dims=128, depth=6, num_heads=4, mlp_ratio=4),
        position=dict(type='PEG', after_blocks=(0, 1, 2, 3, 4)),
    ),
    # ViTDet's widths: strides 4 and 8 are upsampled, halving the width each time.
    neck=dict(in_channels=[32, 64, 128, 128]),
)

# The detector of the dense transfer: the trunk of ../classify/peg-0-5-gap_imagenette.py, so that
# its weights fit.
_base_ = '../../../../configs/bccd/retinanet_pyramid-cpvt-t_bccd.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='MultiScaleCPVT',
        arch=dict(embed_dims=128, depth=6, num_heads=4, mlp_ratio=4),
        position=dict(type='PEG', after_blocks=(0, 1, 2, 3, 4)),
        out_indices=(1, 2, 3),
    ),
    # ViTDet's widths: strides 8 (upsampled once, half as wide), 16 and 32.
    neck=dict(in_channels=[64, 128, 128]),
)

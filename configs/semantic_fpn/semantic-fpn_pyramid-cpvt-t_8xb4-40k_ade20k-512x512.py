_base_ = './semantic-fpn_pyramid-cpvt-s_8xb4-40k_ade20k-512x512.py'
model = dict(
    backbone=dict(
        arch='tiny',
        init_cfg=dict(
            checkpoint='https://github.com/whai362/PVT/releases/download/v2/pvt_tiny.pth'
        ),
    )
)

_base_ = './upernet_pyramid-cpvt-s_8xb2-160k_ade20k-512x512.py'
model = dict(
    backbone=dict(
        arch='tiny',
        init_cfg=dict(
            checkpoint='https://github.com/whai362/PVT/releases/download/v2/pvt_tiny.pth'
        ),
    )
)

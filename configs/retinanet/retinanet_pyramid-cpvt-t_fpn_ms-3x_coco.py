_base_ = './retinanet_pyramid-cpvt-s_fpn_ms-3x_coco.py'
model = dict(
    backbone=dict(
        arch='tiny',
        init_cfg=dict(
            checkpoint='https://github.com/whai362/PVT/releases/download/v2/pvt_tiny.pth'
        ),
    )
)

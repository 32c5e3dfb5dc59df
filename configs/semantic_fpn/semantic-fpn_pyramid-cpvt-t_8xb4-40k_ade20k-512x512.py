_base_ = './semantic-fpn_pyramid-cpvt-s_8xb4-40k_ade20k-512x512.py'
model = dict(
    backbone=dict(
        arch='tiny',
        # The tables of PVT's weights, and PEG as the identity: step 0 is the pretrained model.
        position=[
            dict(type='Learned', interpolation='bilinear', antialias=False),
            dict(type='PEG'),
        ],
        init_cfg=dict(
            checkpoint='https://github.com/whai362/PVT/releases/download/v2/pvt_tiny.pth'
        ),
    )
)

# Semantic FPN on CamVid over a frozen trunk with patches of 8 px: whole images of one size, flips
# only. protocol.py sets the encoding, the weights and the length.
_base_ = '../../../configs/camvid/semantic-fpn_pyramid-cpvt-t_camvid.py'
model = dict(
    backbone=dict(_delete_=True, type='MultiScaleCPVT', arch='tiny', patch_size=8, position=None)
)
scale = (240, 180)  # half of the images' width and height, px
train_dataloader = dict(
    num_workers=0,
    persistent_workers=False,
    dataset=dict(
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations'),
            dict(type='Resize', scale=scale),
            dict(type='RandomFlip', prob=0.5),
            dict(type='PackSegInputs'),
        ]
    ),
)
test_dataloader = dict(
    num_workers=0,
    persistent_workers=False,
    dataset=dict(
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='Resize', scale=scale),
            dict(type='LoadAnnotations'),
            dict(type='PackSegInputs'),
        ]
    ),
)
val_cfg = None
val_dataloader = None
val_evaluator = None

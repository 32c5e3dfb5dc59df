# The same with PVT's learned tables instead of PEG, laid out for the training crops and resized to
# any other grid.
_base_ = './semantic-fpn_pyramid-cpvt-t_camvid.py'
model = dict(
    backbone=dict(
        img_size=(256, 320),
        position=dict(type='Learned', interpolation='bilinear', antialias=False),
    )
)

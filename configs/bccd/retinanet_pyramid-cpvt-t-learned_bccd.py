# The same with PVT's learned tables instead of PEG, laid out for the training images and resized to
# any other grid.
_base_ = './retinanet_pyramid-cpvt-t_bccd.py'
model = dict(
    backbone=dict(
        img_size=(240, 320),
        position=dict(type='Learned', interpolation='bilinear', antialias=False),
    )
)

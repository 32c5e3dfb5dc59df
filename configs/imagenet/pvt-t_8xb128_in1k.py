# PVT-Tiny: PyramidCPVT-Tiny with PVT's learned tables in place of PEG.
_base_ = './pyramid-cpvt-t_8xb128_in1k.py'
model = dict(
    backbone=dict(position=dict(type='Learned', interpolation='bilinear', antialias=False))
)

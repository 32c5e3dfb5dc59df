# DeiT-B with no position encoding: a row that CPVT is compared with.
_base_ = './cpvt-b_8xb128_in1k.py'
model = dict(backbone=dict(position=None))

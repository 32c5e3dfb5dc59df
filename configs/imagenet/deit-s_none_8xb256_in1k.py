# DeiT-S with no position encoding: a row that CPVT is compared with.
_base_ = './cpvt-s_8xb256_in1k.py'
model = dict(backbone=dict(position=None))

# DeiT-S with a fixed 2D sine-cosine encoding: a row that CPVT is compared with.
_base_ = './cpvt-s_8xb256_in1k.py'
model = dict(backbone=dict(position=dict(_delete_=True, type='SinCos')))
